//! Python's operators, as filters that [`super::rewrite`] writes in place of minijinja's.

use minijinja::value::{Rest, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};

use super::objects::{Kind, Part, kind, method, type_error, type_name};
use super::text::number;
use super::{markup, names};
use crate::tokens::python;

/// Longer texts are refused before they are made: no prompt comes near it.
pub const MAX_TEXT: usize = 256 << 20;

/// Adds them to an environment.
pub fn add_to(env: &mut Environment<'_>) {
    env.add_filter("__iter", |state: &State, value: &Value| match kind(value) {
        // minijinja's loop does not know the last character.
        Kind::Str => items(state, value).map(Value::from),
        _ => walked(value).cloned(),
    });
    env.add_filter("__slice", slice);
    env.add_filter("__add", add);
    env.add_filter("__cat", concat);
    env.add_filter("__mod", modulo);
    env.add_filter("__in", |state: &State, all: &Value, one: &Value| contains(state, all, one));
    env.add_filter("__notin", |state: &State, all: &Value, one: &Value| {
        contains(state, all, one).map(|found| !found)
    });
    env.add_filter("__lt", |a: &Value, b: &Value| ordered("<", a, b).map(|()| a < b));
    env.add_filter("__le", |a: &Value, b: &Value| ordered("<=", a, b).map(|()| a <= b));
    env.add_filter("__gt", |a: &Value, b: &Value| ordered(">", a, b).map(|()| a > b));
    env.add_filter("__ge", |a: &Value, b: &Value| ordered(">=", a, b).map(|()| a >= b));
    env.add_filter("__attr", |value: &Value, name: &str| match method(value, name) {
        Some(method) => Ok(method),
        None => value.get_attr(name),
    });
    env.add_filter("__item", item);
    env.add_filter(names::NO_FILTER, |_: &Value, _: Rest<Value>| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::UnknownFilter, "no such filter"))
    });
    env.add_test(names::NO_TEST, |_: &Value, _: Rest<Value>| -> Result<bool, Error> {
        Err(Error::new(ErrorKind::UnknownTest, "no such test"))
    });
}

/// Charges for text made outside minijinja's own accounts: one step for 64 bytes, as it does.
pub fn paid(state: &State, bytes: usize) -> Result<(), Error> {
    bounded(bytes)?;
    state.consume_fuel((bytes / 64) as u64)
}

fn bounded(bytes: usize) -> Result<(), Error> {
    match bytes > MAX_TEXT {
        true => Err(Error::new(ErrorKind::OutOfFuel, "a text is too long")),
        false => Ok(()),
    }
}

/// A value that Python's `iter` takes.
pub fn walked(value: &Value) -> Result<&Value, Error> {
    match kind(value) {
        Kind::None | Kind::Bool | Kind::Int | Kind::Float | Kind::Callable => {
            Err(type_error(format!("'{}' object is not iterable", type_name(value))))
        }
        Kind::Other if value.try_iter().is_err() => {
            Err(type_error(format!("'{}' object is not iterable", type_name(value))))
        }
        _ => Ok(value),
    }
}

/// The items of what Python's `iter` takes, each paid for.
pub fn items(state: &State, value: &Value) -> Result<Vec<Value>, Error> {
    let mut all = Vec::new();
    for item in walked(value)?.try_iter()?.checked() {
        let item = item?;
        if all.len() % 2 == 0 {
            state.consume_fuel(1)?;
        }
        all.push(item);
    }
    Ok(all)
}

