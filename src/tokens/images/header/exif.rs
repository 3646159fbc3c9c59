//! The orientation in an image's metadata, as Pillow 13.0 finds it (`Image.py` `getexif`): the tag in
//! the first directory of the EXIF data, else the one in the XMP text.

use super::super::data_url::Bytes;
use super::Turned;

/// The orientation tag.
const ORIENTATION: u16 = 0x0112;

/// Entries of a directory that are looked at; cameras write fewer than 100.
const ENTRIES: u16 = 4096;

/// XMP texts longer than this are not searched. One JPEG segment holds at most this.
const XMP_BYTES: usize = 65_536;

/// What metadata says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Orientation {
    /// No word of an orientation.
    Absent,
    /// There is one.
    Is(u16),
    /// It cannot be read here.
    Unsure,
}

impl Orientation {
    /// With what another source says where this one says nothing.
    pub fn or(self, other: impl FnOnce() -> Self) -> Self {
        if self == Self::Absent { other() } else { self }
    }

    /// What is done about it (Pillow 13.0 `ImageOps.py` `exif_transpose`).
    pub const fn turned(self) -> Turned {
        match self {
            Self::Is(5..=8) => Turned::Yes,
            Self::Unsure => Turned::Unsure,
            Self::Absent | Self::Is(_) => Turned::No,
        }
    }
}

/// Reads EXIF data that lies in `at..end` of a file, with or without its `Exif` mark.
pub fn exif(bytes: Bytes, mut at: usize, end: usize) -> Orientation {
    // Pillow takes off one or two.
    for _ in 0..2 {
        if end - at.min(end) >= 6 && bytes.array(at) == Some(*b"Exif\0\0") {
            at += 6;
        }
    }
    directory(bytes, at, end).unwrap_or(Orientation::Unsure)
}

/// The first directory of the TIFF file in `at..end`; nothing where it is not one that is understood.
fn directory(bytes: Bytes, at: usize, end: usize) -> Option<Orientation> {
    let within = |place: usize, len: usize| place.checked_add(len).is_some_and(|last| last <= end);
    if !within(at, 8) {
        return None;
    }
    let head: [u8; 8] = bytes.array(at)?;
    let little = match &head[..4] {
        b"II*\0" => true,
        b"MM\0*" => false,
        _ => return None,
    };
    let short = |two: [u8; 2]| if little { u16::from_le_bytes(two) } else { u16::from_be_bytes(two) };
    let long = |four: [u8; 4]| if little { u32::from_le_bytes(four) } else { u32::from_be_bytes(four) };
    let [_, _, _, _, a, b, c, d] = head;
    let first = at.checked_add(usize::try_from(long([a, b, c, d])).ok()?)?;
    if !within(first, 2) {
        return None;
    }
    let count = short(bytes.array(first)?);
    if count > ENTRIES {
        return None;
    }
    let mut found = Orientation::Absent;
    for entry in 0..usize::from(count) {
        let place = first + 2 + entry * 12;
        if !within(place, 12) {
            // Pillow keeps what it has read before the end.
            break;
        }
        let [t0, t1, k0, k1, n0, n1, n2, n3, v0, v1, ..] = bytes.array::<12>(place)?;
        if short([t0, t1]) == ORIENTATION {
            // A short number, one of it; the last of several counts.
            let plain = short([k0, k1]) == 3 && long([n0, n1, n2, n3]) == 1;
            found = if plain { Orientation::Is(short([v0, v1])) } else { Orientation::Unsure };
        }
    }
    Some(found)
}

/// Searches XMP text that lies in `at..end` of a file (`tiff:Orientation(="|>)([0-9])`).
pub fn xmp(bytes: Bytes, at: usize, end: usize) -> Orientation {
    const NAME: &[u8] = b"tiff:Orientation";
    if end.saturating_sub(at) > XMP_BYTES {
        return Orientation::Unsure;
    }
    let Some(text) = bytes.vec(at..end) else { return Orientation::Unsure };
    let value = |place: usize| match &text[place + NAME.len()..] {
        [b'=', b'"', digit @ b'0'..=b'9', ..] | [b'>', digit @ b'0'..=b'9', ..] => Some(digit - b'0'),
        _ => None,
    };
    memchr::memmem::find_iter(&text, NAME)
        .find_map(value)
        .map_or(Orientation::Absent, |digit| Orientation::Is(u16::from(digit)))
}
