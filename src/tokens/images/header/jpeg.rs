//! JPEG (Pillow 13.0 `JpegImagePlugin.py`): the last start-of-frame before the first scan; EXIF and
//! XMP before it.

use super::super::data_url::Bytes;
use super::exif::{Orientation, exif, xmp};
use super::{Header, STEPS, size};

const XMP: &[u8; 29] = b"http://ns.adobe.com/xap/1.0/\0";

/// Reads a JPEG's header.
pub fn read(bytes: Bytes) -> Option<Header> {
    let mut found = None;
    let (mut by_exif, mut by_xmp) = (None, Orientation::Absent);
    // Behind the first two bytes of the mark, whose third begins a marker.
    let mut at = 2_usize;
    for _ in 0..STEPS {
        let [mark, code] = bytes.array(at)?;
        if mark != 0xff {
            at += 1;
            continue;
        }
        match code {
            // Padding; an escaped 0xff is skipped.
            0xff => at += 1,
            0x00 => at += 2,
            // Markers without a length.
            0xc8 | 0xd0..=0xd9 | 0xf0..=0xfd => at += 2,
            // Not known to Pillow, which ends here.
            0x01..=0xbf => return None,
            _ => {
                let len = usize::from(u16::from_be_bytes(bytes.array(at + 2)?)).saturating_sub(2);
                let start = at + 4;
                let end = start + len;
                if end > bytes.len() {
                    return None;
                }
                match code {
                    0xda => {
                        let orientation = by_exif.unwrap_or(Orientation::Absent).or(|| by_xmp);
                        return Some(Header { size: found?, turned: orientation.turned() });
                    }
                    0xc0..=0xc3 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf | 0xde => {
                        found = Some(frame(bytes, start, end)?);
                    }
                    0xe1 if begins(bytes, start, end, b"Exif\0\0") => {
                        // More of it goes on where the first ended: not put together here.
                        by_exif = Some(match by_exif {
                            None => exif(bytes, start, end),
                            Some(_) => Orientation::Unsure,
                        });
                    }
                    0xe1 if begins(bytes, start, end, XMP) => {
                        by_xmp = xmp(bytes, start + XMP.len(), end);
                    }
                    _ => {}
                }
                at = end;
            }
        }
    }
    None
}

/// The size in a start-of-frame; nothing for frames that Pillow does not take.
fn frame(bytes: Bytes, start: usize, end: usize) -> Option<super::Size> {
    if end - start < 6 {
        return None;
    }
    let [bits, h0, h1, w0, w1, layers] = bytes.array(start)?;
    if bits != 8 || !matches!(layers, 1 | 3 | 4) {
        return None;
    }
    size(u32::from(u16::from_be_bytes([w0, w1])), u32::from(u16::from_be_bytes([h0, h1])))
}

fn begins<const N: usize>(bytes: Bytes, start: usize, end: usize, with: &[u8; N]) -> bool {
    end - start >= N && bytes.array(start).as_ref() == Some(with)
}
