//! GIF (Pillow 13.0 `GifImagePlugin.py`): the screen, grown to hold its first image. GIFs are not
//! turned.

use super::super::data_url::Bytes;
use super::{Header, STEPS, Turned, size};

const NETSCAPE: &[u8; 11] = b"NETSCAPE2.0";

/// Reads a GIF's header.
pub fn read(bytes: Bytes) -> Option<Header> {
    let [w0, w1, h0, h1, flags] = bytes.array(6)?;
    let screen = (u32::from(u16::from_le_bytes([w0, w1])), u32::from(u16::from_le_bytes([h0, h1])));
    let mut at = 13 + table(flags);
    let mut steps = STEPS;
    while steps > 0 {
        steps -= 1;
        let [byte] = bytes.array(at)?;
        at += 1;
        match byte {
            b'!' => at = extension(bytes, at, &mut steps)?,
            b',' => {
                let [x0, x1, y0, y1, w0, w1, h0, h1] = bytes.array(at)?;
                let side = |from: [u8; 2], long: [u8; 2]| {
                    u32::from(u16::from_le_bytes(from)) + u32::from(u16::from_le_bytes(long))
                };
                let (right, bottom) = (side([x0, x1], [w0, w1]), side([y0, y1], [h0, h1]));
                let size = size(screen.0.max(right), screen.1.max(bottom))?;
                return Some(Header { size, turned: Turned::No });
            }
            b';' => return None,
            _ => {}
        }
    }
    None
}

/// Bytes of the colour table that flags announce.
const fn table(flags: u8) -> usize {
    if flags & 0x80 == 0 { 0 } else { 3 << ((flags & 7) + 1) }
}

/// Where an extension ends that begins behind its sign.
fn extension(bytes: Bytes, at: usize, steps: &mut usize) -> Option<usize> {
    let [label] = bytes.array(at)?;
    let first = at + 1;
    let mut at = block(bytes, first)?;
    // Pillow reads one block more than the first of these, even where the first was empty.
    let named = at > first + NETSCAPE.len() && bytes.array(first + 1).as_ref() == Some(NETSCAPE);
    let loops = label == 0xff && named;
    let mut more = label != 0xfe || at > first + 1;
    if loops {
        at = block(bytes, at)?;
    }
    while more && *steps > 0 {
        *steps -= 1;
        let next = block(bytes, at)?;
        more = next > at + 1;
        at = next;
    }
    Some(at)
}

/// Where a block ends: its length, and so many bytes.
fn block(bytes: Bytes, at: usize) -> Option<usize> {
    let [len] = bytes.array(at)?;
    Some(at + 1 + usize::from(len))
}
