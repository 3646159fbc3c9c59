//! The bytes of answers and stream events, field by field as vLLM 0.32 writes them.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::ask::Form;
use super::outbox::Finish;

/// What every event and answer of one request repeats.
#[derive(Debug, Clone)]
pub(super) struct Letterhead {
    /// Which API.
    pub form: Form,
    /// `chatcmpl-…` or `cmpl-…`.
    pub id: String,
    /// Unix seconds.
    pub created: u64,
    /// The served model's name.
    pub model: String,
    /// Prompt tokens of all prompts.
    pub prompt_tokens: u64,
}

/// One finished choice of a plain answer.
#[derive(Debug, Clone, Default)]
pub(super) struct Choice {
    /// The text so far.
    pub text: String,
    /// Output tokens so far.
    pub tokens: u64,
    /// Why it ended, once it has.
    pub finish: Option<Finish>,
}

/// vLLM's fingerprint: version and a hash of the configuration.
const FINGERPRINT: &str = "vllm-0.32.0-51ed0e7e";
/// The last event of a stream.
pub(super) const DONE: &str = "data: [DONE]\n\n";

impl Letterhead {
    /// The whole of a plain answer.
    pub fn plain(&self, choices: &[Choice]) -> Value {
        let completion: u64 = choices.iter().map(|c| c.tokens).sum();
        let usage = json!({
            "prompt_tokens": self.prompt_tokens, "total_tokens": self.prompt_tokens + completion,
            "completion_tokens": completion, "prompt_tokens_details": null, "completion_tokens_details": null,
        });
        let choices: Vec<Value> = choices.iter().enumerate().map(|(i, c)| self.choice(i, c)).collect();
        match self.form {
            Form::Completion => json!({
                "id": self.id, "object": "text_completion", "created": self.created, "model": self.model,
                "choices": choices, "service_tier": null, "system_fingerprint": FINGERPRINT, "usage": usage,
                "kv_transfer_params": null, "ec_transfer_params": null, "metrics": null,
            }),
            Form::Chat => json!({
                "id": self.id, "object": "chat.completion", "created": self.created, "model": self.model,
                "choices": choices, "service_tier": null, "system_fingerprint": FINGERPRINT, "usage": usage,
                "prompt_logprobs": null, "prompt_token_ids": null, "prompt_text": null,
                "kv_transfer_params": null, "ec_transfer_params": null, "metrics": null,
            }),
        }
    }

    fn choice(&self, index: usize, choice: &Choice) -> Value {
        let finish = choice.finish.map(Finish::word);
        match self.form {
            Form::Completion => json!({
                "index": index, "text": choice.text, "logprobs": null, "finish_reason": finish,
                "stop_reason": null, "token_ids": null, "prompt_logprobs": null, "prompt_token_ids": null,
                "routed_experts": null,
            }),
            Form::Chat => json!({
                "index": index,
                "message": {
                    "role": "assistant", "content": choice.text, "refusal": null, "annotations": null,
                    "audio": null, "function_call": null, "reasoning": null,
                },
                "logprobs": null, "finish_reason": finish, "stop_reason": null, "token_ids": null,
                "routed_experts": null,
            }),
        }
    }

    fn open(&self) -> String {
        let object = match self.form {
            Form::Completion => "text_completion",
            Form::Chat => "chat.completion.chunk",
        };
        format!(
            "data: {{\"id\":{},\"object\":\"{object}\",\"created\":{},\"model\":{}",
            json!(self.id),
            self.created,
            json!(self.model)
        )
    }

    fn usage(&self, completion: u64, chat_details: bool) -> String {
        let details = if chat_details { ",\"completion_tokens_details\":null" } else { "" };
        format!(
            ",\"usage\":{{\"prompt_tokens\":{},\"total_tokens\":{},\"completion_tokens\":{completion}{details}}}",
            self.prompt_tokens,
            self.prompt_tokens + completion
        )
    }

    /// The event that opens a chat's choice.
    pub fn role_event(&self, index: u32, usage: bool) -> String {
        let mut out = self.open();
        let _ = write!(
            out,
            ",\"choices\":[{{\"index\":{index},\"delta\":{{\"role\":\"assistant\",\"content\":\"\"}},\
             \"logprobs\":null,\"finish_reason\":null}}]"
        );
        if usage {
            out.push_str(&self.usage(0, true));
        }
        out.push_str(",\"prompt_token_ids\":null,\"prompt_text\":null}\n\n");
        out
    }

