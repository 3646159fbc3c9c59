//! Finds the boundaries of server-sent events in a byte stream, and what each event says.
//!
//! Nothing is re-encoded: what goes in comes out, in the same bytes, cut at event boundaries. An
//! event is looked at with substring searches only. That is sound because a quote inside a JSON
//! string is always escaped: `"usage":{` cannot occur inside one.
//!
//! Wire format: WHATWG HTML, 9.2 server-sent events (lines end in LF, CRLF or CR; a blank line ends
//! an event). Event contents: vLLM 0.32 `entrypoints/openai/protocol.py`.

use bytes::Bytes;
use memchr::memmem;

/// What the splitter's caller wants with an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Take {
    /// Pass it on.
    Keep,
    /// Drop it and all that follows.
    Stop,
}

/// Cuts chunks at event boundaries and holds an incomplete event back.
#[derive(Debug)]
pub struct Splitter {
    /// The incomplete event, in the chunks it came in.
    carry: Vec<Bytes>,
    carry_len: usize,
    /// Longest incomplete event held back; a longer one is passed on as it comes.
    limit: usize,
    /// The event in progress was longer than the limit and is passing.
    passing: bool,
    line_is_empty: bool,
    after_cr: bool,
}

impl Splitter {
    /// A splitter that holds back at most `limit` bytes.
    #[must_use]
    pub const fn new(limit: usize) -> Self {
        Self { carry: Vec::new(), carry_len: 0, limit, passing: false, line_is_empty: true, after_cr: false }
    }

    /// Takes a chunk; appends to `out` what may be passed on, and shows `look` each complete event.
    ///
    /// Returns `Take::Stop` where `look` did: then `out` holds all that came before that event.
    pub fn push(&mut self, chunk: Bytes, out: &mut Vec<Bytes>, mut look: impl FnMut(&[u8]) -> Take) -> Take {
        let mut start = 0;
        let mut from = 0;
        while let Some(end) = self.boundary(&chunk, from) {
            let keep = if self.passing {
                self.passing = false;
                Take::Keep
            } else if start == 0 && self.carry_len > 0 {
                look(&self.joined(&chunk[..end]))
            } else {
                look(&chunk[start..end])
            };
            if keep == Take::Stop {
                if start > 0 {
                    out.append(&mut self.carry);
                    out.push(chunk.slice(..start));
                }
                self.carry.clear();
                self.carry_len = 0;
                return Take::Stop;
            }
            start = end;
            from = end;
        }
        if start > 0 {
            out.append(&mut self.carry);
            self.carry_len = 0;
            out.push(chunk.slice(..start));
        }
        self.hold(chunk.slice(start..), out);
        Take::Keep
    }

    /// The incomplete event at the end of the stream.
    pub fn rest(&mut self) -> Vec<Bytes> {
        self.carry_len = 0;
        std::mem::take(&mut self.carry)
    }

    /// Whether part of an event has been passed on that is not complete.
    #[must_use]
    pub const fn inside_an_event(&self) -> bool {
        self.passing
    }

    /// Bytes held back now.
    #[must_use]
    pub const fn held(&self) -> usize {
        self.carry_len
    }

    fn hold(&mut self, tail: Bytes, out: &mut Vec<Bytes>) {
        if tail.is_empty() {
            return;
        }
        if self.passing || self.carry_len + tail.len() > self.limit {
            self.passing = true;
            out.append(&mut self.carry);
            self.carry_len = 0;
            out.push(tail);
        } else {
            self.carry_len += tail.len();
            self.carry.push(tail);
        }
    }

    fn joined(&self, tail: &[u8]) -> Vec<u8> {
        let mut whole = Vec::with_capacity(self.carry_len + tail.len());
        self.carry.iter().for_each(|part| whole.extend_from_slice(part));
        whole.extend_from_slice(tail);
        whole
    }

    /// The index after the next blank line at or after `from`.
    fn boundary(&mut self, chunk: &[u8], from: usize) -> Option<usize> {
        let mut at = from;
        while at < chunk.len() {
            let Some(step) = memchr::memchr2(b'\n', b'\r', &chunk[at..]) else {
                self.line_is_empty = false;
                self.after_cr = false;
                return None;
            };
            if step > 0 {
                self.line_is_empty = false;
                self.after_cr = false;
            }
            at += step;
            let was_cr = std::mem::replace(&mut self.after_cr, chunk[at] == b'\r');
            at += 1;
            if chunk[at - 1] == b'\n' && was_cr {
                continue; // the second half of a CRLF
            }
            if std::mem::replace(&mut self.line_is_empty, true) {
                if self.after_cr && chunk.get(at) == Some(&b'\n') {
                    self.after_cr = false;
                    at += 1;
                }
                return Some(at);
            }
        }
        None
    }
}

