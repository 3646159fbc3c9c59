//! Whether a chat template wants message contents as lists of parts or as text.
//!
//! vLLM 0.32.0 (`renderers/hf.py` `_detect_content_format`) walks Jinja2's syntax tree: a loop over
//! `message.content`, over a macro's parameter that is given it, or over a variable named `content`,
//! means lists ("openai"). Here the same rules are applied to the tags of the source, without a
//! tree: a stated approximation, equal for the templates in use.

use std::collections::BTreeSet;

/// Whether contents reach this template as lists of parts.
pub fn wants_lists(source: &str) -> bool {
    let tags = tags(source);
    let Some(messages) = message_lists(&tags) else { return false };
    let loops = loops(&tags);
    let each: BTreeSet<&str> = loops
        .iter()
        .filter(|a| messages.iter().any(|list| is_access(a.over, list, None)))
        .map(|a| a.target)
        .collect();
    let is_content = |over: &str| each.iter().any(|message| is_access(over, message, Some("content")));
    let macros = macros(&tags, is_content);
    loops.iter().any(|a| {
        is_content(a.over)
            || match a.within {
                Some(name) => macros.iter().any(|m| m.name == name && m.contents.contains(a.over)),
                None => a.over == "content",
            }
    })
}

/// A `for` tag.
struct Loop<'s> {
    target: &'s str,
    over: &'s str,
    /// The macro it stands in.
    within: Option<&'s str>,
}

/// A macro and those of its parameters that are given a message's content.
struct Macro<'s> {
    name: &'s str,
    contents: BTreeSet<&'s str>,
}

/// The insides of all `{% %}` (true) and `{{ }}` (false) tags, in order.
fn tags(source: &str) -> Vec<(bool, &str)> {
    let mut tags = Vec::new();
    let mut rest = source;
    while let Some(at) = rest.find('{') {
        rest = &rest[at + 1..];
        let block = match rest.as_bytes().first() {
            Some(b'#') => {
                rest = rest.find("#}").map_or("", |end| &rest[end + 2..]);
                continue;
            }
            Some(b'%') => true,
            Some(b'{') => false,
            _ => continue,
        };
        let inner = &rest[1..];
        let end = tag_end(inner, if block { '%' } else { '}' });
        let trim = |c: char| c.is_whitespace() || c == '-' || c == '+';
        tags.push((block, inner[..end].trim_matches(trim)));
        rest = &inner[end..];
    }
    tags
}

/// Where a tag's inside ends: at its closing sign, outside strings and brackets.
fn tag_end(inner: &str, sign: char) -> usize {
    let mut depth = 0_usize;
    let mut quote = None;
    let mut escaped = false;
    for (at, c) in inner.char_indices() {
        match (quote, c) {
            _ if escaped => escaped = false,
            (Some(_), '\\') => escaped = true,
            (Some(open), _) => quote = if c == open { None } else { quote },
            (None, '\'' | '"') => quote = Some(c),
            (None, c) if c == sign && depth == 0 && inner[at + 1..].starts_with('}') => return at,
            (None, '{' | '[' | '(') => depth += 1,
            (None, '}' | ']' | ')') => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    inner.len()
}

/// `messages` and the variables that are set to it or a part of it; `None` where one is set to a
/// namespace's field, on which vLLM's detection fails and answers "string".
fn message_lists<'s>(tags: &[(bool, &'s str)]) -> Option<Vec<&'s str>> {
    let mut lists = vec!["messages"];
    let mut at = 0;
    while let Some(list) = lists.get(at).copied() {
        for (target, value) in tags.iter().filter_map(|(block, tag)| assignment(*block, tag)) {
            if is_access(value, list, None) {
                if !is_name(target) {
                    return None;
                }
                if !lists.contains(&target) {
                    lists.push(target);
                }
            }
        }
        at += 1;
    }
    Some(lists)
}

fn assignment(block: bool, tag: &str) -> Option<(&str, &str)> {
    let (target, value) = tag.strip_prefix("set ").filter(|_| block)?.split_once('=')?;
    Some((target.trim(), value.trim()))
}

fn loops<'s>(tags: &[(bool, &'s str)]) -> Vec<Loop<'s>> {
    let mut within = Vec::new();
    let mut loops = Vec::new();
    for (_, tag) in tags.iter().filter(|(block, _)| *block) {
        if let Some(rest) = tag.strip_prefix("macro ") {
            within.push(rest.split('(').next().unwrap_or_default().trim());
        } else if *tag == "endmacro" || tag.starts_with("endmacro ") {
            within.pop();
        } else if let Some((target, over)) = tag.strip_prefix("for ").and_then(|rest| rest.split_once(" in "))
        {
            let over = cut(over, " if ");
            let over = over.strip_suffix(" recursive").unwrap_or(over).trim();
            loops.push(Loop { target: target.trim(), over, within: within.first().copied() });
        }
    }
    loops
}