/// `value[start:stop:step]`: Python's own, as Jinja2 compiles it (`compiler.py` `visit_Getitem`).
fn slice(state: &State, value: &Value, start: &Value, stop: &Value, step: &Value) -> Result<Value, Error> {
    match kind(value) {
        Kind::Str | Kind::List | Kind::Tuple => {}
        Kind::Undefined => {
            return Err(Error::new(ErrorKind::UndefinedError, "a slice of an undefined value"));
        }
        _ => return Err(type_error(format!("'{}' object cannot be sliced", type_name(value)))),
    }
    let mut bounds = [None; 3];
    for (bound, given) in bounds.iter_mut().zip([start, stop, step]) {
        *bound = match kind(given) {
            Kind::None => None,
            Kind::Int | Kind::Bool => Some(i64::try_from(given.clone())?),
            _ => return Err(type_error("slice indices must be integers or None".to_owned())),
        };
    }
    if bounds[2] == Some(0) {
        return Err(type_error("slice step cannot be zero".to_owned()));
    }
    if let Some(text) = value.as_str() {
        paid(state, text.len())?;
        let cut = match bounds[2].unwrap_or(1) {
            1 => {
                let length = if text.is_ascii() { text.len() } else { text.chars().count() };
                let (from, to) = forward(bounds, length);
                let at = |char: usize| match length == text.len() {
                    true => char,
                    false => text.char_indices().nth(char).map_or(text.len(), |(at, _)| at),
                };
                text[at(from)..at(to.max(from))].to_owned()
            }
            _ => {
                let chars: Vec<char> = text.chars().collect();
                picks(bounds, chars.len()).map(|at| chars[at]).collect()
            }
        };
        return Ok(markup::like(value, cut));
    }
    // minijinja's own lists may be lazy: those are copied.
    let list = match value.kind() {
        ValueKind::Seq => value.clone(),
        _ => Value::from(items(state, value)?),
    };
    let length = list.len().unwrap_or(0);
    if kind(value) == Kind::Tuple {
        let all = items(state, value)?;
        let picked: Vec<Value> = picks(bounds, length).map(|at| all[at].clone()).collect();
        return Ok(Value::from(minijinja::value::Tuple::from(picked)));
    }
    let step = isize::try_from(bounds[2].unwrap_or(1)).unwrap_or(1);
    let mut places = picks(bounds, length);
    let Some(first) = places.next() else { return Ok(Value::from(Vec::<Value>::new())) };
    // Of known length but for a step beyond the list.
    Ok(Part::of(&list, first, step, 1 + places.count()))
}

/// A forward slice's start and end (CPython `PySlice_AdjustIndices`).
fn forward(bounds: [Option<i64>; 3], length: usize) -> (usize, usize) {
    let clamp = |bound: i64| {
        let at = if bound < 0 { bound.saturating_add(length as i64).max(0) } else { bound };
        usize::try_from(at).unwrap_or(0).min(length)
    };
    (bounds[0].map_or(0, clamp), bounds[1].map_or(length, clamp))
}

/// The positions that a slice picks.
fn picks(bounds: [Option<i64>; 3], length: usize) -> impl ExactSizeIterator<Item = usize> {
    let step = bounds[2].unwrap_or(1);
    let stride = usize::try_from(step.unsigned_abs()).unwrap_or(usize::MAX).max(1);
    let (from, count) = if step > 0 {
        let (from, to) = forward(bounds, length);
        (from, to.saturating_sub(from).div_ceil(stride))
    } else {
        let length = length as i64;
        let clamp = |bound: i64| {
            if bound < 0 { bound.saturating_add(length).max(-1) } else { bound.min(length - 1) }
        };
        let from = bounds[0].map_or(length - 1, clamp);
        let to = bounds[1].map_or(-1, clamp);
        let count = usize::try_from(from - to).unwrap_or(0).div_ceil(stride);
        (usize::try_from(from).unwrap_or(0), count)
    };
    (0..count).map(move |at| match step > 0 {
        true => from + at * stride,
        false => from - at * stride,
    })
}

/// `a + b + …`, from the left; texts are joined in one go. The first argument is a stand-in: minijinja
/// charges for the text that a filter is given, and this one need not be read.
fn add(state: &State, _: &Value, all: Rest<Value>) -> Result<Value, Error> {
    let plain = |value: &Value| value.as_str().filter(|_| !value.is_safe()).map(str::len);
    let total = all.iter().try_fold(0, |sum: usize, value| Some(sum.saturating_add(plain(value)?)));
    if let Some(total) = total {
        bounded(total)?;
        return Ok(Value::from(all.iter().filter_map(Value::as_str).collect::<Vec<_>>().concat()));
    }
    let Some((first, others)) = all.split_first() else { return Ok(Value::UNDEFINED) };
    others.iter().try_fold(first.clone(), |sum, value| sum_of_two(state, &sum, value))
}

