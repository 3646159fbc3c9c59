//! How long a sound is, from its header: WAV (RIFF, Microsoft "Multimedia Data Standards", 1994) and FLAC (RFC 9639).
//!
//! MP3 and Ogg tell their length only to who reads all of them: it is not known here.

use super::images::Bytes;

/// Chunks of a WAV file that are looked at.
const CHUNKS: usize = 64;

/// Seconds of the sound in base64 text.
pub fn seconds_of_base64(data: &str) -> Option<f64> {
    seconds(Bytes::of_base64(data)?)
}

/// Seconds of the sound in a `data:` URL.
pub fn seconds_of_url(url: &str) -> Option<f64> {
    seconds(Bytes::of_url(url)?)
}

fn seconds(bytes: Bytes) -> Option<f64> {
    let start: [u8; 12] = bytes.array(0)?;
    match start {
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'A', b'V', b'E'] => wav_seconds(bytes),
        [b'f', b'L', b'a', b'C', ..] => flac_seconds(bytes),
        _ => None,
    }
}

/// The bytes of its data, of which those that are there count, by its bytes a second.
fn wav_seconds(bytes: Bytes) -> Option<f64> {
    let (mut at, mut rate) = (12, None);
    for _ in 0..CHUNKS {
        let [a, b, c, d, size @ ..] = bytes.array::<8>(at)?;
        let size = u32::from_le_bytes(size) as usize;
        let body = at + 8;
        match [a, b, c, d] {
            [b'f', b'm', b't', b' '] => rate = Some(u32::from_le_bytes(bytes.array(body.checked_add(8)?)?)),
            [b'd', b'a', b't', b'a'] => {
                let there = bytes.len().saturating_sub(body).min(size);
                return rate.filter(|rate| *rate > 0).map(|rate| there as f64 / f64::from(rate));
            }
            _ => {}
        }
        // Chunks begin at even places.
        at = body.checked_add(size)?.checked_add(size % 2)?;
    }
    None
}

/// Its samples by its samples a second, where the encoder knew them.
fn flac_seconds(bytes: Bytes) -> Option<f64> {
    let [kind, ..]: [u8; 4] = bytes.array(4)?;
    // The first block is the one that says.
    if kind & 0x7f != 0 {
        return None;
    }
    // 20 bits of rate, 3 of channels, 5 of depth, 36 of samples.
    let packed = u64::from_be_bytes(bytes.array(18)?);
    let (rate, samples) = (packed >> 44, packed & 0xf_ffff_ffff);
    (rate > 0 && samples > 0).then(|| samples as f64 / rate as f64)
}

/// A WAV file with so many samples a second, bytes a sample, and samples.
#[cfg(test)]
pub fn wav(rate: u32, each: u32, samples: u32) -> Vec<u8> {
    let mut bytes = b"RIFF\0\0\0\0WAVELIST\x03\0\0\0abc\0fmt \x10\0\0\0\x01\0\x01\0".to_vec();
    bytes.extend([rate.to_le_bytes(), (rate * each).to_le_bytes()].concat());
    bytes.extend([each as u8, 0, 8 * each as u8, 0]);
    bytes.extend(b"data");
    bytes.extend((samples * each).to_le_bytes());
    bytes.extend(vec![0; (samples * each) as usize]);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use proptest::prelude::*;

    fn of(bytes: &[u8]) -> Option<f64> {
        seconds_of_base64(&STANDARD.encode(bytes))
    }

    #[test]
    fn a_wav_file_is_as_long_as_the_data_that_is_there() {
        let mut file = wav(8000, 2, 12_000);
        assert_eq!(of(&file), Some(1.5));
        file.truncate(file.len() - 8000);
        assert_eq!(of(&file), Some(1.0), "cut off");
        assert_eq!(of(&wav(0, 2, 10)), None);
        assert_eq!(of(b"RIFF\0\0\0\0WAVEdata\x04\0\0\0abcd"), None, "no format");
    }

    #[test]
    fn a_flac_file_says_its_samples() {
        let mut file = b"fLaC\0\0\0\x22".to_vec();
        file.extend([0; 10]);
        file.extend((44_100_u64 << 44 | 1 << 41 | 15 << 36 | 88_200).to_be_bytes());
        file.extend([0; 16]);
        assert_eq!(of(&file), Some(2.0));
        file[4] = 4;
        assert_eq!(of(&file), None, "another block first");
        assert_eq!(of(b"OggS\0\0\0\0\0\0\0\0\0\0\0\0"), None);
        assert_eq!(seconds_of_url("http://example.com/x.wav"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..200), wav in any::<bool>()) {
            let head: &[u8] = if wav { b"RIFF\0\0\0\0WAVE" } else { b"fLaC\0\0\0\x22" };
            let length = of(&[head, &bytes].concat());
            prop_assert!(length.is_none_or(|seconds| seconds.is_finite() && seconds >= 0.0));
        }
    }
}
