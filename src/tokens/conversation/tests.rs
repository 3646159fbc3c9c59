use serde_json::json;

use super::*;

fn parse(messages: &[Value], lists: bool) -> Result<Conversation<'_>, &'static str> {
    parse_as(messages, if lists { Contents::Lists } else { Contents::Text { image: None } })
}

fn strings(messages: Value) -> Conversation<'static> {
    parse(Box::leak(Box::new(messages)).as_array().unwrap(), false).unwrap()
}

fn lists(messages: Value) -> Conversation<'static> {
    parse(Box::leak(Box::new(messages)).as_array().unwrap(), true).unwrap()
}

#[test]
fn contents_become_texts_or_lists() {
    let messages = json!([
        {"role": "user", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "b", "x": 1}, {"type": "text", "text": "c"}]},
        {"role": "user", "content": []},
        {"role": "assistant", "content": null},
    ]);
    let contents = |conversation: &Conversation| -> Vec<Value> {
        conversation.messages.iter().map(|message| message["content"].clone()).collect()
    };
    assert_eq!(contents(&strings(messages.clone())), ["a", "b\nc", "", ""]);
    let two = json!([{"type": "text", "text": "b", "x": 1}, {"type": "text", "text": "c"}]);
    assert_eq!(
        contents(&lists(messages)),
        [json!([{"type": "text", "text": "a"}]), two, json!([]), json!([])]
    );
}

#[test]
fn images_are_left_out_and_said_so() {
    let messages = json!([{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "data:"}}, {"type": "text", "text": "what?"}]}]);
    let text = strings(messages.clone());
    assert!(text.media && text.messages[0]["content"] == "what?");
    let list = lists(messages);
    assert!(list.media);
    assert_eq!(list.messages[0]["content"][0], json!({"type": "image"}));
}

#[test]
fn images_are_found_in_order_in_every_form() {
    let found = lists(json!([
        {"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "data:1", "detail": "low"}},
            {"type": "text", "text": "what?"},
            {"type": "input_image", "image_url": "data:2", "detail": "auto"},
            {"image_url": "https://3"},
        ]},
        {"role": "assistant", "content": "a cat"},
        {"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "file:4"}, "uuid": "x"},
            {"type": "image_url", "image_url": null, "uuid": "5"},
        ]},
    ]));
    let url = ImageRef::Url;
    assert_eq!(
        found.images,
        [url("data:1"), url("data:2"), url("https://3"), url("file:4"), ImageRef::Unseen]
    );
    assert!(found.media && !found.other_media);
    for other in ["audio_url", "input_audio", "video_url", "image_embeds", "image_pil"] {
        let found = lists(json!([{"role": "user", "content": [{"type": other, other: "x"}]}]));
        assert!(found.media && found.other_media && found.images.is_empty(), "{other}");
    }
}

#[test]
fn what_stands_for_images_is_put_before_a_text_that_does_not_show_them() {
    let text = |content: Value| {
        let messages = [json!({"role": "user", "content": content})];
        let parsed = parse_as(&messages, Contents::Text { image: Some("<image>") });
        parsed.map(|parsed| parsed.messages[0]["content"].as_str().unwrap().to_owned())
    };
    let image = || json!({"type": "image_url", "image_url": {"url": "data:"}});
    let says = |text: &str| json!({"type": "text", "text": text});
    assert_eq!(text(json!([says("a"), image(), says("b")])).unwrap(), "<image>\na\nb");
    assert_eq!(text(json!([image(), image(), says("a")])).unwrap(), "<image>\n<image>\na");
    assert_eq!(text(json!([image(), image(), says("this <image>")])).unwrap(), "<image>\nthis <image>");
    assert_eq!(text(json!([image()])).unwrap(), "<image>");
    assert_eq!(text(json!([image(), says("")])).unwrap(), "<image>");
    assert!(text(json!([image(), says("<image> <image>")])).is_err());
    assert_eq!(text(json!([says("an <image>")])).unwrap(), "an <image>", "no image, no placeholder");
}

#[test]
fn tool_results_are_text_even_where_contents_are_lists() {
    let conversation = lists(json!([{"role": "tool", "tool_call_id": "1", "content": [
        {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]));
    assert_eq!(conversation.messages[0], json!({"role": "tool", "content": "a\nb", "tool_call_id": "1"}));
}

#[test]
fn tool_calls_get_their_arguments_as_objects() {
    let call = |arguments: Value| {
        json!([{"role": "assistant", "tool_calls":
            [{"type": "function", "id": "1", "function": {"name": "f", "arguments": arguments}}]}])
    };
    for (given, want) in [
        (json!("{\"b\": 1, \"a\": 2}"), r#"{"b":1,"a":2}"#),
        (json!({"a": 1}), r#"{"a":1}"#),
        (json!("[1]"), "{}"),
        (json!("not json"), "{}"),
        (json!(""), "{}"),
    ] {
        let conversation = strings(call(given));
        let calls = conversation.messages[0]["tool_calls"].to_string();
        let want =
            format!(r#"[{{"id":"1","function":{{"arguments":{want},"name":"f"}},"type":"function"}}]"#);
        assert_eq!(calls, want);
    }
    let empty = strings(json!([{"role": "assistant", "content": "x", "tool_calls": []}]));
    assert_eq!(empty.messages[0], json!({"role": "assistant", "content": "x"}));
}

#[test]
fn reasoning_goes_by_both_its_names() {
    let conversation = strings(json!([{"role": "assistant", "content": "x", "reasoning_content": "r"}]));
    let want = json!({"role": "assistant", "content": "x", "reasoning": "r", "reasoning_content": "r"});
    assert_eq!(conversation.messages[0], want);
}

#[test]
fn what_the_engine_refuses_is_said() {
    for message in [
        json!({"content": "x"}),
        json!({"role": "user", "content": 5}),
        json!({"role": "user", "content": ["a", "b"]}),
        json!({"role": "user", "content": [{"type": "hologram"}]}),
        json!({"role": "user", "content": [{"type": "text", "text": 5}]}),
        json!({"role": "assistant", "tool_calls": [{"type": "custom"}]}),
    ] {
        assert!(parse(std::slice::from_ref(&message), false).is_err(), "{message}");
    }
}

#[test]
fn tools_are_dumped_as_the_engine_dumps_them() {
    let given = json!([{"function": {"strict": null, "parameters": {"b": 1}, "name": "f", "x": 2}, "y": 3}]);
    let dumped = tools(given.as_array().unwrap()).unwrap();
    let want = r#"[{"type":"function","function":{"name":"f","description":null,"parameters":{"b":1}}}]"#;
    assert_eq!(serde_json::to_string(&dumped).unwrap(), want);
    assert!(tools(&[json!({"type": "function"})]).is_err());
}

#[test]
fn a_developer_speaks_as_the_system_where_the_template_knows_none() {
    let messages = json!([{"role": "user", "content": "u"}, {"role": "developer", "content": "d"}, {"role": "system", "content": "s"}]);
    let messages = messages.as_array().unwrap().clone();
    assert_eq!(developer_as_system(messages.clone(), "x == 'developer'"), messages);
    let want = json!([{"role": "system", "content": "d\n\ns"}, {"role": "user", "content": "u"}]);
    assert_eq!(Value::from(developer_as_system(messages, "")), want);
}

#[test]
fn the_changing_header_of_one_client_is_dropped() {
    let conversation =
        strings(json!([{"role": "system", "content": "x-anthropic-billing-header: cch=1\nrest"}]));
    assert_eq!(conversation.messages[0]["content"], "rest");
}
