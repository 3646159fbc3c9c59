//! Reads single JSON values as leniently as the engines' own validation does (pydantic 2, lax mode).
//!
//! Each function takes the text of one JSON value and answers `None` where the engine would refuse
//! it as well.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// The kind of a JSON value, in words, by its first character.
pub fn kind(raw: &str) -> &'static str {
    match raw.as_bytes().first() {
        Some(b'{') => "an object",
        Some(b'[') => "an array",
        Some(b'"') => "a string",
        Some(b't' | b'f') => "a boolean",
        Some(b'n') => "null",
        _ => "a number",
    }
}

/// An integer: a number without fraction, a string of digits, or a boolean.
pub fn int(raw: &str) -> Option<i128> {
    match raw.as_bytes().first()? {
        b't' => Some(1),
        b'f' => Some(0),
        b'"' => text(raw)?.trim().parse().ok(),
        _ => raw.parse::<i128>().ok().or_else(|| integral(raw.parse().ok()?)),
    }
}

fn integral(number: f64) -> Option<i128> {
    (number.fract() == 0.0 && number.abs() < 1e30).then_some(number as i128)
}

/// A boolean: also 0 and 1, and the words that pydantic takes.
pub fn boolean(raw: &str) -> Option<bool> {
    let word = match raw.as_bytes().first()? {
        b't' => return Some(true),
        b'f' => return Some(false),
        b'"' => text(raw)?.to_ascii_lowercase(),
        _ => Cow::Borrowed(raw).trim_end_matches(".0").to_owned(),
    };
    match word.as_str() {
        "1" | "on" | "t" | "true" | "y" | "yes" => Some(true),
        "0" | "off" | "f" | "false" | "n" | "no" => Some(false),
        _ => None,
    }
}

/// A string.
pub fn text(raw: &str) -> Option<String> {
    serde_json::from_str(raw).ok()
}

/// The number of entries of an array or object; 0 for anything else.
pub fn entries(raw: &str) -> u32 {
    serde_json::from_str::<Entries>(raw).map_or(0, |e| e.0)
}

/// The value of one key of an object, where it is a string.
pub fn member_text(raw: &str, key: &'static str) -> Option<String> {
    let mut found = None;
    members(raw, |name, value| {
        if name == key {
            found = text(value);
        }
    });
    found
}

/// Calls `each` with every key and value of an object; does nothing for anything else.
pub fn members(raw: &str, each: impl FnMut(&str, &str)) {
    struct Each<F>(F);
    impl<'de, F: FnMut(&str, &str)> Visitor<'de> for Each<F> {
        type Value = ();
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }
        fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
            while let Some(key) = map.next_key::<Cow<'de, str>>()? {
                let value = map.next_value::<&serde_json::value::RawValue>()?;
                (self.0)(&key, value.get());
            }
            Ok(())
        }
    }
    let _ = serde_json::Deserializer::from_str(raw).deserialize_map(Each(each));
}

/// Counts without keeping.
struct Entries(u32);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Count;
        impl<'de> Visitor<'de> for Count {
            type Value = Entries;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array or object")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Entries, A::Error> {
                let mut count = 0_u32;
                while seq.next_element::<IgnoredAny>()?.is_some() {
                    count = count.saturating_add(1);
                }
                Ok(Entries(count))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut count = 0_u32;
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
                    count = count.saturating_add(1);
                }
                Ok(Entries(count))
            }
        }
        deserializer.deserialize_any(Count)
    }
}

/// What an array given as `prompt` holds: texts are kept, token ids are only counted.
#[derive(Debug, Default)]
pub struct Listed {
    /// Its strings.
    pub texts: Vec<String>,
    /// How many elements are, or pass for, a token id.
    pub ids: usize,
    /// The lengths of its lists of token ids.
    pub lists: Vec<usize>,
    /// Elements.
    pub len: usize,
}

/// Reads an array given as `prompt` in one pass; `Err` where its text is not JSON after all.
pub fn listed(raw: &str) -> Result<Listed, serde_json::Error> {
    let mut listed = Listed::default();
    serde_json::Deserializer::from_str(raw).deserialize_seq(Outer(&mut listed))?;
    Ok(listed)
}

struct Outer<'l>(&'l mut Listed);

impl<'de> Visitor<'de> for Outer<'_> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element_seed(Element { listed: self.0, nested: false })?.is_some() {
            self.0.len += 1;
        }
        Ok(())
    }
}

/// One element of the array (or, nested, of a list in it).
struct Element<'l> {
    listed: &'l mut Listed,
    nested: bool,
}

impl<'de> DeserializeSeed<'de> for Element<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Element<'_> {
    fn id(self, fine: bool) {
        self.listed.ids += usize::from(fine);
    }
}

impl<'de> Visitor<'de> for Element<'_> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }
    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        self.id(true);
        Ok(())
    }
    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        self.id(true);
        Ok(())
    }
    fn visit_i64<E>(self, id: i64) -> Result<(), E> {
        self.id(id >= 0);
        Ok(())
    }
    fn visit_f64<E>(self, id: f64) -> Result<(), E> {
        self.id(id >= 0.0 && id.fract() == 0.0);
        Ok(())
    }
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        let number = text.trim().parse::<u128>().is_ok();
        self.listed.ids += usize::from(number);
        if !self.nested {
            self.listed.texts.push(text.to_owned());
        }
        Ok(())
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        if self.nested {
            while seq.next_element::<IgnoredAny>()?.is_some() {}
            return Ok(());
        }
        let mut inner = Listed::default();
        while seq.next_element_seed(Element { listed: &mut inner, nested: true })?.is_some() {
            inner.len += 1;
        }
        if inner.ids == inner.len {
            self.listed.lists.push(inner.len);
        }
        Ok(())
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(())
    }
}

/// Whether JSON text may hold more than `most` values: every value but the first follows a `,`, `:`, `[`
/// or `{` outside strings. Text too short for so many is not looked at.
pub fn values_over(raw: &str, most: usize) -> bool {
    if raw.len() <= most {
        return false;
    }
    let (mut inside, mut escaped, mut found) = (false, false, 0);
    for byte in raw.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if inside => escaped = true,
            b'"' => inside = !inside,
            b',' | b':' | b'[' | b'{' if !inside => found += 1,
            _ => {}
        }
    }
    found > most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_and_booleans_are_read_as_pydantic_reads_them() {
        let ints = [("5", 5), ("5.0", 5), ("\"5\"", 5), ("-1", -1), ("true", 1), ("1e3", 1000)];
        for (raw, want) in ints {
            assert_eq!(int(raw), Some(want), "{raw}");
        }
        for raw in ["5.5", "\"x\"", "[1]", "null", "1e400", "{}"] {
            assert_eq!(int(raw), None, "{raw}");
        }
        for raw in ["true", "1", "1.0", "\"Yes\"", "\"on\""] {
            assert_eq!(boolean(raw), Some(true), "{raw}");
        }
        for raw in ["null", "2", "\"maybe\"", "[]"] {
            assert_eq!(boolean(raw), None, "{raw}");
        }
    }
}
