//! Python objects that minijinja has no value for: bound methods, generators and a dictionary's
//! views.

use std::sync::{Arc, Mutex, PoisonError};

use indexmap::IndexMap;
use minijinja::value::{Enumerator, Object, ObjectRepr, Tuple, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

use super::names::{OF_DICT, OF_LIST, OF_STR};

/// What Python would call a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Jinja2's `Undefined`.
    Undefined,
    /// `None`.
    None,
    /// `bool`.
    Bool,
    /// `int`.
    Int,
    /// `float`.
    Float,
    /// `str`, or `Markup` where it is marked safe.
    Str,
    /// `list`; a `range` counts as one.
    List,
    /// `tuple`.
    Tuple,
    /// `dict`.
    Dict,
    /// What `dict.keys()`, `.values()` or `.items()` answers.
    View,
    /// A generator: it is walked once.
    Generator,
    /// A function, a macro or a bound method.
    Callable,
    /// A namespace, a loop and what else has no plain value.
    Other,
}

/// What Python would call this value.
pub fn kind(value: &Value) -> Kind {
    match value.kind() {
        ValueKind::Undefined => Kind::Undefined,
        ValueKind::None => Kind::None,
        ValueKind::Bool => Kind::Bool,
        ValueKind::Number if value.is_integer() => Kind::Int,
        ValueKind::Number => Kind::Float,
        ValueKind::String => Kind::Str,
        ValueKind::Seq | ValueKind::Iterable if value.is_tuple() => Kind::Tuple,
        ValueKind::Seq => Kind::List,
        ValueKind::Iterable if value.downcast_object_ref::<Generator>().is_some() => Kind::Generator,
        ValueKind::Iterable if value.downcast_object_ref::<View>().is_some() => Kind::View,
        // minijinja's own sums and ranges.
        ValueKind::Iterable => Kind::List,
        ValueKind::Map if is_dict(value) => Kind::Dict,
        ValueKind::Plain if value.downcast_object_ref::<Method>().is_some() => Kind::Callable,
        ValueKind::Plain => match value.as_object().map(|object| object.type_name()) {
            Some(name) if name.contains("Loop") => Kind::Other,
            _ => Kind::Callable,
        },
        _ => Kind::Other,
    }
}

/// minijinja's map type, which its own namespaces and keyword arguments are not.
fn is_dict(value: &Value) -> bool {
    value.downcast_object_ref::<IndexMap<Value, Value>>().is_some()
}

/// Python's name of a value's type.
pub fn type_name(value: &Value) -> &'static str {
    match kind(value) {
        Kind::Undefined => "Undefined",
        Kind::None => "NoneType",
        Kind::Bool => "bool",
        Kind::Int => "int",
        Kind::Float => "float",
        Kind::Str => "str",
        Kind::List => "list",
        Kind::Tuple => "tuple",
        Kind::Dict => "dict",
        Kind::View => "dict_view",
        Kind::Generator => "generator",
        Kind::Callable => "function",
        Kind::Other => "object",
    }
}

/// An error as Python's `TypeError`.
pub fn type_error(text: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, text)
}

/// The bound method that Python's `getattr` finds under a name.
pub fn method(value: &Value, name: &str) -> Option<Value> {
    let names: &[&'static str] = match kind(value) {
        Kind::Dict => &OF_DICT,
        Kind::List => &OF_LIST,
        Kind::Str => &OF_STR,
        Kind::Tuple => &["count", "index"],
        _ => &[],
    };
    let name = names.iter().copied().find(|known| *known == name)?;
    Some(Value::from_object(Method { of: value.clone(), name }))
}

/// A method with its object, not yet called.
#[derive(Debug)]
pub struct Method {
    of: Value,
    name: &'static str,
}

impl Object for Method {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }

    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        self.of.call_method(state, self.name, args)
    }

    fn render(self: &Arc<Self>, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Python prints an address here, another one in each process.
        write!(f, "<built-in method {} of {} object at 0x7f0000000000>", self.name, type_name(&self.of))
    }
}

/// What a lazy filter answers: true whatever it holds, and empty once it was walked.
#[derive(Debug)]
pub struct Generator(Mutex<Vec<Value>>);

impl Generator {
    /// A generator of these items.
    pub fn of(items: Vec<Value>) -> Value {
        Value::from_object(Self(Mutex::new(items)))
    }

    /// A generator that may fail, as Python's does: when it is walked.
    pub fn or_fails(items: Result<Vec<Value>, Error>) -> Value {
        Self::of(items.unwrap_or_else(|error| vec![Value::from(error)]))
    }
}

