//! WebP (Pillow 13.0 `WebPImagePlugin.py`, which asks libwebp for the canvas): the sizes of the WebP
//! container specification (RFC 9649).

use super::super::data_url::Bytes;
use super::exif::{Orientation, exif, xmp};
use super::{Header, STEPS, Turned, size};

/// Reads a WebP's header.
pub fn read(bytes: Bytes) -> Option<Header> {
    let first: [u8; 4] = bytes.array(12)?;
    let simple = |width, height| Some(Header { size: size(width, height)?, turned: Turned::No });
    match &first {
        b"VP8 " => {
            let [m0, m1, m2, w0, w1, h0, h1] = bytes.array(23)?;
            if [m0, m1, m2] != [0x9d, 0x01, 0x2a] {
                return None;
            }
            let side = |two: [u8; 2]| u32::from(u16::from_le_bytes(two) & 0x3fff);
            simple(side([w0, w1]), side([h0, h1]))
        }
        b"VP8L" => {
            let [0x2f, b0, b1, b2, b3] = bytes.array(20)? else { return None };
            let bits = u32::from_le_bytes([b0, b1, b2, b3]);
            simple((bits & 0x3fff) + 1, ((bits >> 14) & 0x3fff) + 1)
        }
        b"VP8X" => {
            let [flags, _, _, _, w0, w1, w2, h0, h1, h2] = bytes.array(20)?;
            let side = |three: [u8; 3]| u32::from_le_bytes([three[0], three[1], three[2], 0]) + 1;
            let size = size(side([w0, w1, w2]), side([h0, h1, h2]))?;
            Some(Header { size, turned: metadata(bytes, flags).turned() })
        }
        _ => None,
    }
}

/// The orientation in the chunks behind the first. libwebp keeps those that the flags announce.
fn metadata(bytes: Bytes, flags: u8) -> Orientation {
    let (has_exif, has_xmp) = (flags & 0x08 != 0, flags & 0x04 != 0);
    if !has_exif && !has_xmp {
        return Orientation::Absent;
    }
    let (mut by_exif, mut by_xmp) = (Orientation::Absent, Orientation::Absent);
    let (mut seen_exif, mut seen_xmp) = (false, false);
    let mut at = 12_usize;
    for _ in 0..STEPS {
        let Some([k0, k1, k2, k3, l0, l1, l2, l3]) = bytes.array(at) else {
            return by_exif.or(|| by_xmp);
        };
        let start = at + 8;
        let end = usize::try_from(u32::from_le_bytes([l0, l1, l2, l3]))
            .ok()
            .and_then(|len| start.checked_add(len))
            .filter(|end| *end <= bytes.len());
        let Some(end) = end else { return Orientation::Unsure };
        match &[k0, k1, k2, k3] {
            // The first of each kind counts.
            b"EXIF" if has_exif && !seen_exif => {
                seen_exif = true;
                by_exif = exif(bytes, start, end);
            }
            b"XMP " if has_xmp && !seen_xmp => {
                seen_xmp = true;
                by_xmp = xmp(bytes, start, end);
            }
            _ => {}
        }
        // Chunks are padded to even lengths.
        at = end + (end - start) % 2;
    }
    Orientation::Unsure
}
