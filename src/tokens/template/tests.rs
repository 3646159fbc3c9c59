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
    assert_eq!(render("{{ x }}|{{ none }}|{{ y }}", context).unwrap(), "{'a': [1, 1.0, None, True]}|None|");
    let list = json!({"x": [1, null, "a"]});
    assert_eq!(render("{{ x | join('-') }}{{ x[0] | string }}", list).unwrap(), "1-None-a1");
}

/// One case of `tests/data/tokens/templates.jsonl`.
#[derive(serde::Deserialize)]
struct Case {
    template: String,
    /// What Python makes of it; nothing where it refuses.
    rendered: Option<String>,
}

#[test]
fn small_templates_give_what_python_gives() {
    let mut lines = include_str!("../../../tests/data/tokens/templates.jsonl").lines();
    let context: serde_json::Value = serde_json::from_str(lines.next().unwrap()).unwrap();
    let mut seen = 0;
    let mut wrong = Vec::new();
    for line in lines {
        let case: Case = serde_json::from_str(line).unwrap();
        let ours = render(&case.template, context.clone());
        seen += 1;
        if ours.as_ref().ok() != case.rendered.as_ref() {
            wrong.push(format!("{}\n   python {:?}\n   ours   {ours:?}", case.template, case.rendered));
        }
    }
    assert!(wrong.is_empty(), "{} of {seen} are wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(seen > 500, "only {seen} cases");
}

/// A template that is in use, with most of what templates use.
const LARGE: &str = include_str!("../../../tests/data/tokens/tiny-llama3/chat_template.jinja");

#[test]
fn no_change_of_a_template_makes_a_panic() {
    let snippets = [
        "{%",
        "%}",
        "{{",
        "}}",
        "{#",
        "#}",
        "-",
        "'",
        "\"",
        "\\",
        "(",
        ")",
        "[",
        "]",
        "|",
        "~",
        "+",
        " in ",
        " is ",
        " not ",
        "none",
        "{% for x in ",
        "{% endfor %}",
        "{% raw %}",
        "{% generation %}",
        "loop(",
        "x.items",
        "\u{1f600}",
        "\u{0}",
        "99999999999999999999",
        "1e999",
        " if ",
        " else ",
        ":",
        ",",
        "%",
        "**",
        "{% macro a(",
    ];
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        usize::try_from(seed % below.max(1) as u64).unwrap()
    };
    let context = json!({"messages": [{"role": "user", "content": "é"}, {"role": "x", "content": null}]});
    let mut compiled = 0;
    for _ in 0..3000 {
        let mut text: Vec<char> = LARGE.chars().collect();
        for _ in 0..1 + next(3) {
            let at = next(text.len());
            let end = (at + next(12)).min(text.len());
            let new: Vec<char> = match next(3) {
                0 => Vec::new(),
                1 => snippets[next(snippets.len())].chars().collect(),
                _ => {
                    let from = next(text.len());
                    text[from..(from + next(40)).min(text.len())].to_vec()
                }
            };
            text.splice(at..end, new);
        }
        let text: String = text.into_iter().collect();
        compiled +=
            usize::from(!matches!(render(&text, context.clone()), Err(CountError::NoTemplate { .. })));
    }
    assert!((300..3000).contains(&compiled), "{compiled} of 3000 compiled");
}

proptest::proptest! {
    #[test]
    fn any_text_renders_or_is_refused(text in "([{}%#'\"|~+ -]|[a-c]|\\PC){0,60}") {
        let _ = render(&text, json!({"a": null, "b": [1], "c": "x"}));
    }
}

#[test]
fn deep_nesting_is_refused() {
    for (open, close) in [
        ("(", ")"),
        ("[", "]"),
        ("{'a': ", "}"),
        ("not ", ""),
        ("-", ""),
        ("x|upper(", ")"),
        ("", ".a"),
        ("", "|e"),
        ("", "[0]"),
        ("", "()"),
        ("", " is odd"),
        ("", " if 1"),
        ("1 if 1 else ", ""),
        ("1 and ", ""),
        ("1**", ""),
        ("1<", ""),
        ("1-", ""),
    ] {
        for times in [100, 3_000, 20_000] {
            let source = format!("{{{{ {}1{} }}}}", open.repeat(times), close.repeat(times));
            let rendered = render(&source, json!({}));
            assert!(rendered.is_err() || times < 20_000, "{open}1{close}");
        }
    }
    let source = format!("{}{}", "{% if true %}".repeat(20_000), "{% endif %}".repeat(20_000));
    assert!(render(&source, json!({})).is_err());
}

#[test]
fn a_request_cannot_nest_values_too_deep() {
    let source = "{% set ns = namespace(l=[]) %}{% for i in range(99) %}{% for j in range(99999) %}\
                  {% set ns.l = [ns.l] %}{% endfor %}{% endfor %}";
    let mut templates = Templates::new([]);
    templates.set_fuel(u64::MAX / 100);
    let chosen = templates.choose(Some(source), false).unwrap();
    let clock = Clock { now: SystemTime::UNIX_EPOCH, offset_minutes: 0 };
    let rendered = templates.render(&chosen, Map::new(), clock);
    assert!(matches!(rendered, Err(CountError::TemplateEndless { .. })), "{rendered:?}");
}

#[test]
fn long_chains_are_no_nesting() {
    let source = format!("{{{{ 'a'{}{}|length }}}}", " + 'b'".repeat(1_500), " ~ 'c'".repeat(1_500));
    assert_eq!(
        render(&source, json!({})).unwrap(),
        format!("a{}{}", "b".repeat(1_500), "c".repeat(1_499)) + "1"
    );
    let mut elif = "{% if x == 0 %}0".to_owned();
    for n in 1..500 {
        elif.push_str(&format!("{{% elif x == {n} %}}{n}"));
    }
    elif.push_str("{% endif %}");
    assert_eq!(render(&elif, json!({"x": 499})).unwrap(), "499");
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
    let source = "{% if true %}\r\n  a\r\n  {% endif %}\r\nb{%- generation -%} c {%- endgeneration %}\r\n";
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
        "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(99) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
        "{% for i in range(99999) %}{% set x = ('a' * 9999)[::-1] %}{% endfor %}",
        "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{{ ('a' * 99999999)|list|length }}",
        "{{ 'a' * 999999 | replace('a', 'b' * 99999) }}",
    ] {
        let rendered = render(source, json!({}));
        assert!(rendered.is_err(), "{source}: {} bytes", rendered.unwrap().len());
    }
}