pub fn sum_of_two(state: &State, a: &Value, b: &Value) -> Result<Value, Error> {
    match (kind(a), kind(b)) {
        (Kind::Str, Kind::Str) => {
            let (left, right) = (a.as_str().unwrap_or_default(), b.as_str().unwrap_or_default());
            bounded(left.len().saturating_add(right.len()))?;
            Ok(markup::joined((left, a.is_safe()), (right, b.is_safe())))
        }
        (Kind::Int | Kind::Float | Kind::Bool, Kind::Int | Kind::Float | Kind::Bool) => number_sum(a, b),
        (Kind::List, Kind::List) | (Kind::Tuple, Kind::Tuple) => {
            let mut all = items(state, a)?;
            all.extend(items(state, b)?);
            Ok(match kind(a) {
                Kind::Tuple => Value::from(minijinja::value::Tuple::from(all)),
                _ => Value::from(all),
            })
        }
        _ => Err(unsupported("+", a, b)),
    }
}

fn number_sum(a: &Value, b: &Value) -> Result<Value, Error> {
    if kind(a) == Kind::Float || kind(b) == Kind::Float {
        return Ok(Value::from(number(a)? + number(b)?));
    }
    let sum = i128::try_from(a.clone())?.checked_add(i128::try_from(b.clone())?);
    sum.map(integer).ok_or_else(|| type_error("an integer is too large".to_owned()))
}

fn integer(number: i128) -> Value {
    i64::try_from(number).map_or_else(|_| Value::from(number), Value::from)
}

fn unsupported(sign: &str, a: &Value, b: &Value) -> Error {
    let undefined = kind(a) == Kind::Undefined || kind(b) == Kind::Undefined;
    let kind = if undefined { ErrorKind::UndefinedError } else { ErrorKind::InvalidOperation };
    let (a, b) = (type_name(a), type_name(b));
    Error::new(kind, format!("unsupported operand type(s) for {sign}: '{a}' and '{b}'"))
}

/// `a ~ b ~ …`: the texts of all. The first argument is a stand-in, as in [`add`].
fn concat(_: &Value, values: Rest<Value>) -> Result<Value, Error> {
    let length =
        values.iter().filter_map(Value::as_str).fold(0, |sum: usize, text| sum.saturating_add(text.len()));
    bounded(length)?;
    let mut all = String::with_capacity(length);
    for value in values.iter() {
        match value.as_str() {
            Some(text) => all.push_str(text),
            None => all.push_str(&python::str(value)?),
        }
        bounded(all.len())?;
    }
    Ok(Value::from(all))
}

/// `text % values`. Python wants each value used, but for one that could hold named ones.
fn formatted(state: &mut State, text: &Value, values: &Value) -> Result<Value, Error> {
    let mut args = vec![text.clone()];
    match kind(values) {
        Kind::Tuple => args.extend(items(state, values)?),
        _ => args.push(values.clone()),
    }
    let format = text.as_str().unwrap_or_default().replace("%%", "");
    let wanted = format.matches('%').count();
    let named = matches!(kind(values), Kind::Dict | Kind::List) && (wanted == 0 || format.contains("%("));
    if wanted + 1 != args.len() && !named {
        return Err(type_error("not all arguments converted during string formatting".to_owned()));
    }
    if wanted == 0 {
        args.truncate(1);
    }
    state.apply_filter("format", &args)
}

