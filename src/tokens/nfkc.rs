//! Brings a text to NFKC, at the cost of what is not in it already.
//!
//! ASCII stands for itself, and no character composes with an ASCII one behind it (Unicode 16, annex 15, "stable code
//! points": quick check yes, combining class 0). So a text may be cut before each ASCII character, and only the
//! stretches of others, each with the ASCII character before it that may compose with them, are looked at; those
//! that the quick check finds in NFKC are left alone.

use std::borrow::Cow;

use unicode_normalization_alignments::{IsNormalized, UnicodeNormalization as _, is_nfkc_quick};

/// The text in NFKC, by the tables that the reference library goes by.
pub fn nfkc(text: &str) -> Cow<'_, str> {
    let bytes = text.as_bytes();
    let mut changed = String::new();
    // What is before `done` is in `changed`; what is before `at` was looked at.
    let (mut done, mut at) = (0, 0);
    while let Some(step) = bytes[at..].iter().position(|byte| !byte.is_ascii()) {
        let first = at + step;
        let start = if first > at { first - 1 } else { first };
        let end = bytes[first..].iter().position(u8::is_ascii).map_or(bytes.len(), |length| first + length);
        let stretch = &text[start..end];
        if !matches!(is_nfkc_quick(stretch.chars()), IsNormalized::Yes) {
            changed.reserve(text.len() - done);
            changed.push_str(&text[done..start]);
            changed.extend(stretch.nfkc().map(|(c, _)| c));
            done = end;
        }
        at = end;
    }
    if done == 0 {
        return Cow::Borrowed(text);
    }
    changed.push_str(&text[done..]);
    Cow::Owned(changed)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn plain(text: &str) -> String {
        text.nfkc().map(|(c, _)| c).collect()
    }

    #[test]
    fn each_character_alone_and_between_others_is_as_the_library_makes_it() {
        for c in (0..0x0003_0000).filter_map(char::from_u32) {
            for text in [format!("{c}"), format!("a{c}\u{301}b"), format!("가{c}ㅏ\u{11A8}")] {
                assert_eq!(nfkc(&text), plain(&text), "{text:?}");
            }
        }
    }

    #[test]
    fn what_is_in_nfkc_is_not_copied() {
        for text in ["", "plain", "naïve 的 text — “quoted”", "é"] {
            assert!(matches!(nfkc(text), Cow::Borrowed(same) if same == text), "{text:?}");
        }
        assert_eq!(nfkc("x ﬁ y…\u{301}"), "x fi y...\u{301}");
    }

    proptest! {
        #[test]
        fn any_text_is_as_the_library_makes_it(
            text in "(\\PC|[a-e]|[\u{300}-\u{345}]|[\u{1100}-\u{11FF}]|[가-힣]|[\u{F900}-\u{FAFF}]|[ﬀ-ﭏ]|[！-｠]|\u{200d}){0,40}"
        ) {
            prop_assert_eq!(nfkc(&text), plain(&text));
        }
    }
}
