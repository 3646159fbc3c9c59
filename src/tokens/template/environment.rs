//! minijinja, set up to do what Jinja2 does with a rewritten template.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Rest, Value};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State};

use super::objects::{Kind, kind};
use super::operators::{self, contains, ordered, paid};
use super::{filters, markup, text};
use crate::tokens::python;

/// An environment for sources that [`super::rewrite`] wrote.
pub fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    // What Jinja2 does about white space is done by the rewriting.
    let syntax = SyntaxConfig::builder().keep_trailing_newline(true).build();
    env.set_syntax(syntax.expect("the default delimiters are valid"));
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_unknown_method_callback(text::method);
    env.set_formatter(|out, state, value| {
        let escapes = !matches!(state.auto_escape(), AutoEscape::None) && !value.is_safe();
        match value.as_str() {
            Some(text) if !escapes => return out.write_str(text).map_err(Error::from),
            _ => {}
        }
        let mut text = python::str(value)?;
        if escapes {
            let plain = std::mem::take(&mut text);
            markup::escape(&plain, &mut text);
        }
        paid(state, text.len())?;
        out.write_str(&text).map_err(Error::from)
    });
    env.add_function("raise_exception", |message: Value| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, python::str(&message)?))
    });
    operators::add_to(&mut env);
    filters::add_to(&mut env);
    tests(&mut env);
    env
}

/// Jinja2's tests (3.1.6 `tests.py`) where minijinja's differ.
fn tests(env: &mut Environment<'static>) {
    let is = |kinds: &'static [Kind]| move |value: &Value| kinds.contains(&kind(value));
    env.add_test("number", is(&[Kind::Bool, Kind::Int, Kind::Float]));
    env.add_test("integer", is(&[Kind::Int]));
    env.add_test("float", is(&[Kind::Float]));
    env.add_test("string", is(&[Kind::Str]));
    env.add_test("mapping", is(&[Kind::Dict]));
    env.add_test("sequence", is(&[Kind::Undefined, Kind::Str, Kind::List, Kind::Tuple, Kind::Dict]));
    // Jinja2's undefined value can be called; it fails then.
    env.add_test("callable", is(&[Kind::Callable, Kind::Undefined]));
    env.add_test("iterable", |value: &Value| operators::walked(value).is_ok());
    for (name, rest) in [("even", 0), ("odd", 1)] {
        env.add_test(name, move |state: &mut State, value: &Value| {
            Ok::<bool, Error>(operators::modulo(state, value, &Value::from(2))? == Value::from(rest))
        });
    }
    env.add_test("divisibleby", |state: &mut State, value: &Value, by: &Value| {
        Ok::<bool, Error>(operators::modulo(state, value, by)? == Value::from(0))
    });
    env.add_test("true", |value: &Value| kind(value) == Kind::Bool && value.is_true());
    env.add_test("false", |value: &Value| kind(value) == Kind::Bool && !value.is_true());
    env.add_test("in", |state: &State, one: &Value, all: &Value| contains(state, all, one));
    env.add_test("lower", |value: &Value| -> Result<bool, Error> {
        let text = python::str(value)?;
        Ok(text.chars().any(char::is_lowercase) && !text.chars().any(char::is_uppercase))
    });
    env.add_test("upper", |value: &Value| -> Result<bool, Error> {
        let text = python::str(value)?;
        Ok(text.chars().any(char::is_uppercase) && !text.chars().any(char::is_lowercase))
    });
    for name in ["lt", "lessthan", "<"] {
        env.add_test(name, |a: &Value, b: &Value| ordered("<", a, b).map(|()| a < b));
    }
    for name in ["le", "<="] {
        env.add_test(name, |a: &Value, b: &Value| ordered("<=", a, b).map(|()| a <= b));
    }
    for name in ["gt", "greaterthan", ">"] {
        env.add_test(name, |a: &Value, b: &Value| ordered(">", a, b).map(|()| a > b));
    }
    for name in ["ge", ">="] {
        env.add_test(name, |a: &Value, b: &Value| ordered(">=", a, b).map(|()| a >= b));
    }
    for known in ["filter", "test"] {
        env.add_test(known, move |name: &str, _: Rest<Value>| match known {
            "filter" => super::names::FILTERS.contains(&name),
            _ => super::names::TESTS.contains(&name),
        });
    }
}
