//! Where the model's tokenizer lies: a setting, the engine's own path, the Hugging Face cache.
//!
//! Layout of the cache (huggingface_hub 0.36 `file_download.py`):
//! `models--ORG--NAME/refs/main` holds a revision, `snapshots/REVISION/` the files.

use std::env;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use super::{Encoder, Settings};

/// No tokenizer was found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct NotFound {
    /// Every place looked at, and what was missing there.
    pub looked: Vec<String>,
}

impl fmt::Display for NotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no tokenizer found; looked for ")?;
        match self.looked.as_slice() {
            [] => f.write_str("nothing: neither a setting nor the engine names one"),
            all => f.write_str(&all.join(", ")),
        }
    }
}

/// Finds the directory or file to load: `settings.tokenizer`, which alone counts where it is set, else
/// `root` (what the engine reports: a path, or a name on the hub) as a local directory, then in the
/// caches of `HF_HUB_CACHE`, `HF_HOME`, `XDG_CACHE_HOME` and the home directory. Blocking, a few
/// file lookups; nothing is downloaded.
///
/// # Errors
/// [`NotFound`] names every place looked at.
pub fn find(settings: &Settings, root: Option<&str>) -> Result<PathBuf, NotFound> {
    find_in(settings, root, &hubs(|name| env::var_os(name).map(PathBuf::from)))
}

/// Loads the tokenizer that the settings name, with their chat template; nothing where they name none. Blocking, as
/// [`Encoder::load`].
///
/// # Errors
/// The key, the path and why it cannot be used.
pub fn configured(settings: &Settings) -> Result<Option<Encoder>, String> {
    let template = settings.chat_template.as_deref();
    if let Some(file) = template
        && let Err(error) = fs::read_to_string(file)
    {
        return Err(format!("tokens.chat_template = {}: {error}", file.display()));
    }
    let Some(path) = &settings.tokenizer else { return Ok(None) };
    let wrong = |why: String| format!("tokens.tokenizer = {}: {why}", path.display());
    find(settings, None).map_err(|_| {
        wrong(
            if path.exists() { "there is no tokenizer.json in it" } else { "there is no such path" }
                .to_owned(),
        )
    })?;
    let encoder = Encoder::load(path, template).map_err(|error| wrong(error.to_string()))?;
    Ok(Some(encoder.with_options(settings.into())))
}

/// The caches that the environment names, in the order in which they are looked at.
fn hubs(var: impl Fn(&str) -> Option<PathBuf>) -> Vec<PathBuf> {
    let var = |name: &str| var(name).filter(|path| !path.as_os_str().is_empty());
    let cache = var("XDG_CACHE_HOME").or_else(|| var("HOME").map(|home| home.join(".cache")));
    let mut hubs: Vec<PathBuf> = [
        var("HF_HUB_CACHE"),
        var("HUGGINGFACE_HUB_CACHE"),
        var("HF_HOME").map(|home| home.join("hub")),
        cache.map(|cache| cache.join("huggingface/hub")),
    ]
    .into_iter()
    .flatten()
    .collect();
    hubs.dedup();
    hubs
}

fn find_in(settings: &Settings, root: Option<&str>, hubs: &[PathBuf]) -> Result<PathBuf, NotFound> {
    let mut looked = Vec::new();
    if let Some(path) = &settings.tokenizer {
        return usable(path, &mut looked).ok_or(NotFound { looked });
    }
    let Some(root) = root.filter(|root| !root.is_empty()) else { return Err(NotFound { looked }) };
    if let Some(path) = usable(Path::new(root), &mut looked) {
        return Ok(path);
    }
    if let Some(folder) = cache_folder(root) {
        for hub in hubs {
            if let Some(path) = snapshot(&hub.join(&folder), &mut looked) {
                return Ok(path);
            }
        }
    }
    Err(NotFound { looked })
}

/// A `tokenizer.json`, or a directory that holds one.
fn usable(path: &Path, looked: &mut Vec<String>) -> Option<PathBuf> {
    if path.is_file() {
        return Some(path.to_owned());
    }
    let file = path.join("tokenizer.json");
    if file.is_file() {
        return Some(path.to_owned());
    }
    looked.push(file.display().to_string());
    None
}

/// The cache's folder for a name on the hub; `None` for what can be no such name.
fn cache_folder(name: &str) -> Option<String> {
    let plain = |part: &str| {
        let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        !part.is_empty() && !part.starts_with('.') && part.chars().all(fine)
    };
    let parts: Vec<&str> = name.split('/').collect();
    (parts.len() <= 2 && parts.iter().all(|part| plain(part)))
        .then(|| format!("models--{}", parts.join("--")))
}

