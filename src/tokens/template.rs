//! Chat templates, rendered as transformers 5.24.0 renders them
//! (`utils/chat_template_utils.py`, `_compile_jinja_template`): Jinja2 3.1.6 in its immutable sandbox
//! with `trim_blocks`, `lstrip_blocks`, loop controls, its own `tojson`, `raise_exception`,
//! `strftime_now` and the `generation` tag.
//!
//! The engine is minijinja. Where it does not do what Jinja2 does, a template is changed when it is
//! compiled: [`source`] decodes its string literals, [`rewrite`] prints its syntax tree with calls of
//! [`operators`] for what Python means otherwise, [`filters`] and [`text`] are Jinja2's and Python's
//! own where minijinja's differ, [`objects`] are what Python has and minijinja has not, and [`python`]
//! prints values. `tests/real/test_templates.py` compares all of it with Python.
//!
//! Known differences, none in a template in use: the address in a printed bound method; integers
//! beyond 64 bits in a request, which are read as floats; `\N{…}` in a template's string; filters that
//! minijinja lacks (`center`, `filesizeformat`, `random`, `striptags`, `truncate`, `urlize`,
//! `wordcount`, `wordwrap`, `xmlattr`), which refuse the conversation.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::SystemTime;

use minijinja::value::{Serde, Value};
use minijinja::{Environment, Error, ErrorKind};
use serde_json::Map;

mod environment;
mod expressions;
mod filters;
mod markup;
mod names;
pub(super) mod objects;
mod operators;
mod rewrite;
mod source;
mod text;

use super::count::CountError;
use super::{clock, content_format};
use environment::environment;
use rewrite::rewritten;

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
            let compiled = rewritten(&source.text).and_then(|text| {
                let added = templates.env.add_template_owned(name.clone(), text);
                added.map_err(|error| error.to_string())
            });
            match compiled {
                Ok(()) => drop(templates.sources.insert(name, source)),
                Err(reason) => drop(templates.broken.insert(name, reason)),
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
                let source =
                    rewritten(&chosen.source).map_err(|reason| CountError::NoTemplate { reason })?;
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
