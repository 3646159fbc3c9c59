//! A template's source, made ready for minijinja's parser.
//!
//! Three things of Jinja2 3.1.6 (`lexer.py`) and transformers 5.24.0 (`chat_template_utils.py`) are
//! done on the text, whose tags and string literals are told apart as Jinja2's lexer does:
//! line ends are normalised, string literals are decoded by Python's rules and written again in
//! escapes that both know, and the `generation` tag, which marks what the model said and changes
//! nothing, becomes `with`, which opens a scope as its call block does.

use std::fmt::Write as _;

/// Bytes of a tag outside its strings: parsing recurses with the length of an expression. The longest
/// in use has some hundreds.
const TAG: usize = 16 << 10;

/// The source as minijinja must see it.
///
/// # Errors
/// A string literal that Python cannot decode, or that holds half a surrogate pair; a tag of more than
/// 16 KiB without its strings.
pub fn ready(source: &str) -> Result<String, String> {
    // Python's universal newlines, which Jinja2 applies to template sources.
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len() + 64);
    let mut rest = source.as_str();
    while let Some(at) = next_tag(rest) {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let (open, inner) = tag.split_at(2);
        out.push_str(open);
        rest = match open {
            "{#" => through(inner, inner.find("#}").map(|end| end + 2), &mut out),
            "{%" => block(inner, &mut out)?,
            _ => tag_inside(inner, "}}", &mut out)?,
        };
    }
    out.push_str(rest);
    Ok(out)
}

/// Where the next tag or comment opens.
fn next_tag(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    memchr::memchr_iter(b'{', bytes).find(|at| matches!(bytes.get(at + 1), Some(b'{' | b'%' | b'#')))
}

/// Copies up to an end, or all; answers what follows.
fn through<'s>(text: &'s str, end: Option<usize>, out: &mut String) -> &'s str {
    let (copied, rest) = text.split_at(end.unwrap_or(text.len()));
    out.push_str(copied);
    rest
}

/// A block tag behind its opening: answers what follows it.
fn block<'s>(inner: &'s str, out: &mut String) -> Result<&'s str, String> {
    let signs = inner.trim_start_matches(['-', '+']);
    let word = signs.trim_start();
    let closes = |after: &str| after.trim_start().trim_start_matches(['-', '+']).starts_with("%}");
    for (old, new) in [("generation", "with"), ("endgeneration", "endwith")] {
        if let Some(after) = word.strip_prefix(old).filter(|after| closes(after)) {
            out.push_str(&inner[..inner.len() - word.len()]);
            out.push_str(new);
            return tag_inside(after, "%}", out);
        }
    }
    if word.strip_prefix("raw").is_some_and(closes) {
        return Ok(through(inner, raw_end(inner), out));
    }
    tag_inside(inner, "%}", out)
}

/// Where a raw block's closing tag ends.
fn raw_end(text: &str) -> Option<usize> {
    let mut from = 0;
    loop {
        let at = from + text[from..].find("{%")? + 2;
        let word = text[at..].trim_start_matches(['-', '+']).trim_start();
        if let Some(after) = word.strip_prefix("endraw") {
            let after = after.trim_start().trim_start_matches(['-', '+']);
            if after.starts_with("%}") {
                return Some(text.len() - after.len() + 2);
            }
        }
        from = at;
    }
}

/// Copies a tag's inside with its end, rewriting string literals; answers what follows. As in
/// Jinja2's lexer, the end is not looked for while a bracket is open.
fn tag_inside<'s>(text: &'s str, end: &str, out: &mut String) -> Result<&'s str, String> {
    let mut open = 0_usize;
    let mut done = 0;
    let mut at = 0;
    let mut strings = 0;
    while let Some(step) = text[at..].find(['\'', '"', '(', '[', '{', ')', ']', '}', '%']) {
        at += step;
        if open == 0 && text[at..].starts_with(end) {
            break;
        }
        match text.as_bytes()[at] {
            b'(' | b'[' | b'{' => open += 1,
            b')' | b']' | b'}' => open = open.saturating_sub(1),
            quote @ (b'\'' | b'"') => {
                let Some(length) = literal_end(&text.as_bytes()[at + 1..], quote) else { break };
                out.push_str(&text[done..at]);
                write_literal(&decoded(&text[at + 1..at + 1 + length])?, out);
                at += length + 1;
                strings += length;
                done = at + 1;
            }
            _ => {}
        }
        at += 1;
    }
    if at - strings > TAG {
        return Err(format!("a tag of more than {TAG} bytes"));
    }
    // The end itself, or what the parser will refuse, is copied with what follows it.
    out.push_str(&text[done..at.max(done)]);
    Ok(&text[at.max(done)..])
}

