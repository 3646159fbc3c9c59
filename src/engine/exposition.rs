//! Prometheus text as engines write it: format 0.0.4, and OpenMetrics 1.0 as far as it differs in
//! timestamps, exemplars and `# EOF`.
//!
//! Zero-copy: names and raw labels borrow from the page. Bounded: a line longer than [`MAX_LINE`]
//! bytes is skipped, at most [`MAX_SERIES`] wanted series are kept. Bad lines are skipped and counted.

use std::borrow::Cow;

/// Bytes of one line.
pub const MAX_LINE: usize = 64 * 1024;
/// Series kept of one page.
pub const MAX_SERIES: usize = 10_000;

/// One sample line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Series<'a> {
    /// The metric's name.
    pub name: &'a str,
    /// Its labels as written between the braces; empty for none.
    pub raw_labels: &'a str,
    /// Its value; may be NaN or infinite.
    pub value: f64,
}

impl<'a> Series<'a> {
    /// The value of one label, escapes resolved.
    #[must_use]
    pub fn label(&self, key: &str) -> Option<Cow<'a, str>> {
        self.labels().find(|(k, _)| *k == key).map(|(_, v)| unescaped(v))
    }

    /// All labels in their order; the values still escaped.
    #[must_use]
    pub const fn labels(&self) -> Labels<'a> {
        Labels { rest: self.raw_labels }
    }
}

/// The labels of one series.
#[derive(Debug, Clone)]
pub struct Labels<'a> {
    rest: &'a str,
}

impl<'a> Iterator for Labels<'a> {
    type Item = (&'a str, &'a str);

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.rest.trim_start_matches([' ', '\t', ',']);
        let (key, rest) = rest.split_once('=')?;
        let rest = rest.trim_start_matches([' ', '\t']).strip_prefix('"')?;
        let end = closing_quote(rest)?;
        self.rest = &rest[end + 1..];
        Some((key.trim(), &rest[..end]))
    }
}

/// What a page held.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Page<'a> {
    /// The wanted series, in the page's order.
    pub series: Vec<Series<'a>>,
    /// Lines that were no sample, comment or blank.
    pub bad_lines: usize,
    /// More than [`MAX_SERIES`] were wanted; the rest is missing.
    pub truncated: bool,
}

/// Reads a page and keeps the series whose name passes `keep`. Never panics.
pub fn read<'a>(page: &'a [u8], keep: impl Fn(&str) -> bool) -> Page<'a> {
    let mut out = Page::default();
    let mut rest = page;
    while !rest.is_empty() {
        let end = memchr::memchr(b'\n', rest).unwrap_or(rest.len());
        let line = rest[..end].trim_ascii();
        rest = rest.get(end + 1..).unwrap_or_default();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        if line.len() > MAX_LINE {
            out.bad_lines += 1;
            continue;
        }
        match std::str::from_utf8(line).ok().and_then(|line| sample(line, &keep)) {
            None => out.bad_lines += 1,
            Some(None) => {}
            Some(Some(_)) if out.series.len() >= MAX_SERIES => {
                out.truncated = true;
                break;
            }
            Some(Some(series)) => out.series.push(series),
        }
    }
    out
}

/// One sample line: None where it is none, `Some(None)` where its name is not wanted.
fn sample<'a>(line: &'a str, keep: &impl Fn(&str) -> bool) -> Option<Option<Series<'a>>> {
    let end = line.find(['{', ' ', '\t'])?;
    let name = &line[..end];
    if !is_name(name) {
        return None;
    }
    if !keep(name) {
        return Some(None);
    }
    let rest = line[end..].trim_start();
    let (raw_labels, rest) = match rest.strip_prefix('{') {
        None => ("", rest),
        Some(inside) => {
            let end = closing_brace(inside)?;
            (&inside[..end], &inside[end + 1..])
        }
    };
    // What follows the value is a timestamp or an exemplar (` # {…} 1`): both unused.
    let value = rest.split_ascii_whitespace().next()?.parse().ok()?;
    Some(Some(Series { name, raw_labels, value }))
}

fn is_name(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b':')
}

/// The offset of the brace that closes the labels; one inside a quoted value does not count.
fn closing_brace(text: &str) -> Option<usize> {
    let mut at = 0;
    loop {
        let found = at + text[at..].find(['"', '}'])?;
        if text.as_bytes()[found] == b'}' {
            return Some(found);
        }
        at = found + 1 + closing_quote(&text[found + 1..])? + 1;
    }
}

/// The offset of the quote that ends a value; an escaped one does not count.
fn closing_quote(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut at = 0;
    loop {
        let found = at + memchr::memchr2(b'"', b'\\', bytes.get(at..)?)?;
        if bytes[found] == b'"' {
            return Some(found);
        }
        at = found + 2;
    }
}