    /// An event with new text. `sofar`: the choice's output tokens, where the usage is to be told;
    /// `closing`: whether it is the stream's last before `[DONE]`.
    pub fn text_event(
        &self,
        index: u32,
        text: &str,
        finish: Option<Finish>,
        sofar: Option<u64>,
        closing: bool,
    ) -> String {
        let (text, reason) = (json!(text), json!(finish.map(Finish::word)));
        let mut out = self.open();
        let _ = match (self.form, finish) {
            (Form::Completion, _) => write!(
                out,
                ",\"choices\":[{{\"index\":{index},\"text\":{text},\"logprobs\":null,\"finish_reason\":{reason},\
                 \"stop_reason\":null,\"prompt_token_ids\":null,\"token_ids\":null}}]"
            ),
            (Form::Chat, None) => write!(
                out,
                ",\"choices\":[{{\"index\":{index},\"delta\":{{\"content\":{text}}},\"logprobs\":null,\
                 \"finish_reason\":null,\"token_ids\":null}}]"
            ),
            (Form::Chat, Some(_)) => write!(
                out,
                ",\"choices\":[{{\"index\":{index},\"delta\":{{\"content\":{text}}},\"logprobs\":null,\
                 \"finish_reason\":{reason},\"stop_reason\":null,\"token_ids\":null}}]"
            ),
        };
        if let Some(tokens) = sofar {
            out.push_str(&self.usage(tokens, self.form == Form::Chat));
        }
        if closing {
            let _ = write!(out, ",\"system_fingerprint\":\"{FINGERPRINT}\"");
        }
        out.push_str("}\n\n");
        out
    }

    /// The event with the usage of the whole request.
    pub fn usage_event(&self, completion: u64) -> String {
        format!(
            "{},\"choices\":[]{},\"system_fingerprint\":\"{FINGERPRINT}\"}}\n\n",
            self.open(),
            self.usage(completion, false)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(form: Form) -> Letterhead {
        Letterhead { form, id: "cmpl-x".into(), created: 17, model: "tiny".into(), prompt_tokens: 20 }
    }

    #[test]
    fn events_have_the_bytes_that_vllm_sends() {
        let chat = head(Form::Chat);
        assert_eq!(
            chat.role_event(0, false),
            "data: {\"id\":\"cmpl-x\",\"object\":\"chat.completion.chunk\",\"created\":17,\"model\":\"tiny\",\
             \"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\
             \"finish_reason\":null}],\"prompt_token_ids\":null,\"prompt_text\":null}\n\n"
        );
        assert_eq!(
            chat.text_event(0, "\u{1}", Some(Finish::Length), None, false),
            "data: {\"id\":\"cmpl-x\",\"object\":\"chat.completion.chunk\",\"created\":17,\"model\":\"tiny\",\
             \"choices\":[{\"index\":0,\"delta\":{\"content\":\"\\u0001\"},\"logprobs\":null,\
             \"finish_reason\":\"length\",\"stop_reason\":null,\"token_ids\":null}]}\n\n"
        );
        let completion = head(Form::Completion);
        assert_eq!(
            completion.text_event(0, " a", None, None, false),
            "data: {\"id\":\"cmpl-x\",\"object\":\"text_completion\",\"created\":17,\"model\":\"tiny\",\
             \"choices\":[{\"index\":0,\"text\":\" a\",\"logprobs\":null,\"finish_reason\":null,\
             \"stop_reason\":null,\"prompt_token_ids\":null,\"token_ids\":null}]}\n\n"
        );
        assert_eq!(
            completion.usage_event(8),
            "data: {\"id\":\"cmpl-x\",\"object\":\"text_completion\",\"created\":17,\"model\":\"tiny\",\
             \"choices\":[],\"usage\":{\"prompt_tokens\":20,\"total_tokens\":28,\"completion_tokens\":8},\
             \"system_fingerprint\":\"vllm-0.32.0-51ed0e7e\"}\n\n"
        );
    }
}
