//! An image's size from its header, as the engine will see it.
//!
//! vLLM 0.32.0 (`multimodal/media/image.py`, `multimodal/image.py`) opens an image with Pillow and turns
//! it upright by its EXIF orientation. So what counts is what Pillow 13.0 reads, also from files that
//! tell two stories: each format's file says where Pillow reads it. Formats other than PNG, JPEG, GIF
//! and WebP are not read here, though the engine may open them.
//!
//! Known limit: an image that is to be turned and whose data then turns out to be broken (or whose
//! EXIF data Pillow cannot write again) is used unturned by vLLM, because it takes the failed turn for
//! a missing orientation. Its size is then taken for the turned one here: on its side.

mod exif;
mod gif;
mod jpeg;
mod png;
mod webp;

use super::cost::Size;
use super::data_url::Bytes;

/// Steps (chunks, markers, blocks, stray bytes) after which a header is given up: far more than
/// real files need. A step takes at most about 0.25 µs.
const STEPS: usize = 16_384;

/// What a header tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The size as stored.
    pub size: Size,
    /// Whether the engine turns it on its side.
    pub turned: Turned,
}

/// Whether an image is turned by a quarter before it is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turned {
    /// It stays.
    No,
    /// Width and height change places.
    Yes,
    /// One or the other.
    Unsure,
}

/// Reads a header; nothing where there is none that the engine would read, or it goes on and on.
pub fn read(bytes: Bytes) -> Option<Header> {
    let start: [u8; 12] = bytes.array(0)?;
    match start {
        [0x89, b'P', b'N', b'G', 0x0d, 0x0a, 0x1a, 0x0a, ..] => png::read(bytes),
        [0xff, 0xd8, 0xff, ..] => jpeg::read(bytes),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => gif::read(bytes),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P'] => webp::read(bytes),
        _ => None,
    }
}

/// A size with neither side zero.
fn size(width: u32, height: u32) -> Option<Size> {
    (width > 0 && height > 0).then_some(Size { width, height })
}
