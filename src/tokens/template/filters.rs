//! Jinja2's filters (3.1.6 `filters.py`) where minijinja's differ, with transformers' `tojson`.

use minijinja::filters as builtin;
use minijinja::value::{Kwargs, Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State};

use super::markup::{self, like};
use super::objects::{Generator, Kind, View, Which, kind, type_error, type_name};
use super::operators::{items, ordered, paid, sum_of_two, walked};
use super::text;
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
    lists(env);
    lazy(env);
}

fn lists(env: &mut Environment<'_>) {
    env.add_filter("list", |state: &State, value: &Value| items(state, value).map(Value::from));
    env.add_filter("first", |state: &State, value: &Value| -> Result<Value, Error> {
        state.consume_fuel(1)?;
        walked(value)?.try_iter()?.checked().next().unwrap_or(Ok(Value::UNDEFINED))
    });
    env.add_filter("last", |state: &State, value: &Value| -> Result<Value, Error> {
        if kind(value) == Kind::Generator {
            return Err(type_error("'generator' object is not reversible".to_owned()));
        }
        Ok(items(state, value)?.pop().unwrap_or(Value::UNDEFINED))
    });
    env.add_filter("reverse", |state: &State, value: &Value| -> Result<Value, Error> {
        if let Some(text) = value.as_str() {
            return Ok(like(value, text.chars().rev().collect()));
        }
        let mut all = items(state, value)?;
        all.reverse();
        Ok(Generator::of(all))
    });
    env.add_filter(
        "sum",
        |state: &State, value: &Value, attribute: Option<Value>, start: Option<Value>, kwargs: Kwargs| {
            let named = |given: Option<Value>, name: &str| -> Result<Option<Value>, Error> {
                Ok(given.or(kwargs.get::<Option<Value>>(name)?).filter(|given| !given.is_none()))
            };
            let (path, start) = (named(attribute, "attribute")?, named(start, "start")?);
            kwargs.assert_all_used()?;
            items(state, value)?.iter().try_fold(start.unwrap_or(Value::from(0)), |sum, item| match &path {
                Some(path) => sum_of_two(state, &sum, &attribute_of(item, path)?),
                None => sum_of_two(state, &sum, item),
            })
        },
    );
    env.add_filter("sort", |state: &State, value: &Value, kwargs: Kwargs| -> Result<Value, Error> {
        let all = items(state, value)?;
        if kwargs.peek::<Option<Value>>("attribute")?.is_none() {
            comparable(&all)?;
        }
        builtin::sort(state, Value::from(all), kwargs)
    });
    for (name, found) in [("min", builtin::min as Extreme), ("max", builtin::max as Extreme)] {
        env.add_filter(name, move |state: &State, value: &Value, kwargs: Kwargs| -> Result<Value, Error> {
            let all = items(state, value)?;
            if kwargs.peek::<Option<Value>>("attribute")?.is_none() {
                comparable(&all)?;
            }
            found(state, Value::from(all), kwargs)
        });
    }
    env.add_filter("dictsort", |state: &State, value: &Value, args: Rest<Value>, kwargs: Kwargs| {
        dictsort(state, value, &args, &kwargs)
    });
}

type Extreme = fn(&State, Value, Kwargs) -> Result<Value, Error>;

