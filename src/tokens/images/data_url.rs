//! Data URLs, looked into without being decoded as a whole.

use std::ops::Range;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// What vLLM 0.32 decodes with (`pybase64.b64decode(…, validate=True)`): padded, the standard alphabet.
const ENGINE: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::RequireCanonical)
        .with_decode_allow_trailing_bits(true),
);

/// The bytes behind base64 text. Any place can be read at the cost of that place alone: four
/// characters are three bytes, wherever they stand.
#[derive(Debug, Clone, Copy)]
pub struct Bytes<'a> {
    text: &'a [u8],
    len: usize,
}

impl<'a> Bytes<'a> {
    /// The image in a URL; nothing for other URLs and for data that is not base64, which vLLM
    /// 0.32.0 (`multimodal/media/connector.py` `_load_data_url`) refuses.
    pub fn of_url(url: &'a str) -> Option<Self> {
        let scheme = url.as_bytes().get(..5)?;
        if !scheme.eq_ignore_ascii_case(b"data:") {
            return None;
        }
        let (head, data) = url[5..].split_once(',')?;
        let (_, encoding) = head.rsplit_once(';')?;
        (encoding == "base64").then(|| Self::of_base64(data)).flatten()
    }

    /// The bytes behind base64 text. Only what is read is checked, and the length.
    pub fn of_base64(text: &'a str) -> Option<Self> {
        let text = text.as_bytes();
        if !text.len().is_multiple_of(4) {
            return None;
        }
        let padding = text.iter().rev().take(2).take_while(|byte| **byte == b'=').count();
        Some(Self { text, len: text.len() / 4 * 3 - padding })
    }

    /// How many bytes there are.
    pub const fn len(self) -> usize {
        self.len
    }

    /// `N` bytes from a place on, at most 45; nothing where there are fewer.
    pub fn array<const N: usize>(self, at: usize) -> Option<[u8; N]> {
        // 45 bytes lie in at most 16 groups of three.
        let mut buffer = [0; 48];
        let first = at / 3 * 3;
        let groups = self.groups(at..at.checked_add(N)?)?;
        let decoded = ENGINE.decode_slice(groups, &mut buffer).ok()?;
        buffer.get(..decoded)?.get(at - first..at - first + N)?.try_into().ok()
    }

    /// The bytes of a range; nothing where it does not lie within.
    pub fn vec(self, range: Range<usize>) -> Option<Vec<u8>> {
        let skip = range.start % 3;
        let len = range.len();
        let mut decoded = ENGINE.decode(self.groups(range)?).ok()?;
        decoded.drain(..skip);
        decoded.truncate(len);
        Some(decoded)
    }

    /// The text of the groups that hold a range.
    fn groups(self, range: Range<usize>) -> Option<&'a [u8]> {
        if range.end > self.len {
            return None;
        }
        self.text.get(range.start / 3 * 4..range.end.div_ceil(3) * 4)
    }
}

#[cfg(test)]
mod tests {
    use base64::prelude::BASE64_STANDARD;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_base64_data_urls_have_bytes() {
        let first = |url: &str| Bytes::of_url(url)?.array::<1>(0);
        assert_eq!(first("data:image/png;base64,QUJD"), Some(*b"A"));
        assert_eq!(first("DATA:;charset=x;base64,QUI="), Some(*b"A"));
        for url in [
            "https://example.com/a.png",
            "data:image/png,QUJD",
            "data:base64,QUJD",
            "data:image/png;base64;QUJD",
            "data:image/png;base64,QUJ",
            "data:image/png;base64,Q=JD",
            "data:image/png;base64,",
            "data",
            "dat\u{e4}:;base64,QUJD",
        ] {
            assert_eq!(first(url), None, "{url}");
        }
    }

    proptest! {
        #[test]
        fn any_place_reads_as_in_the_whole(
            bytes in proptest::collection::vec(any::<u8>(), 0..90), at in 0_usize..100, len in 0_usize..100,
        ) {
            let text = BASE64_STANDARD.encode(&bytes);
            let here = Bytes::of_base64(&text).unwrap();
            prop_assert_eq!(here.len(), bytes.len());
            prop_assert_eq!(here.vec(at..at + len), bytes.get(at..at + len).map(<[u8]>::to_vec));
            prop_assert_eq!(here.array::<1>(at).map(|a| a.to_vec()), bytes.get(at..at + 1).map(<[u8]>::to_vec));
            prop_assert_eq!(here.array::<8>(at).map(|a| a.to_vec()), bytes.get(at..at + 8).map(<[u8]>::to_vec));
            prop_assert_eq!(here.array::<45>(at).map(|a| a.to_vec()), bytes.get(at..at + 45).map(<[u8]>::to_vec));
        }

        #[test]
        fn any_text_is_read_without_panic(text in ".{0,40}", at in any::<usize>()) {
            let url = format!("data:;base64,{text}");
            if let Some(bytes) = Bytes::of_url(&url) {
                let _ = (bytes.array::<8>(at), bytes.vec(at..at.saturating_add(8)));
            }
        }
    }
}
