//! What Python's `str` does.

use minijinja::value::{Rest, Value, from_args};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::markup::like;
use super::objects::{Kind, View, Which, kind, type_error, type_name};
use super::operators::{items, paid};

/// Python's methods of `str`, `dict` and `list`, for minijinja's callback.
pub fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    match kind(value) {
        Kind::Str => of_text(state, value, name, args),
        Kind::Dict => match name {
            "items" | "keys" | "values" => {
                let () = from_args(args)?;
                let which = match name {
                    "items" => Which::Items,
                    "keys" => Which::Keys,
                    _ => Which::Values,
                };
                Ok(View::of(value, which))
            }
            "copy" => {
                let () = from_args(args)?;
                Ok(value.clone())
            }
            _ => unknown_method_callback(state, value, name, args),
        },
        Kind::List | Kind::Tuple => match name {
            "index" => {
                let (what,): (&Value,) = from_args(args)?;
                let found = items(state, value)?.iter().position(|item| item == what);
                found.map(Value::from).ok_or_else(|| type_error("the value is not in the list".to_owned()))
            }
            _ => unknown_method_callback(state, value, name, args),
        },
        _ => unknown_method_callback(state, value, name, args),
    }
}

fn of_text(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let text = value.as_str().unwrap_or_default();
    Ok(match name {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<Value>,) = from_args(args)?;
            let chars = chars.filter(|chars| !chars.is_none());
            let ends = (name != "rstrip", name != "lstrip");
            like(value, strip(text, chars.as_ref(), ends)?.to_owned())
        }
        "split" | "rsplit" => return split(state, value, name == "rsplit", args),
        "splitlines" => {
            let (keep,): (Option<Value>,) = from_args(args)?;
            let lines = lines(text, keep.is_some_and(|keep| keep.is_true()));
            lines.into_iter().map(|line| like(value, line.to_owned())).collect()
        }
        "partition" | "rpartition" => {
            let (between,): (&str,) = from_args(args)?;
            if between.is_empty() {
                return Err(type_error("empty separator".to_owned()));
            }
            let found =
                if name == "partition" { text.split_once(between) } else { text.rsplit_once(between) };
            let parts = match (found, name) {
                (Some((before, after)), _) => [before, between, after],
                (None, "partition") => [text, "", ""],
                (None, _) => ["", "", text],
            };
            Value::from(minijinja::value::Tuple::from(parts.map(|part| like(value, part.to_owned()))))
        }
        "removeprefix" | "removesuffix" => {
            let (part,): (&str,) = from_args(args)?;
            let cut = if name == "removeprefix" { text.strip_prefix(part) } else { text.strip_suffix(part) };
            like(value, cut.unwrap_or(text).to_owned())
        }
        "replace" => {
            let (old, new, count): (&Value, &Value, Option<Value>) = from_args(args)?;
            let (Some(old), Some(new)) = (old.as_str(), new.as_str()) else {
                return Err(type_error("replace() arguments must be str".to_owned()));
            };
            like(value, replaced(state, text, (old, new), count.as_ref())?)
        }
        "upper" | "lower" | "capitalize" => {
            let () = from_args(args)?;
            like(
                value,
                match name {
                    "upper" => text.to_uppercase(),
                    "lower" => text.to_lowercase(),
                    _ => capitalize(text),
                },
            )
        }
        "isspace" => {
            let () = from_args(args)?;
            Value::from(!text.is_empty() && text.chars().all(is_space))
        }
        "startswith" | "endswith" => {
            let (parts,): (&Value,) = from_args(args)?;
            Value::from(has_end(text, parts, name == "startswith")?)
        }
        "join" => {
            let (values,): (&Value,) = from_args(args)?;
            return joined(state, value, values);
        }
        _ => return unknown_method_callback(state, value, name, args),
    })
}