/// The snapshot that `main` points to, else the newest that has a tokenizer.
fn snapshot(model: &Path, looked: &mut Vec<String>) -> Option<PathBuf> {
    let snapshots = model.join("snapshots");
    let main = fs::read_to_string(model.join("refs/main")).ok();
    if let Some(revision) = main.as_deref().map(str::trim).filter(|revision| !revision.contains(['/', '.'])) {
        if let Some(path) = usable(&snapshots.join(revision), looked) {
            return Some(path);
        }
    } else {
        looked.push(model.join("refs/main").display().to_string());
    }
    let with_tokenizer = fs::read_dir(&snapshots).ok()?.flatten().map(|entry| entry.path());
    with_tokenizer
        .filter(|path| path.join("tokenizer.json").is_file())
        .max_by_key(|path| fs::metadata(path).and_then(|about| about.modified()).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(path: &Path) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "{}").unwrap();
    }

    #[test]
    fn a_configured_tokenizer_that_cannot_be_used_is_named_with_its_key() {
        let folder = tempfile::tempdir().unwrap();
        let with = |tokenizer: Option<&Path>, chat_template: Option<&Path>| {
            let path = |path: Option<&Path>| path.map(Path::to_owned);
            let settings = Settings {
                tokenizer: path(tokenizer),
                chat_template: path(chat_template),
                ..Settings::default()
            };
            configured(&settings).map(|encoder| encoder.is_some())
        };
        assert_eq!(with(None, None), Ok(false));
        let missing = folder.path().join("missing");
        let says = |error: Result<bool, String>, key: &str, path: &Path| {
            let error = error.unwrap_err();
            assert!(error.starts_with(&format!("{key} = {}: ", path.display())), "{error}");
        };
        says(with(Some(&missing), None), "tokens.tokenizer", &missing);
        says(with(Some(folder.path()), None), "tokens.tokenizer", folder.path());
        says(with(None, Some(&missing)), "tokens.chat_template", &missing);
        std::fs::write(folder.path().join("tokenizer.json"), "{}").unwrap();
        says(with(Some(folder.path()), None), "tokens.tokenizer", folder.path());
        let good = include_bytes!("../sim/tokenizer/tokenizer.json");
        std::fs::write(folder.path().join("tokenizer.json"), good).unwrap();
        assert_eq!(with(Some(folder.path()), None), Ok(true));
    }

    #[test]
    fn a_setting_alone_counts_where_it_is_set() {
        let dir = tempfile::tempdir().unwrap();
        let settings = Settings { tokenizer: Some(dir.path().join("a")), ..Settings::default() };
        put(&dir.path().join("b/tokenizer.json"));
        let root = dir.path().join("b");
        let error = find_in(&settings, root.to_str(), &[]).unwrap_err();
        assert_eq!(error.looked, [dir.path().join("a/tokenizer.json").display().to_string()]);
        put(&dir.path().join("a/tokenizer.json"));
        assert_eq!(find_in(&settings, None, &[]), Ok(dir.path().join("a")));
    }

    #[test]
    fn a_model_is_found_in_its_directory_or_in_a_cache() {
        let dir = tempfile::tempdir().unwrap();
        let hub = dir.path().join("hub");
        let model = hub.join("models--org--name");
        put(&model.join("snapshots/abc/tokenizer.json"));
        put(&model.join("snapshots/old/tokenizer.json"));
        fs::create_dir_all(model.join("refs")).unwrap();
        fs::write(model.join("refs/main"), "abc\n").unwrap();
        let hubs = [dir.path().join("none"), hub];
        let found = find_in(&Settings::default(), Some("org/name"), &hubs);
        assert_eq!(found, Ok(model.join("snapshots/abc")));
        let local = find_in(&Settings::default(), model.join("snapshots/old").to_str(), &[]);
        assert_eq!(local, Ok(model.join("snapshots/old")));
        let error = find_in(&Settings::default(), Some("org/other"), &hubs).unwrap_err();
        assert_eq!(error.looked.len(), 3, "{error}");
        fs::remove_file(model.join("refs/main")).unwrap();
        assert!(find_in(&Settings::default(), Some("org/name"), &hubs).is_ok());
    }

    #[test]
    fn a_name_cannot_lead_out_of_the_cache() {
        for name in ["../x", "a/../b", "a/b/c", ".", "a/..", "", "/etc", "a\\b"] {
            assert_eq!(cache_folder(name), None, "{name}");
        }
        assert_eq!(cache_folder("gpt2").as_deref(), Some("models--gpt2"));
        let error = find_in(&Settings::default(), None, &[]).unwrap_err();
        assert!(error.to_string().contains("neither"));
    }

    #[test]
    fn the_environment_names_the_caches() {
        let var = |name: &str| match name {
            "HF_HOME" => Some(PathBuf::from("/h")),
            "HOME" => Some(PathBuf::from("/me")),
            "HF_HUB_CACHE" => Some(PathBuf::new()),
            _ => None,
        };
        assert_eq!(hubs(var), [PathBuf::from("/h/hub"), PathBuf::from("/me/.cache/huggingface/hub")]);
    }
}
