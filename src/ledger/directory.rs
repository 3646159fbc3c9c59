//! The state directory: its lock and its key. Directory 0700 where made here, files 0600.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::open::Settings;
use crate::request::TenantKey;

/// Why there is no journal on disk; the ledger is then in memory only.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// None was configured.
    #[error("no state directory is configured: a crash of kvgate loses what was in flight")]
    NotConfigured,
    /// Another kvgate has it.
    #[error("another kvgate holds {}: give each its own state directory", path.display())]
    Taken {
        /// The lock file.
        path: PathBuf,
    },
    /// The system refuses.
    #[error("{}: {source}", path.display())]
    Refused {
        /// What was tried.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
}

impl Unusable {
    pub(super) fn refused(path: &Path, source: io::Error) -> Self {
        Self::Refused { path: path.to_owned(), source }
    }
}

/// Makes the directory where it is missing.
fn make(dir: &Path) -> Result<(), Unusable> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|e| Unusable::refused(dir, e))
}

/// Opens `path` for writing with mode 0600.
pub(super) fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

/// Takes the directory for this process, until the file is dropped or the process is gone.
pub(super) fn lock(dir: &Path) -> Result<File, Unusable> {
    make(dir)?;
    let path = dir.join("lock");
    let file = create(&path).map_err(|e| Unusable::refused(&path, e))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Unusable::Taken { path }),
        Err(TryLockError::Error(e)) => Err(Unusable::refused(&path, e)),
    }
}

/// The key under which tenants are hashed: the one kept in the state directory, so that a tenant has
/// the same hash after a restart; made there at the first start. Without a usable directory it is a
/// fresh random one, good for this run.
#[must_use]
pub fn tenant_key(settings: &Settings) -> TenantKey {
    let kept = settings.state_dir.as_deref().and_then(|dir| {
        make(dir).ok()?;
        let path = dir.join("key");
        read_key(&path).or_else(|| make_key(&path).ok().flatten())
    });
    kept.unwrap_or_else(TenantKey::random)
}

fn read_key(path: &Path) -> Option<TenantKey> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(17).read_to_end(&mut bytes).ok()?;
    Some(TenantKey::from_bytes(bytes.try_into().ok()?))
}

/// Writes a fresh key beside, then links it into place, so that of two first starts one wins and both
/// read the winner's. A key file of the wrong size is replaced.
fn make_key(path: &Path) -> io::Result<Option<TenantKey>> {
    let beside = path.with_file_name(format!("key.{}.tmp", std::process::id()));
    let _ = fs::remove_file(&beside);
    let mut file = create(&beside)?;
    file.write_all(&TenantKey::random().to_bytes())?;
    file.sync_all()?;
    let broken = path.exists();
    let placed = if broken { fs::rename(&beside, path) } else { fs::hard_link(&beside, path) };
    match placed {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => fs::rename(&beside, path)?,
        _ => {}
    }
    let _ = fs::remove_file(&beside);
    Ok(read_key(path))
}
