use proptest::prelude::*;

use super::*;
use crate::request::{ChatPrompt, PromptItem, PromptKind, Shape};

fn comp(body: &str) -> Result<Reading, ReadError> {
    read(Api::Completions, body.as_bytes())
}

fn chat(body: &str) -> Result<Reading, ReadError> {
    read(Api::Chat, body.as_bytes())
}

fn items(body: &str) -> Vec<PromptItem> {
    match comp(body).unwrap().prompt {
        Prompt::Items { items, .. } => items,
        other => panic!("{body}: {other:?}"),
    }
}

fn conversation(body: &str) -> ChatPrompt {
    match chat(body).unwrap().prompt {
        Prompt::Chat(chat) => *chat,
        other => panic!("{body}: {other:?}"),
    }
}

fn shape(body: &str) -> Shape {
    chat(body).unwrap().shape
}

fn text(text: &str) -> PromptItem {
    PromptItem::Text(text.to_owned())
}

const HI: &str = r#""messages": [{"role": "user", "content": "Hi there"}]"#;

#[test]
fn prompts_of_completions_are_read_as_the_engine_reads_them() {
    assert_eq!(items(r#"{"prompt": "Hi there"}"#), [text("Hi there")]);
    assert_eq!(items(r#"{"prompt": ["Hi", "Hello there"]}"#), [text("Hi"), text("Hello there")]);
    assert_eq!(items(r#"{"prompt": [39, 72, 68, 75]}"#), [PromptItem::Ids { len: 4 }]);
    assert_eq!(
        items(r#"{"prompt": [[39, 72], [68, 75, 75]]}"#),
        [PromptItem::Ids { len: 2 }, PromptItem::Ids { len: 3 }]
    );
    assert_eq!(items(r#"{"prompt": ["1", "2"]}"#), [text("1"), text("2")]);
    assert_eq!(items(r#"{"prompt": [1.0, true, "3"]}"#), [PromptItem::Ids { len: 3 }]);
    assert_eq!(items(r#"{"prompt": ["", ""]}"#), [text(""), text("")]);
}

#[test]
fn the_last_of_a_repeated_key_counts_and_unknown_fields_do_not() {
    let body = r#"{"model":"tiny","prompt":"a","prompt":"hello big world","max_tokens":2,"temperature":0}"#;
    assert_eq!(items(body), [text("hello big world")]);
    assert_eq!(items(r#"{"prompt":"a","pr\u006fmpt":"b"}"#), [text("b")], "an escaped key is the same key");
    assert_eq!(items(r#"{"prompt": "Hi there", "foo": [{"x": 1e99}]}"#), [text("Hi there")]);
    assert_eq!(items("\u{feff}{\"prompt\": \"x\"}"), [text("x")], "Python takes a byte order mark");
}

#[test]
fn what_is_not_json_is_refused_where_it_stands() {
    let at = |body: &[u8]| match read(Api::Chat, body) {
        Err(ReadError::NotJson { line, column, .. }) => (line, column),
        other => panic!("{other:?}"),
    };
    assert_eq!(at(b""), (1, 1));
    assert_eq!(at(br#"{"model": "tiny", "messages": ["#), (1, 31));
    assert_eq!(at(b"not json"), (1, 2));
    assert_eq!(at(b"{\"model\":\"tiny\",\n\"prompt\":\"\xff\xfe\"}"), (2, 11));
    assert_eq!(at(br#"{"messages": [], "temperature": NaN}"#).0, 1);
    assert_eq!(at("{\"messages\":\n [\"\\ud800\"]}".as_bytes()).0, 2);
    assert_eq!(at(b"\x1f\x8b\x08\x00gzip").0, 1);
    let utf16: Vec<u8> = "{\"messages\":[]}".encode_utf16().flat_map(u16::to_le_bytes).collect();
    at(&utf16);
    at(format!("{{\"messages\":[{}{}]}}", "[".repeat(200), "]".repeat(200)).as_bytes());
    at(br#"{"messages": []} x"#);
}

#[test]
fn what_cannot_be_counted_and_no_engine_takes_is_refused() {
    let wrong = [
        (comp(r#"{"prompt": 5}"#), "prompt"),
        (comp(r#"{"prompt": {"a": 1}}"#), "prompt"),
        (comp(r#"{"prompt": ["Hi", [1, 2]]}"#), "prompt"),
        (comp(r#"{"prompt": [[1], ["a"]]}"#), "prompt"),
        (comp(r#"{"prompt": [-1, 2]}"#), "prompt"),
        (chat(r#"{"messages": "Hi"}"#), "messages"),
        (chat(r#"{"messages": ["Hi"]}"#), "messages"),
    ];
    for (read, name) in wrong {
        assert!(matches!(&read, Err(ReadError::WrongType { field, .. }) if *field == name), "{read:?}");
    }
    for (body, kind) in [("[1]", "an array"), ("\"x\"", "a string"), ("5", "a number"), ("null", "null")] {
        assert_eq!(chat(body), Err(ReadError::NotAnObject { found: kind }), "{body}");
    }
}

#[test]
fn what_the_engine_decides_is_left_to_it() {
    let completions = [
        r#"{"model": "tiny", "max_tokens": 4}"#,
        r#"{"prompt": null}"#,
        r#"{"prompt": ""}"#,
        r#"{"prompt": []}"#,
        r#"{"prompt": [[]]}"#,
        r#"{"prompt": "Hi there", "suffix": "end"}"#,
        r#"{"prompt_embeds": "AAAA"}"#,
        r#"{"prompt": "a", "add_special_tokens": null}"#,
        r#"{"prompt": "a", "truncate_prompt_tokens": -2}"#,
        r#"{"prompt": "a", "truncate_prompt_tokens": "x"}"#,
    ];
    for body in completions {
        let reading = comp(body).unwrap();
        assert!(matches!(reading.prompt, Prompt::Unread { .. }), "{body}: {reading:?}");
    }
    let more = [
        r#""tools": []"#,
        r#""tools": {"a": 1}"#,
        r#""documents": "x""#,
        r#""chat_template": 5"#,
        r#""chat_template_kwargs": []"#,
        r#""continue_final_message": true"#,
        r#""add_generation_prompt": "maybe""#,
    ];
    for field in more {
        let reading = chat(&format!("{{{HI}, {field}}}")).unwrap();
        assert!(matches!(reading.prompt, Prompt::Unread { .. }), "{field}: {reading:?}");
    }
    for body in [r#"{"model": "tiny"}"#, r#"{"messages": [], "max_tokens": 4}"#] {
        assert!(matches!(chat(body).unwrap().prompt, Prompt::Unread { .. }), "{body}");
    }
}

#[test]
fn a_feature_of_a_wrong_type_is_the_engines_business() {
    for field in [r#""n": "x""#, r#""n": -1"#, r#""stream": 7"#, r#""logit_bias": "a""#, r#""tools": 1e9999"#]
    {
        let body = format!("{{{HI}, {field}}}");
        match chat(&body) {
            Ok(reading) => assert_eq!(reading.shape.n, 0, "{field}"),
            Err(error) => assert!(matches!(error, ReadError::NotJson { .. }), "{error:?}"),
        }
    }
    let huge = shape(&format!("{{{HI}, \"n\": 99999999999, \"max_tokens\": 1e29, \"min_tokens\": -5}}"));
    assert_eq!((huge.n, huge.max_output_tokens, huge.min_tokens), (u32::MAX, Some(u64::MAX), 0));
    assert_eq!(shape(&format!("{{{HI}, \"max_tokens\": -1}}")).max_output_tokens, None);
}

#[test]
fn a_chat_is_read_with_all_that_changes_its_count() {
    let body = format!(
        r#"{{{HI}, "tools": [{{"type": "function"}}], "documents": [{{"text": "x"}}], "chat_template": "T",
        "chat_template_kwargs": {{"a": 1}}, "reasoning_effort": "none", "add_generation_prompt": 0,
        "continue_final_message": "yes", "add_special_tokens": true, "truncate_prompt_tokens": -1,
        "stream": true, "stream_options": {{"include_usage": true}}}}"#
    );
    let reading = chat(&body).unwrap();
    assert!(reading.include_usage && reading.shape.stream);
    assert_eq!((reading.truncate, reading.shape.tools), (Some(-1), 1));
    let chat = conversation(&body);
    assert_eq!(chat.chat_template.as_deref(), Some("T"));
    assert!(!chat.add_generation_prompt && chat.continue_final_message && chat.add_special_tokens);
    assert_eq!((chat.tools.unwrap().len(), chat.documents.unwrap().len()), (1, 1));
    let kwargs = serde_json::to_string(&chat.template_kwargs).unwrap();
    assert_eq!(kwargs, r#"{"a":1,"enable_thinking":false,"reasoning_effort":"none"}"#);
    let plain = conversation(&format!("{{{HI}}}"));
    assert!(plain.add_generation_prompt && !plain.add_special_tokens && !plain.continue_final_message);
}

#[test]
fn token_ids_that_a_prefill_engine_sent_along_are_the_prompt() {
    let body = format!("{{{HI}, \"kv_transfer_params\": {{\"prompt_token_ids\": [1, 2, 3]}}}}");
    let reading = chat(&body).unwrap();
    let want = Prompt::Items { items: vec![PromptItem::Ids { len: 3 }], add_special_tokens: false };
    assert_eq!((reading.prompt, reading.shape.prompt_kind), (want, PromptKind::Ids));
}

#[test]
fn the_shape_of_a_completion_is_whole() {
    let body = r#"{"model": "m", "prompt": ["a", "b"], "n": 2, "best_of": 3, "logprobs": 5, "echo": true,
        "min_tokens": 4, "logit_bias": {"1": 2, "3": 4}, "guided_regex": "a+", "stream": "true"}"#;
    let shape = comp(body).unwrap().shape;
    assert_eq!((shape.n, shape.best_of, shape.prompts, shape.sequences()), (2, Some(3), 2, 6));
    assert_eq!((shape.top_logprobs, shape.prompt_logprobs, shape.echo), (Some(5), Some(5), true));
    assert_eq!((shape.min_tokens, shape.logit_bias, shape.stream), (4, 2, true));
    assert_eq!((shape.structured.as_deref(), shape.max_output_tokens), (Some("regex"), Some(16)));
    let beams = comp(r#"{"prompt": "Hi", "n": 4, "use_beam_search": true, "max_tokens": 2}"#).unwrap().shape;
    assert_eq!((beams.best_of, beams.max_output_tokens), (Some(4), Some(2)));
    let ids = comp(r#"{"prompt": [1], "prompt_logprobs": -1}"#).unwrap().shape;
    assert_eq!((ids.prompt_kind, ids.prompt_logprobs), (PromptKind::Ids, Some(u32::MAX)));
}

#[test]
fn the_shape_of_a_chat_is_whole() {
    let body = r#"{"messages": [{"role": "user", "content": [{"type": "text", "text": "x"},
        {"type": "image_url", "image_url": {"url": "data:"}}, {"image_url": "http://x"}]}],
        "max_tokens": 9, "max_completion_tokens": 7, "logprobs": true,
        "response_format": {"type": "json_schema", "json_schema": {}}}"#;
    let shape = shape(body);
    assert_eq!((shape.images, shape.max_output_tokens, shape.top_logprobs), (2, Some(7), Some(0)));
    assert_eq!(shape.structured.as_deref(), Some("json_schema"));
    let outputs = format!("{{{HI}, \"structured_outputs\": {{\"choice\": [\"a\"]}}, \"max_tokens\": null}}");
    let shape = super::tests::shape(&outputs);
    assert_eq!((shape.structured.as_deref(), shape.max_output_tokens), (Some("choice"), None));
}

#[test]
fn ten_thousand_messages_are_read() {
    let one = r#"{"role": "user", "content": "x"}"#;
    let body = format!("{{\"messages\": [{}]}}", vec![one; 10_000].join(","));
    assert_eq!(conversation(&body).messages.len(), 10_000);
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_panic(body in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = read(Api::Chat, &body);
        let _ = read(Api::Completions, &body);
    }

    #[test]
    fn a_mutated_body_is_read_without_panic(at in 0_usize..400, byte in any::<u8>(), cut in 0_usize..400) {
        let whole = format!(
            r#"{{{HI}, "prompt": ["a", [1, -2.5, "3"], {{}}], "tools": [{{"a": [null]}}], "n": 3,
            "chat_template_kwargs": {{"a": {{"b": "\u00e9"}}}}, "stream_options": {{"include_usage": 1}},
            "kv_transfer_params": {{"prompt_token_ids": [1]}}, "truncate_prompt_tokens": 5}}"#
        );
        let mut body = whole.into_bytes();
        let len = body.len();
        body[at % len] = byte;
        body.truncate(len - cut % len);
        let _ = read(Api::Chat, &body);
        let _ = read(Api::Completions, &body);
    }
}

#[test]
fn a_body_of_countless_tiny_values_is_refused_before_it_fills_memory() {
    let body = |n: usize, value: &str| {
        let values = vec![value; n].join(",");
        format!(r#"{{"messages":[{{"role":"user","content":"hi","x":[{values}]}}]}}"#)
    };
    for value in ["1", "{}", "[]", r#"{"":0}"#] {
        let refused = chat(&body(300_000, value));
        assert!(matches!(refused, Err(ReadError::TooManyValues { .. })), "{value}");
    }
    assert!(chat(&body(100_000, "1")).is_ok());
    // Commas in text are text.
    let text = format!(r#"{{"messages":[{{"role":"user","content":"{}"}}]}}"#, ",:[{".repeat(200_000));
    assert!(chat(&text).is_ok());
}
