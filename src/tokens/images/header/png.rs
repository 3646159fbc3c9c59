//! PNG (Pillow 13.0 `PngImagePlugin.py`): the last `IHDR` before the image data; EXIF and XMP anywhere
//! before the end.

use super::super::data_url::Bytes;
use super::exif::{Orientation, exif, xmp};
use super::{Header, STEPS, size};

/// Reads a PNG's header.
pub fn read(bytes: Bytes) -> Option<Header> {
    let mut found = None;
    let mut data = false;
    let (mut by_exif, mut by_text) = (Orientation::Absent, Orientation::Absent);
    let mut at = 8_usize;
    let mut ended = false;
    for _ in 0..STEPS {
        let Some(head) = bytes.array::<8>(at) else {
            ended = true;
            break;
        };
        let [l0, l1, l2, l3, kind @ ..] = head;
        let start = at + 8;
        let len = usize::try_from(u32::from_be_bytes([l0, l1, l2, l3])).ok()?;
        let end = start.checked_add(len)?;
        match &kind {
            b"IHDR" if !data => {
                let [w0, w1, w2, w3, h0, h1, h2, h3] = bytes.array(start)?;
                found = size(u32::from_be_bytes([w0, w1, w2, w3]), u32::from_be_bytes([h0, h1, h2, h3]));
            }
            b"IDAT" | b"fdAT" => data = true,
            b"IEND" => {
                ended = true;
                break;
            }
            // An animation's next image, where Pillow stops.
            b"fcTL" if data => {
                ended = true;
                break;
            }
            b"eXIf" if end <= bytes.len() => by_exif = exif(bytes, start, end),
            b"tEXt" | b"zTXt" | b"iTXt" if end <= bytes.len() && by_text != Orientation::Unsure => {
                by_text = text(bytes, kind, start, end).unwrap_or(by_text);
            }
            _ if !kind.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_') => {
                // No chunk: an error before the image data, the end behind it.
                ended = data;
                break;
            }
            _ => {}
        }
        // The checksum follows.
        at = end.checked_add(4)?;
    }
    let size = found.filter(|_| data)?;
    let orientation = if ended { by_exif.or(|| by_text) } else { Orientation::Unsure };
    Some(Header { size, turned: orientation.turned() })
}

/// What a text chunk says about the orientation; nothing where it is about something else.
fn text(bytes: Bytes, kind: [u8; 4], start: usize, end: usize) -> Option<Orientation> {
    const XMP: &[u8; 18] = b"XML:com.adobe.xmp\0";
    const RAW: &[u8; 22] = b"Raw profile type exif\0";
    if bytes.array(start).as_ref() == Some(RAW) {
        return Some(Orientation::Unsure);
    }
    let body = start.checked_add(XMP.len())?;
    if bytes.array(start).as_ref() != Some(XMP) {
        return None;
    }
    let plain = match &kind {
        b"tEXt" => true,
        // The first byte behind the keyword says whether the text is compressed.
        b"iTXt" => bytes.array(body) == Some([0]),
        _ => false,
    };
    Some(if plain && body <= end { xmp(bytes, body, end) } else { Orientation::Unsure })
}
