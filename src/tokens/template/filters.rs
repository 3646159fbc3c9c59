//! Jinja2's filters (3.1.6 `filters.py`) where minijinja's differ, with transformers' `tojson`.

use minijinja::filters as builtin;
use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};

use super::markup::{self, like};
use super::objects::{Kind, kind, type_error, type_name};
use super::operators::{paid, walked};
use super::sequences::attribute_of;
use super::{sequences, text};
use crate::tokens::python;

/// Adds them to an environment.
pub fn add_to(env: &mut Environment<'_>) {
    env.add_filter("tojson", tojson);
    env.add_filter("string", |state: &State, value: &Value| soft(state, value));
    env.add_filter("join", join);
    for name in ["length", "count"] {
        env.add_filter(name, length);
    }
    for name in ["e", "escape"] {
        env.add_filter(name, |state: &State, value: &Value| escaped(state, value, value.is_safe()));
    }
    env.add_filter("forceescape", |state: &State, value: &Value| escaped(state, value, false));
    env.add_filter("safe", |state: &State, value: &Value| -> Result<Value, Error> {
        let text = python::str(value)?;
        paid(state, text.len())?;
        Ok(Value::from_safe_string(text))
    });
    env.add_filter("trim", |state: &State, value: &Value, chars: Option<Value>| -> Result<Value, Error> {
        let text = soft(state, value)?;
        let chars = chars.filter(|chars| !chars.is_none());
        Ok(like(
            &text,
            text::strip(text.as_str().unwrap_or_default(), chars.as_ref(), (true, true))?.to_owned(),
        ))
    });
    env.add_filter("upper", |state: &State, value: &Value| changed(state, value, str::to_uppercase));
    env.add_filter("lower", |state: &State, value: &Value| changed(state, value, str::to_lowercase));
    env.add_filter("capitalize", |state: &State, value: &Value| changed(state, value, text::capitalize));
    env.add_filter("replace", replace);
    env.add_filter("abs", |value: &Value| builtin::abs(text::plain(value)));
    env.add_filter("round", round);
    env.add_filter("indent", indent);
    env.add_filter("int", int);
    env.add_filter("float", float);
    sequences::add_to(env);
}

/// `soft_str`: a text as it is, else Python's `str`.
fn soft(state: &State, value: &Value) -> Result<Value, Error> {
    if value.as_str().is_some() {
        return Ok(value.clone());
    }
    let text = python::str(value)?;
    paid(state, text.len())?;
    Ok(Value::from(text))
}

fn changed(state: &State, value: &Value, change: fn(&str) -> String) -> Result<Value, Error> {
    let text = soft(state, value)?;
    Ok(like(&text, change(text.as_str().unwrap_or_default())))
}

fn escaped(state: &State, value: &Value, done: bool) -> Result<Value, Error> {
    if done {
        return Ok(value.clone());
    }
    let mut out = String::new();
    markup::escape(soft(state, value)?.as_str().unwrap_or_default(), &mut out);
    paid(state, out.len())?;
    Ok(Value::from_safe_string(out))
}

fn length(value: &Value) -> Result<Value, Error> {
    let length = match kind(value) {
        Kind::Undefined => Some(0),
        Kind::Str => value.as_str().map(|text| text.chars().count()),
        Kind::List | Kind::Tuple | Kind::Dict | Kind::View => value.len(),
        _ => None,
    };
    let none = || type_error(format!("object of type '{}' has no len()", type_name(value)));
    length.map(Value::from).ok_or_else(none)
}

/// `tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
fn tojson(state: &State, value: Value, args: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let argument = |at: usize, name: &str| -> Result<Value, Error> {
        let by_name = kwargs.get::<Option<Value>>(name)?;
        Ok(by_name.or_else(|| args.get(at).cloned()).unwrap_or(Value::from(())))
    };
    let (ascii, indent) = (argument(0, "ensure_ascii")?, argument(1, "indent")?);
    let (separators, sorted) = (argument(2, "separators")?, argument(3, "sort_keys")?);
    kwargs.assert_all_used()?;
    if args.len() > 4 {
        return Err(type_error("tojson() takes 5 arguments at most".to_owned()));
    }
    let indent = match indent.kind() {
        ValueKind::None | ValueKind::Undefined => None,
        ValueKind::String => Some(indent.to_string()),
        ValueKind::Bool => Some(if indent.is_true() { " ".to_owned() } else { String::new() }),
        _ => Some(" ".repeat(i64::try_from(indent)?.clamp(0, 64) as usize)),
    };
    let (item, key) = match separators.kind() {
        ValueKind::None | ValueKind::Undefined => {
            (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned())
        }
        _ => (separators.get_item_by_index(0)?.to_string(), separators.get_item_by_index(1)?.to_string()),
    };
    let json = python::Json {
        indent: indent.as_deref(),
        item: &item,
        key: &key,
        ascii: ascii.is_true(),
        sorted: sorted.is_true(),
    };
    let text = json.dumps(&value)?;
    paid(state, text.len())?;
    Ok(text)
}

