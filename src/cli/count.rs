//! `kvgate count`: prompt tokens of request bodies, one JSON line in, one out.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};
use time::{Date, Month, PrimitiveDateTime, Time};

use crate::request::{Api, Certainty, Prompt, dialect};
use crate::tokens::{Encoder, Options, Settings, discover};

/// Longest line read, in bytes; a longer one is answered with an error.
const MAX_LINE: usize = 64 << 20;

/// Prints the prompt tokens of each request body on stdin, as the engine will count them.
///
/// Reads one JSON object a line: a body of /v1/chat/completions or /v1/completions; {"text": …}, with
/// "add_special_tokens" (default true); or, told by a "bos_token" or "eos_token" beside its "messages",
/// the variables of a chat template as they stand. Prints {"prompt_tokens": N} a line, in the same
/// order, or {"error": "…"} for a line that cannot be counted: the exit status is 0 then too.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  echo '{\"prompt\": \"Hi there\"}' | kvgate count --tokenizer ./model")]
pub struct Args {
    /// The model's directory, its tokenizer.json, or its name in the local Hugging Face cache.
    #[arg(long, value_name = "DIR_OR_FILE")]
    pub tokenizer: PathBuf,
    /// The API whose bodies these are; by default told from each line's fields.
    #[arg(long, value_name = "NAME")]
    pub api: Option<ApiName>,
    /// A chat template in place of the model's own.
    #[arg(long, value_name = "FILE")]
    pub chat_template: Option<PathBuf>,
    /// What strftime_now sees: 2026-03-07T09:05:03, or Unix seconds; default the present, in UTC.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub now: Option<SystemTime>,
    /// Prints the token ids too; a list for each prompt where a line has several.
    #[arg(long)]
    pub ids: bool,
    /// Prints the text that the chat template makes of each line, which holds the template's own
    /// variables (messages, tools, …, as transformers' apply_chat_template takes them).
    #[arg(long, conflicts_with_all = ["ids", "api"])]
    pub render: bool,
}

/// An API, as named on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ApiName {
    /// /v1/chat/completions
    Chat,
    /// /v1/completions
    Completions,
}

/// Runs the command.
///
/// Exit status: 0; 2 where the tokenizer or template cannot be used, with the reason on stderr.
///
/// # Errors
/// Reading stdin or writing stdout fails; a closed stdout is no error.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let encoder = match load(args) {
        Ok(encoder) => encoder,
        Err(why) => {
            writeln!(io::stderr(), "kvgate count: {why}")?;
            return Ok(ExitCode::from(2));
        }
    };
    let Args { api, now, ids, render, .. } = *args;
    let lines = Lines { encoder, api, now, ids, render };
    let bar = progress();
    let input = BufReader::new(bar.wrap_read(io::stdin().lock()));
    let done = lines.answer(input, io::stdout().lock());
    bar.finish_and_clear();
    match done {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        done => done.map(|()| ExitCode::SUCCESS).context("counting lines"),
    }
}

