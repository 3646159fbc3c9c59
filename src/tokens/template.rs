//! Chat templates, rendered as transformers 5.19 renders them
//! (`utils/chat_template_utils.py`, `_compile_jinja_template`): Jinja2 with `trim_blocks`,
//! `lstrip_blocks`, loop controls, its own `tojson`, `raise_exception`, `strftime_now` and the
//! `generation` tag.
//!
//! minijinja differs from Jinja2 where a template iterates None (Jinja2 fails, here nothing is
//! yielded), escapes HTML, or joins floats with `~`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::SystemTime;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, Serde, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde_json::Map;

use super::count::CountError;
use super::{clock, content_format, python};

/// The name of the only template of a model that has one.
pub const DEFAULT: &str = "default";

/// A model's chat templates, compiled.
#[derive(Debug)]
pub struct Templates {
    env: Environment<'static>,
    /// By name.
    sources: BTreeMap<String, Source>,
    /// Why the one that is missing could not be compiled.
    broken: BTreeMap<String, String>,
}

#[derive(Debug)]
struct Source {
    /// Its text, line ends normalised.
    text: String,
    /// Whether it wants contents as lists.
    lists: bool,
}

impl From<&str> for Source {
    fn from(text: &str) -> Self {
        // Python's universal newlines, which Jinja2 applies to template sources.
        let text = text.replace("\r\n", "\n").replace('\r', "\n");
        Self { lists: content_format::wants_lists(&text), text }
    }
}

impl Templates {
    /// Compiles a model's templates; one that does not compile is kept as a reason.
    pub fn new(sources: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut templates = Self { env: environment(), sources: BTreeMap::new(), broken: BTreeMap::new() };
        for (name, source) in sources {
            let source = Source::from(source.as_str());
            match templates.env.add_template_owned(name.clone(), prepared(&source.text)) {
                Ok(()) => drop(templates.sources.insert(name, source)),
                Err(error) => drop(templates.broken.insert(name, error.to_string())),
            }
        }
        templates
    }

    /// Chooses as transformers does: a request's own text or name, else `tool_use` where tools are
    /// given, else the default.
    pub fn choose(&self, own: Option<&str>, tools: bool) -> Result<Chosen<'_>, CountError> {
        if let Some(own) = own {
            return Ok(match self.sources.get_key_value(own) {
                Some((name, source)) => Chosen::named(name, source),
                None => {
                    let Source { text, lists } = Source::from(own);
                    Chosen { name: None, source: Cow::Owned(text), lists }
                }
            });
        }
        let name = if tools && self.sources.contains_key("tool_use") { "tool_use" } else { DEFAULT };
        let Some((name, source)) = self.sources.get_key_value(name) else {
            let reason = self.broken.get(name).cloned().unwrap_or_else(|| match self.sources.len() {
                0 => "the tokenizer has none".to_owned(),
                _ => "none of several is the default".to_owned(),
            });
            return Err(CountError::NoTemplate { reason });
        };
        Ok(Chosen::named(name, source))
    }

    /// Sets how many steps a rendering may take.
    pub fn set_fuel(&mut self, fuel: u64) {
        self.env.set_fuel(Some(fuel));
    }

    /// Renders a template with a context.
    pub fn render(
        &self,
        chosen: &Chosen<'_>,
        context: Map<String, serde_json::Value>,
        clock: Clock,
    ) -> Result<String, CountError> {
        let mut values: BTreeMap<String, Value> = BTreeMap::new();
        let say = move |format: String| clock::strftime(clock.now, clock.offset_minutes, &format);
        values.insert("strftime_now".to_owned(), Value::from_function(say));
        for (name, value) in context {
            values.insert(name, Value::from(Serde(value)));
        }
        let rendered = match chosen.name {
            Some(name) => self.env.get_template(name).and_then(|t| t.render(values)),
            None => {
                let source = prepared(&chosen.source);
                // Names and caches of the environment outlive the request; its template must not.
                let env = self.env.clone();
                let own = env.template_from_str(&source);
                own.and_then(|t| t.render(values))
            }
        };
        rendered.map_err(|error| refused(&error, self.env.fuel().unwrap_or(u64::MAX)))
    }
}

