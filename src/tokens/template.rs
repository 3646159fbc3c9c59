//! Chat templates, rendered as transformers 5.24.0 renders them
//! (`utils/chat_template_utils.py`, `_compile_jinja_template`): Jinja2 3.1.6 in its immutable sandbox
//! with `trim_blocks`, `lstrip_blocks`, loop controls, its own `tojson`, `raise_exception`,
//! `strftime_now` and the `generation` tag.
//!
//! The engine is minijinja. Where it does not do what Jinja2 does, a template is changed when it is
//! compiled: [`source`] decodes its string literals and [`rewrite`] prints its syntax tree with calls
//! of [`operators`] for what Python means otherwise. [`filters`], [`sequences`] and [`text`] are
//! Jinja2's and Python's own where minijinja's differ, [`objects`] are what Python has and minijinja
//! has not, and [`super::python`] prints values. `tests/real/test_templates.py` compares all of it with
//! Python.
//!
//! A template's steps are bounded ([`Templates::set_fuel`]), and with them the memory that it takes (64
//! bytes a step); one text has at most 256 MiB. A template that comes with a request is compiled and
//! rendered on a stack of its own, with fewer steps, so that it cannot overflow one by nesting.
//!
//! Known differences, none in a template in use: an undefined value that a macro is given counts as not
//! given; a slice of a constant that cannot be sliced, which Jinja2's optimizer makes undefined, fails;
//! the address in a printed bound method; integers beyond 64 bits in a request, which are read as
//! floats; `\N{…}` in a template's string; filters that minijinja lacks (`center`, `filesizeformat`,
//! `random`, `striptags`, `truncate`, `urlize`, `wordcount`, `wordwrap`, `xmlattr`), which refuse the
//! conversation.

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
pub(super) mod rewrite;
mod sequences;
pub(super) mod source;
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
            let env = &mut templates.env;
            let compiled = apart(|| {
                let text = rewritten(&source.text)?;
                env.add_template_owned(name.clone(), text).map_err(|error| error.to_string())
            });
            match compiled.and_then(|compiled| compiled) {
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
        match chosen.name {
            Some(name) => {
                let rendered = self.env.get_template(name).and_then(|t| t.render(values));
                rendered.map_err(|error| refused(&error, self.env.fuel().unwrap_or(u64::MAX)))
            }
            None => apart(|| self.render_own(&chosen.source, values))
                .unwrap_or_else(|reason| Err(CountError::NoTemplate { reason })),
        }
    }

    /// Renders a template that came with its request. All that it made is dropped here.
    fn render_own(&self, source: &str, values: BTreeMap<String, Value>) -> Result<String, CountError> {
        let broken = |reason| CountError::NoTemplate { reason };
        let source = rewritten(source).map_err(broken)?;
        // Names and caches of the environment outlive the request; its template must not.
        let mut env = self.env.clone();
        let fuel = self.env.fuel().unwrap_or(u64::MAX).min(OWN_FUEL);
        env.set_fuel(Some(fuel));
        let own = env.template_from_str(&source).map_err(|error| broken(error.to_string()))?;
        own.render(values).map_err(|error| refused(&error, fuel))
    }
}

/// Stack for work that recurses with a template's text or with values that it nests: touched only as
/// far as it is used.
const STACK: usize = 64 << 20;

/// Steps for a template that came with a request: they bound how deep a value it can nest, and so what
/// of the stack is used when that is dropped.
const OWN_FUEL: u64 = 1_500_000;

/// Does some work on a stack of its own.
pub(super) fn apart<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, String> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("template".to_owned()).stack_size(STACK);
        let thread = thread.spawn_scoped(scope, work).map_err(|error| error.to_string())?;
        thread.join().map_err(|_| "it could not be read".to_owned())
    })
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
mod tests;