fn has_end(text: &str, parts: &Value, start: bool) -> Result<bool, Error> {
    let has = |part: &str| if start { text.starts_with(part) } else { text.ends_with(part) };
    let wrong = || type_error("the argument must be str or a tuple of str".to_owned());
    if let Some(part) = parts.as_str() {
        return Ok(has(part));
    }
    if kind(parts) != Kind::Tuple {
        return Err(wrong());
    }
    for part in parts.try_iter()? {
        if has(part.as_str().ok_or_else(wrong)?) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn joined(state: &State, between: &Value, values: &Value) -> Result<Value, Error> {
    let mut out = String::new();
    for (at, item) in items(state, values)?.iter().enumerate() {
        let Some(text) = item.as_str() else {
            let name = type_name(item);
            return Err(type_error(format!("sequence item {at}: expected str instance, {name} found")));
        };
        let before = out.len();
        out.push_str(if at == 0 { "" } else { between.as_str().unwrap_or_default() });
        out.push_str(text);
        paid(state, out.len() - before)?;
    }
    Ok(like(between, out))
}

/// `str.split` and `str.rsplit`.
fn split(state: &State, value: &Value, right: bool, args: &[Value]) -> Result<Value, Error> {
    let (args, kwargs): (Rest<Value>, minijinja::value::Kwargs) = from_args(args)?;
    let argument = |at: usize, name: &str| -> Result<Option<Value>, Error> {
        let given = kwargs.get::<Option<Value>>(name)?.or_else(|| args.get(at).cloned());
        Ok(given.filter(|given| !given.is_none()))
    };
    let (between, most) = (argument(0, "sep")?, argument(1, "maxsplit")?);
    kwargs.assert_all_used()?;
    let most = match most {
        Some(most) => usize::try_from(i64::try_from(most)?).unwrap_or(usize::MAX),
        None => usize::MAX,
    };
    let text = value.as_str().unwrap_or_default();
    let parts: Vec<&str> = match &between {
        Some(between) => match between.as_str() {
            Some("") => return Err(type_error("empty separator".to_owned())),
            Some(between) if right => {
                let mut parts: Vec<&str> = text.rsplitn(most.saturating_add(1), between).collect();
                parts.reverse();
                parts
            }
            Some(between) => text.splitn(most.saturating_add(1), between).collect(),
            None => return Err(type_error(format!("must be str or None, not {}", type_name(between)))),
        },
        None => words(text, most, right),
    };
    paid(state, parts.len().saturating_mul(32))?;
    Ok(parts.into_iter().map(|part| like(value, part.to_owned())).collect())
}

/// The parts between white space, at most so many cuts made.
fn words(text: &str, most: usize, right: bool) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text;
    loop {
        rest = if right { rest.trim_end_matches(is_space) } else { rest.trim_start_matches(is_space) };
        if rest.is_empty() {
            break;
        }
        if parts.len() == most {
            parts.push(rest);
            break;
        }
        let cut = if right {
            rest.char_indices().rev().find(|(_, c)| is_space(*c)).map(|(at, c)| (at + c.len_utf8(), at))
        } else {
            rest.char_indices().find(|(_, c)| is_space(*c)).map(|(at, c)| (at, at + c.len_utf8()))
        };
        match (cut, right) {
            (None, _) => {
                parts.push(rest);
                break;
            }
            (Some((end, next)), false) => {
                parts.push(&rest[..end]);
                rest = &rest[next..];
            }
            (Some((start, before)), true) => {
                parts.push(&rest[start..]);
                rest = &rest[..before];
            }
        }
    }
    if right {
        parts.reverse();
    }
    parts
}

/// White space by Python's `str.isspace`.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

/// Strips white space, or the given characters, off the start, the end or both.
pub fn strip<'t>(text: &'t str, chars: Option<&Value>, (start, end): (bool, bool)) -> Result<&'t str, Error> {
    let set = match chars {
        Some(chars) => match chars.as_str() {
            Some(chars) => Some(chars),
            None => return Err(Error::new(ErrorKind::InvalidOperation, "strip arg must be None or str")),
        },
        None => None,
    };
    let goes = |c: char| set.map_or_else(|| is_space(c), |set| set.contains(c));
    let text = if start { text.trim_start_matches(goes) } else { text };
    Ok(if end { text.trim_end_matches(goes) } else { text })
}

/// `str.splitlines`.
pub fn lines(text: &str, keep: bool) -> Vec<&str> {
    let ends = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut all = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(ends) {
        let length = if rest[at..].starts_with("\r\n") {
            2
        } else {
            rest[at..].chars().next().map_or(1, char::len_utf8)
        };
        all.push(if keep { &rest[..at + length] } else { &rest[..at] });
        rest = &rest[at + length..];
    }
    if !rest.is_empty() {
        all.push(rest);
    }
    all
}

/// `str.capitalize`.
pub fn capitalize(text: &str) -> String {
    let mut chars = text.chars();
    let Some(first) = chars.next() else { return String::new() };
    let mut out: String = first.to_uppercase().collect();
    out.push_str(&chars.as_str().to_lowercase());
    out
}

/// `str.replace`, paid for before it is made.
pub fn replaced(
    state: &State,
    text: &str,
    (old, new): (&str, &str),
    count: Option<&Value>,
) -> Result<String, Error> {
    let count = match count.filter(|count| !count.is_none()) {
        Some(count) => usize::try_from(i64::try_from(count.clone())?).unwrap_or(usize::MAX),
        None => usize::MAX,
    };
    let most = (text.len() / old.len().max(1) + 1).min(count);
    paid(state, most.saturating_mul(new.len().saturating_sub(old.len())).saturating_add(text.len()))?;
    Ok(text.replacen(old, new, count))
}

/// Python's `int` of a text.
pub fn int(text: &str, base: u32) -> Option<Value> {
    let text = text.trim_matches(is_space);
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if !(2..=36).contains(&base) || digits.starts_with('_') || digits.ends_with('_') || digits.contains("__")
    {
        return None;
    }
    let digits = digits.replace('_', "");
    if !digits.chars().all(|c| c.is_digit(base)) {
        return None;
    }
    let number = i128::from_str_radix(&digits, base).ok()?;
    let number = if negative { number.checked_neg()? } else { number };
    Some(i64::try_from(number).map_or_else(|_| Value::from(number), Value::from))
}

/// Python's `float` of a text.
pub fn float(text: &str) -> Option<f64> {
    let text = text.trim_matches(is_space);
    if text.starts_with('_') || text.ends_with('_') || text.contains("__") {
        return None;
    }
    text.replace('_', "").parse().ok()
}

/// Python's `int` of a float.
pub fn whole(number: f64) -> Option<Value> {
    if !number.is_finite() || number.abs() > 1e38 {
        return None;
    }
    let number = number.trunc() as i128;
    Some(i64::try_from(number).map_or_else(|_| Value::from(number), Value::from))
}

/// A number, of which truth is one.
pub fn plain(value: &Value) -> Value {
    match kind(value) {
        Kind::Bool => Value::from(i64::from(value.is_true())),
        _ => value.clone(),
    }
}

/// A number as a float.
pub fn number(value: &Value) -> Result<f64, Error> {
    f64::try_from(plain(value))
}