fn macros<'s>(tags: &[(bool, &'s str)], is_content: impl Fn(&str) -> bool) -> Vec<Macro<'s>> {
    let mut macros = Vec::new();
    for (_, tag) in tags.iter().filter(|(block, _)| *block) {
        let Some((name, params)) = tag.strip_prefix("macro ").and_then(|rest| rest.split_once('(')) else {
            continue;
        };
        let name = name.trim();
        let params: Vec<&str> = arguments(params)
            .iter()
            .map(|param| param.split('=').next().unwrap_or_default().trim())
            .collect();
        let mut contents = BTreeSet::new();
        for (_, tag) in tags.iter().filter(|(block, tag)| !(*block && tag.starts_with("macro "))) {
            for given in calls(tag, name) {
                for (at, argument) in given.iter().enumerate() {
                    let (param, value) = match argument.split_once('=') {
                        Some((key, value)) if is_name(key.trim()) => {
                            (params.iter().find(|param| **param == key.trim()), value.trim())
                        }
                        _ => (params.get(at), argument.trim()),
                    };
                    contents.extend(param.filter(|_| is_content(value)));
                }
            }
        }
        macros.push(Macro { name, contents });
    }
    macros
}

/// The arguments of each call of `name` in a tag.
fn calls<'s>(tag: &'s str, name: &str) -> Vec<Vec<&'s str>> {
    let starts = tag.match_indices(name).filter(|(at, _)| {
        let before = tag[..*at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '.')
    });
    starts
        .filter_map(|(at, _)| tag[at + name.len()..].trim_start().strip_prefix('('))
        .map(arguments)
        .collect()
}

/// Splits what follows an opening parenthesis at its commas, up to the closing one.
fn arguments(text: &str) -> Vec<&str> {
    let mut all = Vec::new();
    let mut rest = text;
    loop {
        let end = level_end(rest, &[',', ')']);
        all.push(&rest[..end]);
        if !rest[end..].starts_with(',') {
            return all;
        }
        rest = &rest[end + 1..];
    }
}

/// The first of some signs outside strings and brackets, or the end.
fn level_end(text: &str, signs: &[char]) -> usize {
    let mut depth = 0_usize;
    let mut quote = None;
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(open), _) => quote = if c == open { None } else { quote },
            (None, '\'' | '"') => quote = Some(c),
            (None, c) if depth == 0 && signs.contains(&c) => return at,
            (None, '{' | '[' | '(') => depth += 1,
            (None, '}' | ']' | ')') => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    text.len()
}

/// The text before a word.
fn cut<'s>(text: &'s str, word: &str) -> &'s str {
    text.split(word).next().unwrap_or(text)
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || c == '_')
}

/// Whether an expression is a variable, or one key of it, behind any slices, filters and tests.
fn is_access(expression: &str, variable: &str, key: Option<&str>) -> bool {
    let mut text = expression.trim();
    while let Some(inner) = text.strip_prefix('(').and_then(|text| text.strip_suffix(')')) {
        text = inner.trim();
    }
    let Some(mut rest) = text.strip_prefix(variable) else { return false };
    if let Some(key) = key {
        let access = [format!(".{key}"), format!("['{key}']"), format!("[\"{key}\"]")];
        let Some(after) = access.iter().find_map(|access| rest.strip_prefix(access.as_str())) else {
            return false;
        };
        rest = after;
    }
    loop {
        let bare = rest.trim_start();
        if bare.is_empty() {
            return true;
        }
        if let Some(index) = rest.strip_prefix('[') {
            let end = level_end(index, &[']']);
            if !index[..end].contains(':') || end == index.len() {
                return false;
            }
            rest = &index[end + 1..];
        } else if let Some(filter) = bare.strip_prefix('|') {
            rest = after_name(filter);
        } else if let Some(test) =
            bare.strip_prefix("is ").filter(|test| !test.trim_start().starts_with("not "))
        {
            rest = after_name(test);
        } else {
            return false;
        }
    }
}

/// What follows a filter's or test's name and arguments.
fn after_name(text: &str) -> &str {
    let text = text.trim_start();
    let end = text.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(text.len());
    match text[end..].strip_prefix('(') {
        Some(inside) => inside.get(level_end(inside, &[')']) + 1..).unwrap_or_default(),
        None => &text[end..],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_over_contents_wants_lists() {
        for source in [
            "{% for m in messages %}{% for c in m.content %}x{% endfor %}{% endfor %}",
            "{%- for m in messages[1:] | list -%}{%- for c in m['content'] | reverse if c -%}",
            "{% set loop_messages = messages[1:] %}{% for m in loop_messages %}{% for c in m[\"content\"] %}",
            "{% for item in content %}",
            "{% macro render(text, x=1) %}{% for i in text %}{% endfor %}{% endmacro %}\
             {% for m in messages %}{{ '}}' + render(m.content, true) }}{% endfor %}",
            "{% macro render(a, text) %}{% for i in text %}{% endfor %}{% endmacro %}\
             {% for m in messages %}{% set x = render(1, text=m.content) %}{% endfor %}",
        ] {
            assert!(wants_lists(source), "{source}");
        }
    }

    #[test]
    fn anything_else_wants_text() {
        for source in [
            "",
            "{% for m in messages %}{{ m.content }}{% endfor %}",
            "{% for m in messages %}{% for c in m.tool_calls %}{% endfor %}{% endfor %}",
            "{# {% for item in content %} #}",
            "{% macro render(content) %}{% for i in content %}{% endfor %}{% endmacro %}",
            "{% set ns.messages = messages %}{% for c in content %}",
            "{% for m in other %}{% for c in m.content %}",
        ] {
            assert!(!wants_lists(source), "{source}");
        }
    }
}