/// Filters that answer a generator.
fn lazy(env: &mut Environment<'_>) {
    env.add_filter("items", |value: &Value| -> Result<Value, Error> {
        match kind(value) {
            Kind::Undefined => Ok(Generator::of(Vec::new())),
            Kind::Dict => Ok(Generator::of(View::of(value, Which::Items).try_iter()?.collect())),
            _ => {
                let error = type_error("can only get item pairs from a mapping".to_owned());
                Ok(Generator::or_fails(Err(error)))
            }
        }
    });
    env.add_filter("map", |state: &mut State, value: &Value, args: Rest<ValueOrKwargs>| {
        let all = some(state, value).and_then(|all| builtin::map(state, Value::from(all), args));
        unless_endless(all)
    });
    env.add_filter("unique", |state: &mut State, value: &Value, kwargs: Kwargs| -> Result<Value, Error> {
        unless_endless(items(state, value).and_then(|all| {
            if let Some(item) = all.iter().find(|item| matches!(kind(item), Kind::List | Kind::Dict)) {
                return Err(type_error(format!("unhashable type: '{}'", type_name(item))));
            }
            Ok(builtin::unique(state, Value::from(all), kwargs)?.try_iter()?.collect())
        }))
    });
    env.add_filter("select", |state: &mut State, value: &Value, test: Option<Value>, args: Rest<Value>| {
        picked(state, value, Pick { attribute: None, test, args: &args, keep: true })
    });
    env.add_filter("reject", |state: &mut State, value: &Value, test: Option<Value>, args: Rest<Value>| {
        picked(state, value, Pick { attribute: None, test, args: &args, keep: false })
    });
    env.add_filter(
        "selectattr",
        |state: &mut State, value: &Value, name: Value, test: Option<Value>, args: Rest<Value>| {
            picked(state, value, Pick { attribute: Some(name), test, args: &args, keep: true })
        },
    );
    env.add_filter(
        "rejectattr",
        |state: &mut State, value: &Value, name: Value, test: Option<Value>, args: Rest<Value>| {
            picked(state, value, Pick { attribute: Some(name), test, args: &args, keep: false })
        },
    );
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

/// Whether Python would sort these.
fn comparable(all: &[Value]) -> Result<(), Error> {
    all.windows(2).try_for_each(|pair| ordered("<", &pair[0], &pair[1]))
}

/// `dictsort(value, case_sensitive=False, by="key", reverse=False)`.
fn dictsort(state: &State, value: &Value, args: &[Value], kwargs: &Kwargs) -> Result<Value, Error> {
    let argument = |at: usize, name: &str| -> Result<Option<Value>, Error> {
        Ok(kwargs.get::<Option<Value>>(name)?.or_else(|| args.get(at).cloned()))
    };
    let case = argument(0, "case_sensitive")?.is_some_and(|flag| flag.is_true());
    let at = match argument(1, "by")?.as_ref().map(Value::as_str) {
        None | Some(Some("key")) => 0,
        Some(Some("value")) => 1,
        _ => return Err(type_error("You can only sort by either \"key\" or \"value\"".to_owned())),
    };
    let reverse = argument(2, "reverse")?.is_some_and(|flag| flag.is_true());
    kwargs.assert_all_used()?;
    if kind(value) != Kind::Dict {
        return Err(type_error(format!("'{}' object has no attribute 'items'", type_name(value))));
    }
    let mut pairs = Vec::new();
    for pair in items(state, &View::of(value, Which::Items))? {
        let key = pair.get_item_by_index(at)?;
        let key = match key.as_str() {
            Some(text) if !case => Value::from(text.to_lowercase()),
            _ => key,
        };
        pairs.push((key, pair));
    }
    let keys: Vec<Value> = pairs.iter().map(|(key, _)| key.clone()).collect();
    comparable(&keys)?;
    state.consume_fuel((pairs.len() as u64).saturating_mul(u64::from(pairs.len().max(1).ilog2())))?;
    match reverse {
        true => pairs.sort_by(|a, b| b.0.cmp(&a.0)),
        false => pairs.sort_by(|a, b| a.0.cmp(&b.0)),
    }
    Ok(pairs.into_iter().map(|(_, pair)| pair).collect())
}

/// The items; none where the value is false, whatever it is (`select_or_reject`, `sync_do_map`).
fn some(state: &State, value: &Value) -> Result<Vec<Value>, Error> {
    if value.is_true() { items(state, value) } else { Ok(Vec::new()) }
}

/// What `select` and its kin look for.
struct Pick<'a> {
    attribute: Option<Value>,
    test: Option<Value>,
    args: &'a [Value],
    keep: bool,
}

/// A generator of these, which fails when it is walked; but what was too much work is so at once.
fn unless_endless(items: Result<Vec<Value>, Error>) -> Result<Value, Error> {
    match items {
        Err(error) if error.kind() == ErrorKind::OutOfFuel => Err(error),
        items => Ok(Generator::or_fails(items)),
    }
}

fn picked(state: &mut State, value: &Value, pick: Pick<'_>) -> Result<Value, Error> {
    unless_endless(kept(state, value, &pick))
}

fn kept(state: &mut State, value: &Value, pick: &Pick<'_>) -> Result<Vec<Value>, Error> {
    let mut kept = Vec::new();
    for one in some(state, value)? {
        let seen = match &pick.attribute {
            Some(path) => attribute_of(&one, path)?,
            None => one.clone(),
        };
        let passes = match &pick.test {
            None => seen.is_true(),
            Some(test) => {
                let name = test.as_str().ok_or_else(|| Error::from(ErrorKind::UnknownTest))?;
                let mut args = vec![seen];
                args.extend_from_slice(pick.args);
                state.perform_test(name, &args)?
            }
        };
        state.consume_fuel(1)?;
        if passes == pick.keep {
            kept.push(one);
        }
    }
    Ok(kept)
}

/// An attribute by its path, with numbers as positions (`make_attrgetter`).
fn attribute_of(value: &Value, path: &Value) -> Result<Value, Error> {
    let Some(path) = path.as_str() else { return value.get_item(path) };
    let mut found = value.clone();
    for part in path.split('.') {
        found = match part.parse::<i64>() {
            Ok(at) if part.bytes().all(|b| b.is_ascii_digit()) => found.get_item(&Value::from(at))?,
            _ => found.get_item(&Value::from(part))?,
        };
    }
    Ok(found)
}
