//! Text marked safe: Python's `Markup` (markupsafe), which escapes what is joined to it.
//!
//! No chat template escapes its output, but `|safe` and `|escape` are in use, and a sum with their
//! result escapes the other side.

use minijinja::value::Value;

/// A text that is safe where another is.
pub fn like(model: &Value, text: String) -> Value {
    if model.is_safe() { Value::from_safe_string(text) } else { Value::from(text) }
}

/// The sum of two texts, each with whether it is safe.
pub fn joined((left, left_safe): (&str, bool), (right, right_safe): (&str, bool)) -> Value {
    if !left_safe && !right_safe {
        return Value::from([left, right].concat());
    }
    let mut all = String::with_capacity(left.len() + right.len());
    for (text, safe) in [(left, left_safe), (right, right_safe)] {
        if safe { all.push_str(text) } else { escape(text, &mut all) }
    }
    Value::from_safe_string(all)
}

/// Escapes as markupsafe 3 does (`_native.py`).
pub fn escape(text: &str, out: &mut String) {
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_with_safe_text_escapes_the_other_side() {
        let sum = joined(("<a b='1\"'>&", false), ("<b>", true));
        assert_eq!(sum.as_str(), Some("&lt;a b=&#39;1&#34;&#39;&gt;&amp;<b>"));
        assert!(sum.is_safe());
        assert!(!joined(("<", false), (">", false)).is_safe());
    }
}