/// A template, chosen for one conversation.
#[derive(Debug)]
pub struct Chosen<'t> {
    /// Its name among the model's, or none for a request's own.
    name: Option<&'t str>,
    /// Its text.
    pub source: Cow<'t, str>,
    /// Whether it wants contents as lists of parts.
    pub lists: bool,
}

impl<'t> Chosen<'t> {
    fn named(name: &'t str, source: &'t Source) -> Self {
        Self { name: Some(name), source: Cow::Borrowed(&source.text), lists: source.lists }
    }
}

/// What `strftime_now` sees.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    /// The moment.
    pub now: SystemTime,
    /// Minutes east of UTC.
    pub offset_minutes: i32,
}

/// The template's own words where it has some: the innermost error says most.
fn refused(error: &Error, fuel: u64) -> CountError {
    let mut at: &dyn std::error::Error = error;
    loop {
        if let Some(inner) = at.downcast_ref::<Error>()
            && inner.kind() == ErrorKind::OutOfFuel
        {
            return CountError::TemplateEndless { fuel };
        }
        match at.source() {
            Some(source) => at = source,
            None => break,
        }
    }
    let reason = match at.downcast_ref::<Error>() {
        Some(inner) => inner.detail().map_or_else(|| inner.kind().to_string(), str::to_owned),
        None => at.to_string(),
    };
    CountError::Template { reason }
}

fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    env.set_syntax(syntax.expect("the default delimiters are valid"));
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env.set_unknown_method_callback(unknown_method_callback);
    env.set_formatter(|out, state, value| {
        match value.as_str() {
            Some(text) => out.write_str(text).map_err(Error::from)?,
            None => {
                let text = python::str(value)?;
                paid(state, text.len())?;
                out.write_str(&text).map_err(Error::from)?;
            }
        }
        Ok(())
    });
    env.add_filter("tojson", tojson);
    env.add_filter("string", |state: &State, value: Value| -> Result<String, Error> {
        let text = python::str(&value)?;
        paid(state, text.len())?;
        Ok(text)
    });
    env.add_filter("join", join);
    env.add_test("iterable", iterable);
    env.add_function("raise_exception", |message: Value| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, python::str(&message)?))
    });
    env
}

/// Charges for text made outside the engine's own accounts: one step for 64 bytes, as it does.
fn paid(state: &State, bytes: usize) -> Result<(), Error> {
    state.consume_fuel((bytes / 64) as u64)
}

