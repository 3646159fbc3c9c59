//! An image as a request names it, and what it costs.

use super::data_url::Bytes;
use super::header;

/// Width and height in pixels, neither zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Pixels from left to right.
    pub width: u32,
    /// Pixels from top to bottom.
    pub height: u32,
}

impl Size {
    /// The same on its side.
    #[must_use]
    pub const fn turned(self) -> Self {
        Self { width: self.height, height: self.width }
    }

    /// Width × height.
    #[must_use]
    pub const fn pixels(self) -> u64 {
        self.width as u64 * self.height as u64
    }
}

/// Where a request's image is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageRef<'a> {
    /// A URL: `data:` with the image in it, or one that only the engine can fetch.
    Url(&'a str),
    /// The request names an image without showing it (by its `uuid` in the engine's cache).
    Unseen,
}

impl ImageRef<'_> {
    /// Its size as stored, from the header of an image that the URL itself holds. Bounded, whatever the bytes are.
    #[must_use]
    pub fn size(self) -> Option<Size> {
        match self {
            Self::Url(url) => Some(header::read(Bytes::of_url(url)?)?.size),
            Self::Unseen => None,
        }
    }
}

/// What one image costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageCost {
    /// Prompt tokens in place of the one that stands for the image; at least 1. Where not
    /// `certain`, the most that this model's configuration makes of any image.
    pub tokens: u64,
    /// Whether the engine will see exactly this many; else this many or fewer.
    pub certain: bool,
    /// The image's size as the engine sees it, where its header tells.
    pub size: Option<Size>,
}