/// `join(value, d="", attribute=None)` with Python's `str` of each item.
fn join(state: &State, value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let by_name = kwargs.get::<Option<Value>>("d")?;
    let between = match by_name.as_ref().or_else(|| args.first()) {
        Some(joiner) => python::str(joiner)?,
        None => String::new(),
    };
    let attribute = kwargs.get::<Option<Value>>("attribute")?.or_else(|| args.get(1).cloned());
    kwargs.assert_all_used()?;
    let mut out = String::new();
    for (at, item) in walked(value)?.try_iter()?.checked().enumerate() {
        let item = match &attribute {
            Some(name) if !name.is_none() => attribute_of(&item?, name)?,
            _ => item?,
        };
        let before = out.len();
        out.push_str(if at == 0 { "" } else { &between });
        out.push_str(&python::str(&item)?);
        paid(state, 64 + out.len() - before)?;
    }
    Ok(out)
}

/// `replace(s, old, new, count=None)`: without escaping the result is plain.
fn replace(
    state: &State,
    value: &Value,
    old: &Value,
    new: &Value,
    count: Option<Value>,
) -> Result<Value, Error> {
    let (text, old, new) = (python::str(value)?, python::str(old)?, python::str(new)?);
    text::replaced(state, &text, (&old, &new), count.as_ref()).map(Value::from)
}

/// `indent(s, width=4, first=False, blank=False)`.
fn indent(state: &State, value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let argument = |at: usize, name: &str| -> Result<Option<Value>, Error> {
        Ok(kwargs.get::<Option<Value>>(name)?.or_else(|| args.get(at).cloned()))
    };
    let (width, first, blank) = (argument(0, "width")?, argument(1, "first")?, argument(2, "blank")?);
    kwargs.assert_all_used()?;
    let indention = match &width {
        None => "    ".to_owned(),
        Some(width) => match width.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(i64::try_from(width.clone())?.clamp(0, 4096) as usize),
        },
    };
    let yes = |flag: Option<Value>| flag.is_some_and(|flag| flag.is_true());
    let (first, blank) = (yes(first), yes(blank));
    let Some(text) = value.as_str() else {
        return Err(type_error(format!("cannot indent '{}'", type_name(value))));
    };
    let whole = [text, "\n"].concat();
    let mut out = String::with_capacity(whole.len());
    for (at, line) in text::lines(&whole, false).into_iter().enumerate() {
        out.push_str(if at == 0 { "" } else { "\n" });
        if (at == 0 && first) || (at > 0 && (blank || !line.is_empty())) {
            paid(state, indention.len())?;
            out.push_str(&indention);
        }
        out.push_str(line);
    }
    paid(state, out.len())?;
    Ok(like(value, out))
}

/// `int(value, default=0, base=10)`.
fn int(value: &Value, default: Option<Value>, base: Option<Value>) -> Result<Value, Error> {
    defined(value)?;
    let default = || default.clone().unwrap_or(Value::from(0));
    let base = base.map_or(Ok(10), u32::try_from)?;
    Ok(match kind(value) {
        Kind::Int => value.clone(),
        Kind::Bool => Value::from(i64::from(value.is_true())),
        Kind::Float => text::whole(f64::try_from(value.clone())?).unwrap_or_else(default),
        Kind::Str => {
            let text = value.as_str().unwrap_or_default();
            let whole = || text::float(text).and_then(text::whole);
            text::int(text, base).or_else(whole).unwrap_or_else(default)
        }
        _ => default(),
    })
}

/// `float(value, default=0.0)`.
fn float(value: &Value, default: Option<Value>) -> Result<Value, Error> {
    defined(value)?;
    let number = match kind(value) {
        Kind::Int | Kind::Float | Kind::Bool => Some(text::number(value)?),
        Kind::Str => text::float(value.as_str().unwrap_or_default()),
        _ => None,
    };
    Ok(number.map(Value::from).unwrap_or_else(|| default.unwrap_or(Value::from(0.0))))
}

/// minijinja's, with truth as a number.
fn round(
    value: &Value,
    precision: Option<i32>,
    method: Option<&str>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    builtin::round(text::plain(value), precision, method, kwargs)
}

fn defined(value: &Value) -> Result<(), Error> {
    match value.is_undefined() {
        true => Err(Error::new(ErrorKind::UndefinedError, "a number of an undefined value")),
        false => Ok(()),
    }
}