impl Object for Generator {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    // None would make minijinja walk to the place.
    fn get_value(self: &Arc<Self>, _: &Value) -> Option<Value> {
        Some(Value::UNDEFINED)
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let items = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        Enumerator::Iter(Box::new(items.into_iter()))
    }

    // A loop asks for it, as Jinja2's looks ahead.
    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.0.lock().unwrap_or_else(PoisonError::into_inner).len())
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }
}

/// A part of a list, without a copy: templates take `messages[1:]`, and some do for each message.
#[derive(Debug)]
pub struct Part {
    /// A list that is no part itself.
    of: Value,
    first: usize,
    step: isize,
    length: usize,
}

impl Part {
    /// Every `step`th item from `first` on.
    pub fn of(list: &Value, first: usize, step: isize, length: usize) -> Value {
        let at = |from: usize, steps: usize, step: isize| {
            // Both are positions in a list: nothing is lost.
            usize::try_from(from as isize + steps as isize * step).unwrap_or(usize::MAX)
        };
        Value::from_object(match list.downcast_object_ref::<Self>() {
            Some(whole) => Self {
                of: whole.of.clone(),
                first: at(whole.first, first, whole.step),
                step: whole.step.saturating_mul(step),
                length,
            },
            None => Self { of: list.clone(), first, step, length },
        })
    }
}

impl Object for Part {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let at = key.as_usize().filter(|at| *at < self.length)?;
        let at = usize::try_from(self.first as isize + at as isize * self.step).ok()?;
        self.of.get_item_by_index(at).ok()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.length)
    }
}

/// Which view of a dictionary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// Its keys.
    Keys,
    /// Its values.
    Values,
    /// Pairs.
    Items,
}

/// A view of a dictionary.
#[derive(Debug)]
pub struct View {
    of: Value,
    /// Of what.
    pub which: Which,
}

impl View {
    /// A view of a dictionary.
    pub fn of(dict: &Value, which: Which) -> Value {
        Value::from_object(Self { of: dict.clone(), which })
    }

    fn entries(&self) -> &IndexMap<Value, Value> {
        static NONE: std::sync::LazyLock<IndexMap<Value, Value>> = std::sync::LazyLock::new(IndexMap::new);
        self.of.downcast_object_ref().unwrap_or(&NONE)
    }
}

impl Object for View {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    // None would make minijinja walk to the place.
    fn get_value(self: &Arc<Self>, _: &Value) -> Option<Value> {
        Some(Value::UNDEFINED)
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let view = Arc::clone(self);
        let item = move |at| match (view.entries().get_index(at), view.which) {
            (Some((key, _)), Which::Keys) => key.clone(),
            (Some((_, value)), Which::Values) => value.clone(),
            (Some((key, value)), Which::Items) => Value::from(Tuple::from([key.clone(), value.clone()])),
            (None, _) => Value::UNDEFINED,
        };
        // Of known length, so that a loop knows its last item.
        Enumerator::Iter(Box::new((0..self.entries().len()).map(item)))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.entries().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use minijinja::context;

    fn evaluated(expression: &str) -> Value {
        let env = minijinja::Environment::new();
        let compiled = env.compile_expression(expression).unwrap();
        compiled.eval(context! {}).unwrap()
    }

    #[test]
    fn values_are_of_the_kind_that_python_gives_them() {
        let kinds = [
            ("none", Kind::None),
            ("true", Kind::Bool),
            ("1", Kind::Int),
            ("1.0", Kind::Float),
            ("'a'", Kind::Str),
            ("[1]", Kind::List),
            ("[1] + [2]", Kind::List),
            ("(1,)", Kind::Tuple),
            ("{'a': 1}", Kind::Dict),
            ("dict(a=1)", Kind::Dict),
            ("namespace(a=1)", Kind::Other),
            ("range", Kind::Callable),
            ("x", Kind::Undefined),
        ];
        for (expression, want) in kinds {
            assert_eq!(kind(&evaluated(expression)), want, "{expression}");
        }
        let json = serde_json::json!({"a": [1]});
        assert_eq!(kind(&Value::from(minijinja::value::Serde(json))), Kind::Dict);
    }

    #[test]
    fn a_generator_is_walked_once_and_true() {
        let once = Generator::of(vec![Value::from(1)]);
        assert!(once.is_true());
        assert_eq!(once.try_iter().unwrap().count(), 1);
        assert_eq!(once.try_iter().unwrap().count(), 0);
        assert!(once.is_true());
    }
}