/// The token counts an engine reports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// `usage.prompt_tokens`
    pub prompt: u64,
    /// `usage.completion_tokens`
    pub output: Option<u64>,
}

/// What one event says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Says<'e> {
    /// Nothing: a comment or an empty event.
    Nothing,
    /// `data: [DONE]`
    Done,
    /// `data: {"error":…}`: the object.
    Error(&'e [u8]),
    /// A piece of the answer.
    Piece {
        /// It opens the answer and carries no token (`"role":"assistant"` with empty content).
        opening: bool,
        /// Choices that finish with it.
        finished: usize,
        /// It has choices at all (the usage event has none).
        choices: bool,
        /// The counts it carries.
        usage: Option<Usage>,
    },
}

/// Reads one event.
#[must_use]
pub fn says(event: &[u8]) -> Says<'_> {
    let Some(data) = data_of(event) else { return Says::Nothing };
    if data == b"[DONE]" {
        return Says::Done;
    }
    if is_error(data) {
        return Says::Error(data);
    }
    let choices = memmem::find(data, b"\"choices\":[]").is_none();
    Says::Piece {
        opening: memmem::find(data, b"\"role\":\"assistant\"").is_some()
            && memmem::find(data, b"\"content\":\"\"").is_some(),
        finished: finish_reasons(data),
        choices,
        usage: usage(data),
    }
}

/// How many choices in `json` have a finish reason.
#[must_use]
pub fn finish_reasons(json: &[u8]) -> usize {
    memmem::find_iter(json, b"\"finish_reason\":")
        .filter(|at| {
            let rest = &json[at + b"\"finish_reason\":".len()..];
            rest.trim_ascii_start().first() == Some(&b'"')
        })
        .count()
}

/// The usage object of an answer or event, where it has one: the last in the text.
#[must_use]
pub fn usage(json: &[u8]) -> Option<Usage> {
    let at = memmem::rfind(json, b"\"usage\":")?;
    let object = json[at + b"\"usage\":".len()..].trim_ascii_start();
    if object.first() != Some(&b'{') {
        return None;
    }
    Some(Usage {
        prompt: number_after(object, b"\"prompt_tokens\":")?,
        output: number_after(object, b"\"completion_tokens\":"),
    })
}

fn number_after(json: &[u8], key: &[u8]) -> Option<u64> {
    let at = memmem::find(json, key)?;
    let digits = json[at + key.len()..].trim_ascii_start();
    let len = digits.iter().take(19).take_while(|b| b.is_ascii_digit()).count();
    std::str::from_utf8(&digits[..len]).ok()?.parse().ok()
}

/// Whether the JSON object starts with an `error` member, or is vLLM's older flat error.
fn is_error(data: &[u8]) -> bool {
    let Some(inner) = data.strip_prefix(b"{") else { return false };
    let inner = inner.trim_ascii_start();
    if let Some(rest) = inner.strip_prefix(b"\"error\"") {
        return rest.trim_ascii_start().first() == Some(&b':')
            && !matches!(rest.trim_ascii_start()[1..].trim_ascii_start().first(), Some(b'n') | None);
    }
    let Some(rest) = inner.strip_prefix(b"\"object\"") else { return false };
    rest.trim_ascii_start().strip_prefix(b":").is_some_and(|r| r.trim_ascii_start().starts_with(b"\"error\""))
}

