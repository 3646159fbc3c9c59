//! Template values as Python would print them: `str`, `repr` and `json.dumps`.

use std::fmt::Write as _;

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};
use unicode_properties::{GeneralCategoryGroup, UnicodeGeneralCategory};

use super::template::objects::{Kind, View, Which, kind, type_name};

/// Nesting that is printed; deeper values are an error, as Python's recursion limit makes them.
const DEPTH: usize = 200;
/// Bytes of one printed value: small values that hold each other many times over print without end.
const PRINTED: usize = 64 << 20;

/// `str(value)`; Jinja2 prints an undefined value as nothing.
pub fn str(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    match value.kind() {
        ValueKind::String => return Ok(value.as_str().unwrap_or_default().to_owned()),
        ValueKind::Undefined => {}
        _ => repr(&mut out, value, DEPTH)?,
    }
    Ok(out)
}

fn repr(out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    let depth = deeper(depth)?;
    bounded(out)?;
    match kind(value) {
        Kind::Undefined => out.push_str("Undefined"),
        Kind::None => out.push_str("None"),
        Kind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        Kind::Int | Kind::Float => number(out, value, ["nan", "inf", "-inf"]),
        Kind::Str => {
            out.push_str(if value.is_safe() { "Markup(" } else { "" });
            quoted(out, value.as_str().unwrap_or_default());
            out.push_str(if value.is_safe() { ")" } else { "" });
        }
        Kind::List => all(out, value, ["[", "]"], depth)?,
        Kind::Tuple if value.len() == Some(1) => all(out, value, ["(", ",)"], depth)?,
        Kind::Tuple => all(out, value, ["(", ")"], depth)?,
        Kind::View => {
            let around = match value.downcast_object_ref::<View>().map(|view| view.which) {
                Some(Which::Keys) => "dict_keys([",
                Some(Which::Values) => "dict_values([",
                _ => "dict_items([",
            };
            all(out, value, [around, "])"], depth)?;
        }
        Kind::Dict => {
            out.push('{');
            for (at, key) in value.try_iter()?.enumerate() {
                out.push_str(if at == 0 { "" } else { ", " });
                repr(out, &key, depth)?;
                out.push_str(": ");
                repr(out, &value.get_item(&key)?, depth)?;
            }
            out.push('}');
        }
        // Python prints an address here, another one in each process.
        Kind::Generator => out.push_str("<generator object at 0x7f0000000000>"),
        Kind::Callable => drop(write!(out, "{value}")),
        // A namespace may hold itself; Python prints addresses of most others.
        Kind::Other => {
            return Err(Error::new(ErrorKind::InvalidOperation, "an object without a text is printed"));
        }
    }
    Ok(())
}

fn bounded(out: &str) -> Result<(), Error> {
    match out.len() > PRINTED {
        true => Err(Error::new(ErrorKind::OutOfFuel, "a value prints to more than 64 MiB")),
        false => Ok(()),
    }
}

fn all(out: &mut String, value: &Value, around: [&str; 2], depth: usize) -> Result<(), Error> {
    out.push_str(around[0]);
    for (at, item) in value.try_iter()?.checked().enumerate() {
        out.push_str(if at == 0 { "" } else { ", " });
        repr(out, &item?, depth)?;
    }
    out.push_str(around[1]);
    Ok(())
}

fn deeper(depth: usize) -> Result<usize, Error> {
    depth
        .checked_sub(1)
        .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "a value is nested too deeply"))
}

/// `repr` of a string: single quotes unless it holds those and no double ones.
fn quoted(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        let _ = match c {
            '\\' => write!(out, "\\\\"),
            '\n' => write!(out, "\\n"),
            '\r' => write!(out, "\\r"),
            '\t' => write!(out, "\\t"),
            c if c == quote => write!(out, "\\{c}"),
            c if printable(c) => write!(out, "{c}"),
            c if (c as u32) < 0x100 => write!(out, "\\x{:02x}", c as u32),
            c if (c as u32) < 0x1_0000 => write!(out, "\\u{:04x}", c as u32),
            c => write!(out, "\\U{:08x}", c as u32),
        };
    }
    out.push(quote);
}

/// `str.isprintable` of one character. Python 3.14 has the same Unicode 16; older ones know less of it.
fn printable(c: char) -> bool {
    use GeneralCategoryGroup::{Other, Separator};
    matches!(c, ' '..='~') || !matches!(c.general_category_group(), Other | Separator)
}

/// An integer or float; `odd` are the words for not-a-number and the infinities.
fn number(out: &mut String, value: &Value, odd: [&str; 3]) {
    if value.is_integer() {
        let _ = write!(out, "{value}");
        return;
    }
    match f64::try_from(value.clone()) {
        Ok(x) if x.is_nan() => out.push_str(odd[0]),
        Ok(x) if x.is_infinite() => out.push_str(odd[if x > 0.0 { 1 } else { 2 }]),
        Ok(x) => float(out, x),
        Err(_) => drop(write!(out, "{value}")),
    }
}

/// `repr` of a finite float: shortest digits; exponent form below 1e-4 and from 1e16 on.
fn float(out: &mut String, x: f64) {
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let _ = if x != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        write!(out, "{digits}e{sign}{:02}", exponent.abs())
    } else if x.fract() == 0.0 {
        write!(out, "{x:.1}")
    } else {
        write!(out, "{x}")
    };
}

/// The options of `json.dumps`.
pub struct Json<'o> {
    /// One level of indentation; `None` writes one line.
    pub indent: Option<&'o str>,
    /// Between items.
    pub item: &'o str,
    /// Between key and value.
    pub key: &'o str,
    /// Whether all but ASCII is escaped.
    pub ascii: bool,
    /// Whether keys are sorted.
    pub sorted: bool,
}

