//! `continue_final_message`: the last message is marked, rendered, and cut open at the mark
//! (transformers 5.19 `utils/chat_template_utils.py` `render_jinja_template`).

use serde_json::Value;

const MARK: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// Appends the mark to the last message's last text, which is returned.
pub fn mark(messages: &mut [Value], template: &str) -> Result<String, &'static str> {
    let content = messages.last_mut().and_then(|message| message.get_mut("content"));
    let content = content.ok_or("there is no final message to continue")?;
    if !template.contains("content") {
        return Err("the chat template does not show contents");
    }
    let text = match content {
        Value::Array(parts) => parts.iter_mut().rev().find_map(|part| part.get_mut("text")),
        other => Some(other),
    };
    let Some(Value::String(text)) = text else { return Err("the final message has no text to continue") };
    let before = text.clone();
    text.push_str(MARK);
    Ok(before)
}

/// Cuts the rendered text at the mark.
pub fn cut(rendered: &str, message: &str) -> Result<String, &'static str> {
    let at = rendered.rfind(MARK.trim_end()).filter(|_| rendered.contains(message.trim()));
    let at = at.ok_or("the chat template does not show the final message")?;
    let open = &rendered[..at];
    // Where the template trimmed the mark it trimmed the message too.
    Ok(if rendered[at..].starts_with(MARK) { open } else { open.trim_end() }.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_text_ends_where_the_final_message_does() {
        let mut messages = [json!({"role": "assistant", "content": [{"type": "text", "text": "1, 2, "}]})];
        let message = mark(&mut messages, "content").unwrap();
        assert_eq!(message, "1, 2, ");
        let rendered = format!("A: {}<end>", messages[0]["content"][0]["text"].as_str().unwrap());
        assert_eq!(cut(&rendered, &message).unwrap(), "A: 1, 2, ");
        assert_eq!(cut(&rendered.replace("TAG ", "TAG"), &message).unwrap(), "A: 1, 2,");
        assert!(cut("A: <end>", &message).is_err());
        assert!(mark(&mut [json!({"content": null})], "content").is_err());
        assert!(mark(&mut [json!({"content": "x"})], "").is_err());
    }
}