/// Jinja2's test: whatever Python's `iter` takes; an undefined value is an empty iterable.
fn iterable(value: &Value) -> bool {
    let plain = matches!(value.kind(), ValueKind::None | ValueKind::Bool | ValueKind::Number);
    !plain && (value.is_undefined() || value.try_iter().is_ok())
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
    let indent = match indent.kind() {
        ValueKind::None | ValueKind::Undefined => None,
        ValueKind::String => Some(indent.to_string()),
        _ => Some(" ".repeat(usize::try_from(indent)?.min(64))),
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
fn join(state: &State, value: Value, args: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let by_name = kwargs.get::<Option<Value>>("d")?;
    let between = match by_name.as_ref().or_else(|| args.first()) {
        Some(joiner) => python::str(joiner)?,
        None => String::new(),
    };
    let attribute = kwargs.get::<Option<Value>>("attribute")?.or_else(|| args.get(1).cloned());
    let mut out = String::new();
    for (at, item) in value.try_iter()?.enumerate() {
        let item = match &attribute {
            Some(name) if !name.is_none() => item.get_item(name)?,
            _ => item,
        };
        let before = out.len();
        out.push_str(if at == 0 { "" } else { &between });
        out.push_str(&python::str(&item)?);
        paid(state, 64 + out.len() - before)?;
    }
    Ok(out)
}

/// The `generation` tag marks what the model said and changes nothing: it becomes `with`, which
/// opens a scope as its call block does.
fn prepared(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at + 2);
        out.push_str(before);
        rest = tag;
        let inner = tag.trim_start_matches(['-', '+']);
        let word = inner.trim_start();
        for (old, new) in [("generation", "with"), ("endgeneration", "endwith")] {
            let Some(after) = word.strip_prefix(old) else { continue };
            if after.trim_start().trim_start_matches(['-', '+']).starts_with("%}") {
                out.push_str(&tag[..tag.len() - word.len()]);
                out.push_str(new);
                rest = after;
                break;
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::time::Duration;

    fn render(source: &str, context: serde_json::Value) -> Result<String, CountError> {
        let mut templates = Templates::new([(DEFAULT.to_owned(), source.to_owned())]);
        templates.set_fuel(200_000);
        let chosen = templates.choose(None, false)?;
        let serde_json::Value::Object(context) = context else { panic!("{context}") };
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_772_874_303);
        templates.render(&chosen, context, Clock { now, offset_minutes: 0 })
    }

    #[test]
    fn values_print_as_in_python() {
        let context = json!({"x": {"a": [1, 1.0, null, true]}, "none": null});
        assert_eq!(
            render("{{ x }}|{{ none }}|{{ y }}", context).unwrap(),
            "{'a': [1, 1.0, None, True]}|None|"
        );
        let list = json!({"x": [1, null, "a"]});
        assert_eq!(render("{{ x | join('-') }}{{ x[0] | string }}", list).unwrap(), "1-None-a1");
    }

    #[test]
    fn none_is_not_iterable_and_undefined_is() {
        let source = "{{ none is iterable }}{{ 1 is iterable }}{{ 'a' is iterable }}{{ [] is iterable }}";
        assert_eq!(render(source, json!({})).unwrap(), "FalseFalseTrueTrue");
    }

    #[test]
    fn json_follows_python_with_every_option() {
        let source = "{{ x|tojson }}{{ x|tojson(indent=2) }}{{ x|tojson(ensure_ascii=true, separators=(',', ':'), sort_keys=true) }}";
        let context = json!({"x": {"b": "é<", "a": 1}});
        let want = "{\"b\": \"é<\", \"a\": 1}{\n  \"b\": \"é<\",\n  \"a\": 1\n}{\"a\":1,\"b\":\"\\u00e9<\"}";
        assert_eq!(render(source, context).unwrap(), want);
    }

    #[test]
    fn blocks_are_trimmed_and_line_ends_normalised() {
        let source =
            "{% if true %}\r\n  a\r\n  {% endif %}\r\nb{%- generation -%} c {%- endgeneration %}\r\n";
        assert_eq!(render(source, json!({})).unwrap(), "  a\nbc");
    }

    #[test]
    fn the_clock_is_given() {
        assert_eq!(render("{{ strftime_now('%d %b %Y') }}", json!({})).unwrap(), "07 Mar 2026");
        let in_macro = "{% macro m() %}{{ strftime_now('%Y') }}{% endmacro %}{{ m() }}";
        assert_eq!(render(in_macro, json!({})).unwrap(), "2026");
    }

    #[test]
    fn a_template_may_refuse() {
        let error = render("{{ raise_exception('no ' ~ role) }}", json!({"role": "wizard"})).unwrap_err();
        assert_eq!(error, CountError::Template { reason: "no wizard".to_owned() });
        assert!(matches!(render("{{ a.b.c }}", json!({})), Err(CountError::Template { .. })));
        assert!(matches!(render("{% if %}", json!({})), Err(CountError::NoTemplate { .. })));
    }

    #[test]
    fn a_hostile_template_ends_by_its_fuel() {
        for source in [
            "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
            "{% macro m(n) %}{{ m(n) }}{{ m(n) }}{% endmacro %}{{ m(1) }}",
            "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}",
            "{{ (range(99999) | list | string * 100) * 100 }}",
        ] {
            let rendered = render(source, json!({}));
            assert!(rendered.is_err(), "{source}: {} bytes", rendered.unwrap().len());
        }
    }
}