impl Json<'_> {
    /// `json.dumps(value, …)`.
    ///
    /// # Errors
    /// Where Python has one: undefined values, functions; and nesting beyond 200.
    pub fn dumps(&self, value: &Value) -> Result<String, Error> {
        let mut out = String::new();
        self.write(&mut out, value, 0)?;
        Ok(out)
    }

    fn write(&self, out: &mut String, value: &Value, level: usize) -> Result<(), Error> {
        deeper(DEPTH.saturating_sub(level))?;
        bounded(out)?;
        match kind(value) {
            Kind::None => out.push_str("null"),
            Kind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            Kind::Int | Kind::Float => number(out, value, ["NaN", "Infinity", "-Infinity"]),
            Kind::Str => self.string(out, value.as_str().unwrap_or_default()),
            Kind::List | Kind::Tuple => {
                let items = value.try_iter()?.map(|item| (None, item));
                self.all(out, ['[', ']'], items, level)?;
            }
            Kind::Dict => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sorted {
                    keys.sort();
                }
                let mut pairs = Vec::with_capacity(keys.len());
                for key in keys {
                    let item = value.get_item(&key)?;
                    pairs.push((Some(key), item));
                }
                self.all(out, ['{', '}'], pairs.into_iter(), level)?;
            }
            _ => {
                let why = format!("Object of type {} is not JSON serializable", type_name(value));
                return Err(Error::new(ErrorKind::InvalidOperation, why));
            }
        }
        Ok(())
    }

    fn all(
        &self,
        out: &mut String,
        around: [char; 2],
        items: impl Iterator<Item = (Option<Value>, Value)>,
        level: usize,
    ) -> Result<(), Error> {
        out.push(around[0]);
        let mut some = false;
        for (key, value) in items {
            out.push_str(if some { self.item } else { "" });
            some = true;
            self.line(out, level + 1);
            if let Some(key) = key {
                self.object_key(out, &key);
                out.push_str(self.key);
            }
            self.write(out, &value, level + 1)?;
        }
        if some {
            self.line(out, level);
        }
        out.push(around[1]);
        Ok(())
    }

    fn line(&self, out: &mut String, level: usize) {
        if let Some(indent) = self.indent {
            out.push('\n');
            for _ in 0..level {
                out.push_str(indent);
            }
        }
    }

    fn object_key(&self, out: &mut String, key: &Value) {
        match key.kind() {
            ValueKind::String => self.string(out, key.as_str().unwrap_or_default()),
            ValueKind::Bool => self.string(out, if key.is_true() { "true" } else { "false" }),
            ValueKind::None => self.string(out, "null"),
            _ => {
                let mut text = String::new();
                number(&mut text, key, ["NaN", "Infinity", "-Infinity"]);
                self.string(out, &text);
            }
        }
    }

    fn string(&self, out: &mut String, text: &str) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if (c as u32) < 0x20 || (self.ascii && (c as u32) > 0x7e) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(json: &str) -> Value {
        Value::from(minijinja::value::Serde(serde_json::from_str::<serde_json::Value>(json).unwrap()))
    }

    #[test]
    fn floats_are_written_as_python_writes_them() {
        let cases = [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (1e-5, "1e-05"),
            (0.0001, "0.0001"),
            (1e22, "1e+22"),
            (1e16, "1e+16"),
            (1e15, "1000000000000000.0"),
            (1.5e300, "1.5e+300"),
            (0.1, "0.1"),
            (123.456, "123.456"),
        ];
        for (x, want) in cases {
            let mut out = String::new();
            float(&mut out, x);
            assert_eq!(out, want);
        }
    }

    #[test]
    fn values_are_printed_as_python_prints_them() {
        let all = value(r#"{"a": [1, 1.0, null, true, "it's", "q\""], "b": {}}"#);
        assert_eq!(str(&all).unwrap(), r#"{'a': [1, 1.0, None, True, "it's", 'q"'], 'b': {}}"#);
        assert_eq!(str(&Value::UNDEFINED).unwrap(), "");
        assert_eq!(str(&value("\"x\"")).unwrap(), "x");
        let odd =
            Value::from(vec!["a\u{7f}\u{a0}\u{ad}\u{200b}\u{3000}\u{e000}\u{1d173}\u{e0041}é日😀\n\t\\"]);
        let want = r"['a\x7f\xa0\xad\u200b\u3000\ue000\U0001d173\U000e0041é日😀\n\t\\']";
        assert_eq!(str(&odd).unwrap(), want);
    }

    #[test]
    fn json_is_dumped_as_python_dumps_it() {
        let plain = Json { indent: None, item: ", ", key: ": ", ascii: false, sorted: false };
        let all = value("{\"b\": [1, 1e22, \"é<&>\\u0001\"], \"a\": {}, \"c\": []}");
        let one_line = "{\"b\": [1, 1e+22, \"é<&>\\u0001\"], \"a\": {}, \"c\": []}";
        assert_eq!(plain.dumps(&all).unwrap(), one_line);
        let wide = Json { indent: Some("  "), item: ",", key: ": ", ascii: true, sorted: true };
        let many = "{\n  \"a\": {},\n  \"b\": [\n    1,\n    1e+22,\n    \"\\u00e9<&>\\u0001\"\n  ],\n  \"c\": []\n}";
        assert_eq!(wide.dumps(&all).unwrap(), many);
        assert!(plain.dumps(&Value::UNDEFINED).is_err());
    }
}
