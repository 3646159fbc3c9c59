//! Jinja2's filters on sequences (3.1.6 `filters.py`) where minijinja's differ: what fails, what is
//! walked once, and when.

use minijinja::filters as builtin;
use minijinja::value::{Kwargs, Rest, Value, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State};

use super::markup::like;
use super::objects::{Generator, Kind, View, Which, kind, type_error, type_name};
use super::operators::{items, ordered, sum_of_two, walked};

/// Adds them to an environment.
pub fn add_to(env: &mut Environment<'_>) {
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
pub fn attribute_of(value: &Value, path: &Value) -> Result<Value, Error> {
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