/// Where a string literal ends, behind its opening quote.
fn literal_end(bytes: &[u8], quote: u8) -> Option<usize> {
    let mut at = 0;
    loop {
        at += memchr::memchr2(b'\\', quote, bytes.get(at..)?)?;
        if bytes[at] == quote {
            return Some(at);
        }
        at += 2;
    }
}

/// A string literal's value: Jinja2 encodes to ASCII with `backslashreplace` and decodes with
/// Python's `unicode-escape` (`lexer.py` `Lexer.wrap`).
fn decoded(literal: &str) -> Result<String, String> {
    if !literal.contains('\\') {
        return Ok(literal.to_owned());
    }
    let mut out = String::with_capacity(literal.len());
    let mut chars = literal.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        let number = |digits: &str, base: u32| {
            let code = u32::from_str_radix(digits, base).ok();
            code.and_then(char::from_u32).ok_or_else(|| format!("\\{digits} is no character"))
        };
        let Some(kind) = chars.next() else { return Err("a string ends in a backslash".to_owned()) };
        match kind {
            '\n' => {}
            '\\' | '\'' | '"' => out.push(kind),
            'a' => out.push('\u{7}'),
            'b' => out.push('\u{8}'),
            'f' => out.push('\u{c}'),
            'n' => out.push('\n'),
            'r' => out.push('\r'),
            't' => out.push('\t'),
            'v' => out.push('\u{b}'),
            '0'..='7' => {
                let mut digits = String::from(kind);
                while digits.len() < 3
                    && let Some(digit) = chars.next_if(|c| ('0'..='7').contains(c))
                {
                    digits.push(digit);
                }
                out.push(number(&digits, 8)?);
            }
            'x' | 'u' | 'U' => {
                let length = match kind {
                    'x' => 2,
                    'u' => 4,
                    _ => 8,
                };
                let digits: String = chars.by_ref().take(length).collect();
                if digits.len() != length || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
                    return Err(format!("\\{kind}{digits} is no escape"));
                }
                out.push(number(&digits, 16)?);
            }
            'N' => return Err("\\N{…} is not known here".to_owned()),
            // The backslash takes the one that `backslashreplace` put before the digits.
            c if !c.is_ascii() => {
                let code = u32::from(c);
                let _ = match code {
                    0..=0xff => write!(out, "\\x{code:02x}"),
                    0x100..=0xffff => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
            }
            other => {
                out.push('\\');
                out.push(other);
            }
        }
    }
    Ok(out)
}

/// Writes a string literal that minijinja reads back as it was.
pub fn write_literal(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_comments_stay_as_they_are_but_for_line_ends() {
        let source = "a\r\nb\rc { } '\\x41' {# 'it\\'s' {% #} {% raw %}{{ '\\q' }}{% endraw %} {";
        let want = "a\nb\nc { } '\\x41' {# 'it\\'s' {% #} {% raw %}{{ '\\q' }}{% endraw %} {";
        assert_eq!(ready(source).unwrap(), want);
        for open in ["{{", "{%", "{#", "{{ 'a", "{% raw %}", "{{ ')", "{{ '\\"] {
            assert_eq!(ready(open).unwrap(), open);
        }
    }

    #[test]
    fn string_literals_are_decoded_as_python_decodes_them() {
        let literal = r#"'\x41\101\u00e9\U0001F600\d\/\'"\
é\é\€\a'"#;
        let want = "{{ \"AAé\u{1f600}\\\\d\\\\/'\\\"é\\\\xe9\\\\u20ac\u{7}\" }}";
        assert_eq!(ready(&format!("{{{{ {literal} }}}}")).unwrap(), want);
        for bad in [r"{{ '\x4' }}", r"{{ '\ud83d' }}", r"{{ '\N{DASH}' }}", r"{{ '\U00110000' }}"] {
            assert!(ready(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn generation_blocks_become_scopes() {
        let source =
            "{%- generation -%} x {%+ endgeneration %}{% set generation = 1 %}{{ '{% generation %}' }}";
        let want = "{%- with -%} x {%+ endwith %}{% set generation = 1 %}{{ \"{% generation %}\" }}";
        assert_eq!(ready(source).unwrap(), want);
    }

    #[test]
    fn an_end_within_brackets_is_no_end() {
        let source = "{{ {'a': {}}['\\x41'] }}{% if x == {'b': '%}'} %}'\\d'";
        let want = "{{ {\"a\": {}}[\"A\"] }}{% if x == {\"b\": \"%}\"} %}'\\d'";
        assert_eq!(ready(source).unwrap(), want);
    }
}