/// `a % b`: the rest of a division, or a text's format.
pub fn modulo(state: &mut State, a: &Value, b: &Value) -> Result<Value, Error> {
    match (kind(a), kind(b)) {
        (Kind::Str, _) => formatted(state, a, b),
        (Kind::Int | Kind::Bool, Kind::Int | Kind::Bool) => {
            let (a, b) = (i128::try_from(a.clone())?, i128::try_from(b.clone())?);
            let rest = a.checked_rem(b).ok_or_else(|| type_error("integer modulo by zero".to_owned()))?;
            Ok(integer(if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest }))
        }
        (Kind::Int | Kind::Float | Kind::Bool, Kind::Int | Kind::Float | Kind::Bool) => {
            let (a, b) = (number(a)?, number(b)?);
            if b == 0.0 {
                return Err(type_error("float modulo by zero".to_owned()));
            }
            let rest = a % b;
            Ok(Value::from(if rest != 0.0 && (rest < 0.0) != (b < 0.0) { rest + b } else { rest }))
        }
        _ => Err(unsupported("%", a, b)),
    }
}

/// `one in all`.
pub fn contains(state: &State, all: &Value, one: &Value) -> Result<bool, Error> {
    match kind(all) {
        Kind::Str => {
            let (text, part) = (all.as_str().unwrap_or_default(), one.as_str());
            let part = part.ok_or_else(|| {
                let name = type_name(one);
                type_error(format!("'in <string>' requires string as left operand, not {name}"))
            })?;
            paid(state, text.len())?;
            Ok(memchr::memmem::find(text.as_bytes(), part.as_bytes()).is_some())
        }
        Kind::Dict => match kind(one) {
            Kind::List | Kind::Dict => Err(type_error(format!("unhashable type: '{}'", type_name(one)))),
            _ => Ok(all.as_object().is_some_and(|dict| dict.get_value(one).is_some())),
        },
        Kind::None | Kind::Bool | Kind::Int | Kind::Float | Kind::Callable | Kind::Other => {
            Err(type_error(format!("argument of type '{}' is not iterable", type_name(all))))
        }
        _ => {
            for item in all.try_iter()?.checked() {
                state.consume_fuel(1)?;
                if item? == *one {
                    return Ok(true);
                }
            }
            Ok(false)
        }
    }
}

/// Whether Python puts these two in an order.
pub fn ordered(sign: &str, a: &Value, b: &Value) -> Result<(), Error> {
    let same = match (kind(a), kind(b)) {
        (Kind::Int | Kind::Float | Kind::Bool, Kind::Int | Kind::Float | Kind::Bool) => true,
        (Kind::Str, Kind::Str) => true,
        (Kind::List, Kind::List) | (Kind::Tuple, Kind::Tuple) => {
            let pairs = a.try_iter()?.zip(b.try_iter()?).find(|(a, b)| a != b);
            return pairs.map_or(Ok(()), |(a, b)| ordered(sign, &a, &b));
        }
        _ => false,
    };
    if same { Ok(()) } else { Err(unsupported(sign, a, b)) }
}

/// `value[key]` with Jinja2's way out: what the value does not hold, it may have as a method
/// (`environment.py` `getitem`).
fn item(state: &State, value: &Value, key: &Value) -> Result<Value, Error> {
    let found = match (kind(value), kind(key)) {
        (Kind::Undefined, _) => {
            return Err(Error::new(ErrorKind::UndefinedError, "an item of an undefined value"));
        }
        (Kind::List | Kind::Tuple, Kind::Int | Kind::Bool) => {
            let index = key.as_i64().unwrap_or_else(|| i64::from(key.is_true()));
            if value.as_object().is_some_and(|object| object.repr() == minijinja::value::ObjectRepr::Iterable)
            {
                state.consume_fuel(index.unsigned_abs().min(1 << 40) / 2)?;
            }
            value.get_item(&Value::from(index))?
        }
        (Kind::List | Kind::Tuple | Kind::View | Kind::Generator, _) => Value::UNDEFINED,
        (Kind::Str, Kind::Int | Kind::Bool) => {
            let index = key.as_i64().unwrap_or_else(|| i64::from(key.is_true()));
            value.get_item(&Value::from(index))?
        }
        (Kind::Str, _) => Value::UNDEFINED,
        _ => value.get_item(key)?,
    };
    if !found.is_undefined() {
        return Ok(found);
    }
    Ok(key.as_str().and_then(|name| method(value, name)).unwrap_or(found))
}