/// The payload of the first `data:` line.
fn data_of(event: &[u8]) -> Option<&[u8]> {
    event
        .split(|&b| b == b'\n' || b == b'\r')
        .find_map(|line| line.strip_prefix(b"data:"))
        .map(<[u8]>::trim_ascii)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(chunks: &[&[u8]], limit: usize) -> (Vec<u8>, Vec<Vec<u8>>, Vec<u8>) {
        let mut splitter = Splitter::new(limit);
        let (mut out, mut events) = (Vec::new(), Vec::new());
        for chunk in chunks {
            let _ = splitter.push(Bytes::copy_from_slice(chunk), &mut out, |e| {
                events.push(e.to_vec());
                Take::Keep
            });
        }
        (out.concat(), events, splitter.rest().concat())
    }

    #[test]
    fn an_event_leaves_with_the_chunk_that_completes_it() {
        let (out, events, rest) = run(&[b"data: a\n\ndata: b\n", b"\ndata: c"], 1024);
        assert_eq!(out, b"data: a\n\ndata: b\n\n");
        assert_eq!(events, [b"data: a\n\n".to_vec(), b"data: b\n\n".to_vec()]);
        assert_eq!(rest, b"data: c");
    }

    #[test]
    fn all_three_line_ends_are_known() {
        for text in
            [&b"data: a\n\ndata: b\n\n"[..], b"data: a\r\n\r\ndata: b\r\n\r\n", b"data: a\r\rdata: b\r\r"]
        {
            let (out, events, rest) = run(&[text], 1024);
            assert_eq!((out.as_slice(), events.len(), rest.len()), (text, 2, 0));
        }
    }

    #[test]
    fn an_event_over_the_limit_passes_as_it_comes() {
        let (out, events, rest) = run(&[b"data: 0123456789", b"0123456789", b"\n\ndata: b\n\n"], 8);
        assert_eq!(out, b"data: 01234567890123456789\n\ndata: b\n\n");
        assert_eq!(events, [b"data: b\n\n".to_vec()]);
        assert!(rest.is_empty());
    }

    #[test]
    fn a_stopped_stream_holds_all_before_the_event_and_nothing_after() {
        let mut splitter = Splitter::new(1024);
        let mut out = Vec::new();
        let chunk = Bytes::from_static(b"data: a\n\ndata: bad\n\ndata: c\n\n");
        let stop = |e: &[u8]| if e.starts_with(b"data: bad") { Take::Stop } else { Take::Keep };
        assert_eq!(splitter.push(chunk, &mut out, stop), Take::Stop);
        assert_eq!(out.concat(), b"data: a\n\n");
    }

    #[test]
    fn events_of_a_real_engine_are_understood() {
        let role = br#"data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":{"prompt_tokens":20,"total_tokens":20,"completion_tokens":0,"completion_tokens_details":null}}"#;
        assert_eq!(
            says(role),
            Says::Piece {
                opening: true,
                finished: 0,
                choices: true,
                usage: Some(Usage { prompt: 20, output: Some(0) })
            }
        );
        let last = br#"data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"length","stop_reason":null}],"usage":null}"#;
        assert_eq!(says(last), Says::Piece { opening: false, finished: 1, choices: true, usage: None });
        let usage_event =
            br#"data: {"choices":[],"usage":{"prompt_tokens":4,"total_tokens":7,"completion_tokens":3}}"#;
        assert_eq!(
            says(usage_event),
            Says::Piece {
                opening: false,
                finished: 0,
                choices: false,
                usage: Some(Usage { prompt: 4, output: Some(3) })
            }
        );
        assert_eq!(says(b"data: [DONE]\n\n"), Says::Done);
        assert_eq!(says(b": keep-alive\n\n"), Says::Nothing);
        assert!(matches!(says(br#"data: {"error": {"message": "m", "code": 500}}"#), Says::Error(_)));
        assert!(matches!(says(br#"data: {"object":"error","message":"m"}"#), Says::Error(_)));
        assert!(matches!(says(br#"data: {"error":null,"choices":[]}"#), Says::Piece { .. }));
    }

    #[test]
    fn text_inside_a_string_is_not_taken_for_structure() {
        let sly = br#"data: {"choices":[{"text":"\"usage\":{\"prompt_tokens\":9} \"finish_reason\":\"stop\"","finish_reason":null}]}"#;
        assert_eq!(says(sly), Says::Piece { opening: false, finished: 0, choices: true, usage: None });
    }

    proptest! {
        #[test]
        fn bytes_are_neither_lost_nor_changed(
            parts in proptest::collection::vec(
                proptest::collection::vec(prop_oneof![Just(b'\n'), Just(b'\r'), Just(b'a'), Just(b':')], 0..12), 0..12),
            limit in 0_usize..16,
        ) {
            let chunks: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            let (out, _, rest) = run(&chunks, limit);
            prop_assert!(rest.len() <= limit);
            prop_assert_eq!([out, rest].concat(), parts.concat());
        }

        #[test]
        fn where_a_stream_is_cut_does_not_change_its_events(
            text in proptest::collection::vec(prop_oneof![Just(b'\n'), Just(b'\r'), Just(b'a')], 0..40),
            cut in 0_usize..40,
        ) {
            let cut = cut.min(text.len());
            let (whole, split) = (run(&[&text], 1024), run(&[&text[..cut], &text[cut..]], 1024));
            let trim = |events: Vec<Vec<u8>>| -> Vec<Vec<u8>> {
                events.into_iter().map(|e| e.trim_ascii().to_vec()).collect()
            };
            prop_assert_eq!(trim(whole.1), trim(split.1));
        }

        #[test]
        fn any_bytes_can_be_looked_at(event in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = says(&event);
            let _ = usage(&event);
        }
    }
}