/// A bar on stderr, for input and output that are no terminal: of the whole where stdin is a file.
fn progress() -> ProgressBar {
    if io::stdin().is_terminal() || io::stdout().is_terminal() {
        return ProgressBar::hidden();
    }
    let file = std::fs::metadata("/dev/stdin").ok().filter(std::fs::Metadata::is_file);
    let bar =
        ProgressBar::with_draw_target(file.map(|file| file.len()), ProgressDrawTarget::stderr_with_hz(5));
    let style = "{wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
    bar.with_style(ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn load(args: &Args) -> Result<Encoder, String> {
    let path = if args.tokenizer.exists() {
        let settings = Settings { tokenizer: Some(args.tokenizer.clone()), ..Settings::default() };
        discover::find(&settings, None)
    } else {
        discover::find(&Settings::default(), args.tokenizer.to_str())
    };
    let path = path.map_err(|error| format!("--tokenizer {}: {error}", args.tokenizer.display()))?;
    let encoder = Encoder::load(&path, args.chat_template.as_deref())
        .map_err(|error| format!("{}: {error}", path.display()))?;
    let settings =
        Settings { trust_request_chat_template: true, max_count_seconds: 600.0, ..Settings::default() };
    Ok(encoder.with_options(Options::from(&settings)))
}

/// Answers lines.
struct Lines {
    encoder: Encoder,
    api: Option<ApiName>,
    now: Option<SystemTime>,
    ids: bool,
    render: bool,
}

impl Lines {
    fn answer(&self, mut input: BufReader<impl Read>, output: impl Write) -> io::Result<()> {
        let mut output = io::BufWriter::new(output);
        let mut line = Vec::new();
        while let Some(whole) = next_line(&mut input, &mut line)? {
            let answer = if whole {
                self.count(&line)
            } else {
                Err(format!("the line is longer than {MAX_LINE} bytes"))
            };
            let answer = answer.unwrap_or_else(|error| json!({"error": error}));
            writeln!(output, "{answer}")?;
            // Somebody may be waiting for it before writing the next line.
            if input.buffer().is_empty() {
                output.flush()?;
            }
        }
        output.flush()
    }

    /// The answer to one line, or why there is none.
    fn count(&self, line: &[u8]) -> Result<Value, String> {
        if self.render {
            let text = self.encoder.render_context(object(line)?, self.now());
            return text.map(|text| json!({"text": text})).map_err(|error| error.to_string());
        }
        let fields: HashMap<String, IgnoredAny> = serde_json::from_slice(line).unwrap_or_default();
        let has = |field| fields.contains_key(field);
        if has("messages") && (has("bos_token") || has("eos_token")) {
            return self.context(line);
        }
        if has("text") && !has("messages") && !has("prompt") {
            return self.text(line);
        }
        let api = match self.api {
            Some(ApiName::Chat) => Api::Chat,
            Some(ApiName::Completions) => Api::Completions,
            None if has("messages") => Api::Chat,
            None => Api::Completions,
        };
        self.body(api, line)
    }

    fn now(&self) -> SystemTime {
        self.now.unwrap_or_else(SystemTime::now)
    }

    fn body(&self, api: Api, line: &[u8]) -> Result<Value, String> {
        let reading = dialect::read(api, line).map_err(|error| error.to_string())?;
        if let Prompt::Unread { why } = reading.prompt {
            return Err(format!("not counted: {why}"));
        }
        if self.ids {
            let ids = self.encoder.ids(&reading, self.now()).map_err(|error| error.to_string())?;
            let count = self.encoder.count(&reading, self.now(), None).map_err(|error| error.to_string())?;
            let ids = match ids.as_slice() {
                [one] => json!(one),
                all => json!(all),
            };
            return Ok(json!({"prompt_tokens": count.total, "ids": ids}));
        }
        let count = self.encoder.count(&reading, self.now(), None).map_err(|error| error.to_string())?;
        match count.certain {
            Certainty::Exact => Ok(json!({"prompt_tokens": count.total})),
            Certainty::AtLeast => Ok(json!({"prompt_tokens": count.total, "certain": "at_least"})),
            Certainty::AtMost { .. } => Ok(json!({"prompt_tokens": count.total, "certain": "at_most"})),
            Certainty::Unknown => Err("not counted: a chat template among chat_template_kwargs".to_owned()),
        }
    }

    fn text(&self, line: &[u8]) -> Result<Value, String> {
        let line = object(line)?;
        let text = line.get("text").and_then(Value::as_str).ok_or("`text` must be a string")?;
        self.encoded(text, flag(&line, "add_special_tokens", true)?)
    }

    /// A template's own variables, rendered as they stand.
    fn context(&self, line: &[u8]) -> Result<Value, String> {
        let mut context = object(line)?;
        let add_special_tokens = flag(&context, "add_special_tokens", false)?;
        context.shift_remove("add_special_tokens");
        let text = self.encoder.render_context(context, self.now()).map_err(|error| error.to_string())?;
        self.encoded(&text, add_special_tokens)
    }

    fn encoded(&self, text: &str, add_special_tokens: bool) -> Result<Value, String> {
        let ids = self.encoder.encode(text, add_special_tokens).map_err(|error| error.to_string())?;
        Ok(if self.ids {
            json!({"prompt_tokens": ids.len(), "ids": ids})
        } else {
            json!({"prompt_tokens": ids.len()})
        })
    }
}

fn object(line: &[u8]) -> Result<Map<String, Value>, String> {
    serde_json::from_slice(line).map_err(|error| format!("the line is not a JSON object: {error}"))
}

fn flag(line: &Map<String, Value>, name: &str, default: bool) -> Result<bool, String> {
    match line.get(name) {
        None => Ok(default),
        Some(value) => value.as_bool().ok_or_else(|| format!("`{name}` must be true or false")),
    }
}

/// Reads the next line without its end. `Some(false)`: it was too long and was skipped; `None`: the end.
fn next_line(input: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<Option<bool>> {
    line.clear();
    let read = input.by_ref().take(MAX_LINE as u64 + 1).read_until(b'\n', line)?;
    if read == 0 {
        return Ok(None);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
        return Ok(Some(true));
    }
    if read <= MAX_LINE {
        return Ok(Some(true));
    }
    line.clear();
    line.shrink_to_fit();
    input.skip_until(b'\n')?;
    Ok(Some(false))
}

/// A moment: `YYYY-MM-DDTHH:MM:SS`, what follows (a fraction, a zone) being left out, as
/// `strftime_now` shows the clock's own digits; or Unix seconds.
fn moment(text: &str) -> Result<SystemTime, String> {
    if let Ok(seconds) = text.parse::<u32>() {
        return Ok(SystemTime::UNIX_EPOCH + Duration::from_secs(u64::from(seconds)));
    }
    let parsed = || -> Option<PrimitiveDateTime> {
        let number = |from: usize, to: usize| text.get(from..to)?.parse::<u16>().ok();
        let small = |from, to| number(from, to).and_then(|n| u8::try_from(n).ok());
        let month = Month::try_from(small(5, 7)?).ok()?;
        let date = Date::from_calendar_date(i32::from(number(0, 4)?), month, small(8, 10)?).ok()?;
        let time = match text.len() {
            10 => Time::MIDNIGHT,
            _ => Time::from_hms(small(11, 13)?, small(14, 16)?, small(17, 19)?).ok()?,
        };
        Some(PrimitiveDateTime::new(date, time))
    };
    parsed()
        .map(|at| at.assume_utc().into())
        .ok_or_else(|| "a time looks like 2026-03-07T09:05:03".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(ids: bool) -> Lines {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokens/tiny-llama3");
        let encoder = Encoder::load(dir.as_ref(), None).unwrap();
        Lines { encoder, api: None, now: Some(SystemTime::UNIX_EPOCH), ids, render: false }
    }

    fn answers(lines: &Lines, input: &str) -> Vec<Value> {
        let mut output = Vec::new();
        lines.answer(BufReader::new(input.as_bytes()), &mut output).unwrap();
        String::from_utf8(output).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn every_line_is_answered_in_order_whatever_is_wrong_with_one() {
        let input = r#"{"prompt": "Hi there"}
{"messages": [{"role": "user", "content": "Hi there"}], "model": "tiny"}
not json

{"text": "Hi there"}
{"text": "Hi there", "add_special_tokens": false}
{"messages": []}
{"text": 5}
{"messages": [{"role": "user", "content": 5}]}
{"prompt": ["Hi", [1]]}
{"bos_token": "<|begin_of_text|>", "messages": [{"role": "user", "content": "Hi there"}], "add_generation_prompt": true}
[1]"#;
        let answers = answers(&lines(false), input);
        let counts: Vec<_> = answers.iter().map(|answer| answer["prompt_tokens"].as_u64()).collect();
        let want = [Some(4), Some(20), None, None, Some(4), Some(3), None, None, None, None, Some(20), None];
        assert_eq!(counts, want, "{answers:?}");
        for answer in answers.iter().filter(|answer| answer.get("prompt_tokens").is_none()) {
            assert!(!answer["error"].as_str().unwrap().is_empty());
        }
    }

    #[test]
    fn ids_are_as_many_as_counted() {
        let input = "{\"prompt\": \"Hi there\"}\n{\"prompt\": [\"Hi\", \"Hi there\"]}\n{\"text\": \"Hi\"}\n{\"prompt\": [1, 2]}\n";
        let answers = answers(&lines(true), input);
        assert_eq!(answers[0], json!({"prompt_tokens": 4, "ids": [4089, 39, 72, 993]}));
        assert_eq!(answers[1]["ids"].as_array().unwrap().len(), 2);
        assert_eq!(answers[2]["ids"].as_array().unwrap().len(), 3);
        assert_eq!(answers[3], json!({"prompt_tokens": 2, "ids": null}));
    }

    #[test]
    fn a_template_can_be_seen_at_work() {
        let input = "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi there\"}], \"bos_token\": \"<s>\"}\n{\"messages\": 5}\n[]";
        let answers = answers(&Lines { render: true, ..lines(false) }, input);
        let text = answers[0]["text"].as_str().unwrap();
        assert!(text.starts_with("<s>") && text.contains("Hi there"), "{text}");
        assert!(answers[1]["error"].is_string() && answers[2]["error"].is_string(), "{answers:?}");
    }

    #[test]
    fn a_line_without_end_is_bounded() {
        let input = io::repeat(b'x').take(MAX_LINE as u64 + 10).chain("\n{\"text\": \"\"}".as_bytes());
        let mut output = Vec::new();
        lines(false).answer(BufReader::new(input), &mut output).unwrap();
        let output = String::from_utf8(output).unwrap();
        assert!(output.starts_with("{\"error\":\"the line is longer"), "{output}");
        assert!(output.ends_with("{\"prompt_tokens\":1}\n"), "{output}");
    }

    #[test]
    fn a_moment_is_read_in_its_usual_forms() {
        let at = |text| moment(text).map(|at| at.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs());
        assert_eq!(at("2026-03-07T09:05:03"), Ok(1_772_874_303));
        assert_eq!(at("2026-03-07 09:05:03.5+02:00"), Ok(1_772_874_303));
        assert_eq!(at("2026-03-07"), Ok(1_772_841_600));
        assert_eq!(at("1772874303"), Ok(1_772_874_303));
        for bad in ["", "now", "2026-13-07", "2026-03-07T25:00:00", "é"] {
            assert!(at(bad).is_err(), "{bad}");
        }
    }
}