fn unescaped(raw: &str) -> Cow<'_, str> {
    if !raw.contains('\\') {
        return Cow::Borrowed(raw);
    }
    let mut out = String::with_capacity(raw.len());
    let mut chars = raw.chars();
    while let Some(c) = chars.next() {
        match (c, c == '\\') {
            (_, true) => match chars.next() {
                Some('n') => out.push('\n'),
                Some(other) => out.push(other),
                None => out.push('\\'),
            },
            (c, false) => out.push(c),
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const IDLE: &[u8] = include_bytes!("../../tests/data/engine/metrics_idle.prom");

    fn one(line: &str) -> Option<Series<'_>> {
        read(line.as_bytes(), |_| true).series.first().copied()
    }

    #[test]
    fn labels_values_timestamps_and_exemplars_are_read() {
        for (line, name, value) in [
            ("a 1", "a", 1.0),
            ("a{} 1.5", "a", 1.5),
            ("vllm:x{engine=\"0\"} 1.79e+09 1395066363000", "vllm:x", 1.79e9),
            ("a_bucket{le=\"+Inf\"} 3 # {trace_id=\"}\"} 0.67 1.0", "a_bucket", 3.0),
            ("a +Inf", "a", f64::INFINITY),
            ("  a\t2  ", "a", 2.0),
            ("a {b=\"c\"} 2\r", "a", 2.0),
        ] {
            let series = one(line).unwrap();
            assert_eq!((series.name, series.value), (name, value), "{line}");
        }
        assert!(one("a NaN").unwrap().value.is_nan());
    }

    #[test]
    fn a_brace_comma_or_quote_inside_a_value_ends_nothing() {
        let series = one(r#"a{x="}, \"y\" \\",z="line\nbreak",} 7"#).unwrap();
        assert_eq!(series.value, 7.0);
        assert_eq!(series.label("x").unwrap(), r#"}, "y" \"#);
        assert_eq!(series.label("z").unwrap(), "line\nbreak");
        assert_eq!(series.label("y"), None);
        assert_eq!(series.labels().count(), 2);
    }

    #[test]
    fn bad_lines_are_skipped_and_counted() {
        let page = read(b"a 1\nb\n{x=\"1\"} 2\n9a 1\nc{x=\"1} 2\nd x\n\xff\xfe 1\n# EOF\n\ne 2", |_| true);
        assert_eq!(page.series.iter().map(|s| s.name).collect::<Vec<_>>(), ["a", "e"]);
        assert_eq!(page.bad_lines, 6);
    }

    #[test]
    fn an_unwanted_series_is_not_kept() {
        let page = read(IDLE, |name| name == "vllm:num_requests_running");
        assert_eq!(page.series.len(), 1);
        assert_eq!(page.bad_lines, 0);
    }

    #[test]
    fn line_length_and_series_are_bounded() {
        let long = format!("a{{x=\"{}\"}} 1\nb 2\n", "y".repeat(MAX_LINE));
        let page = read(long.as_bytes(), |_| true);
        assert_eq!((page.series.len(), page.bad_lines), (1, 1));
        let many = "a 1\n".repeat(MAX_SERIES + 5);
        let page = read(many.as_bytes(), |_| true);
        assert_eq!((page.series.len(), page.truncated), (MAX_SERIES, true));
    }

    fn walk(page: &[u8]) {
        for series in read(page, |_| true).series {
            for (key, _) in series.labels() {
                let _ = series.label(key);
            }
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(page in proptest::collection::vec(any::<u8>(), 0..400)) {
            walk(&page);
        }

        #[test]
        fn text_of_the_grammars_own_characters_never_panics(page in r#"[a{}",=\\ \n#1.é]{0,200}"#) {
            walk(page.as_bytes());
        }

        #[test]
        fn a_mutated_capture_never_panics(
            edits in proptest::collection::vec((0..IDLE.len(), any::<u8>()), 0..40),
            cut in 0..IDLE.len(),
        ) {
            let mut page = IDLE.to_vec();
            for (at, byte) in edits {
                page[at] = byte;
            }
            page.truncate(cut);
            walk(&page);
        }

        #[test]
        fn a_written_value_is_read_back(value in any::<f64>(), label in ".{0,20}") {
            let escaped = label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            prop_assume!(!label.contains('\r'));
            let line = format!("x{{k=\"{escaped}\"}} {value}");
            let series = one(&line).unwrap();
            prop_assert!(series.value == value || value.is_nan());
            prop_assert_eq!(series.label("k").unwrap(), label);
        }
    }
}
