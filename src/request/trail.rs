//! The beginnings of a prompt, as keyed hashes: what tells how much of it an engine has seen before.

use std::collections::VecDeque;

use highway::{HighwayHash as _, HighwayHasher};
use serde_json::Value;

use super::client::TenantKey;
use super::prompt::{Prompt, PromptItem};

/// The first mark by bytes; from there on two in each octave.
const FIRST: u64 = 512;
/// Ends of messages that are marked: the last ones, which the next turn repeats.
const ENDS: usize = 16;

/// A place in a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// The keyed hash of all before it.
    pub hash: u64,
    /// How much is before it, in the unit of [`Trail::whole`].
    pub at: u64,
}

/// Marks along a prompt. Two prompts with the same beginning have the same marks there: they stand at sizes
/// that do not depend on what follows, and at the ends of messages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trail {
    /// In the order of the prompt; some dozens at most.
    pub marks: Vec<Mark>,
    /// The size of the whole prompt, in bytes here; any unit will do.
    pub whole: u64,
}

impl Trail {
    /// The trail of a prompt; `None` where it has no text, or several prompts share the request.
    #[must_use]
    pub fn of(prompt: &Prompt, key: &TenantKey) -> Option<Self> {
        let mut writer = Writer::new(key);
        match prompt {
            Prompt::Items { items, .. } => match items.as_slice() {
                [PromptItem::Text(text)] => writer.text(text.as_bytes()),
                _ => return None,
            },
            Prompt::Chat(chat) => {
                // Where they stand in the text is the template's matter; what differs in them differs there.
                for part in [&chat.tools, &chat.documents].into_iter().flatten().flatten() {
                    writer.value(part);
                }
                writer.text(chat.chat_template.as_deref().unwrap_or_default().as_bytes());
                for message in &chat.messages {
                    writer.value(message);
                    writer.end();
                }
            }
            Prompt::Unread { .. } => return None,
        }
        Some(writer.trail())
    }
}

/// Hashes what is written, and marks places in it.
struct Writer {
    hasher: HighwayHasher,
    at: u64,
    next: u64,
    sizes: Vec<Mark>,
    ends: VecDeque<Mark>,
}

impl Writer {
    fn new(key: &TenantKey) -> Self {
        let hasher = HighwayHasher::new(key.long());
        Self { hasher, at: 0, next: FIRST, sizes: Vec::new(), ends: VecDeque::new() }
    }

    fn mark(&self) -> Mark {
        Mark { hash: self.hasher.clone().finalize64(), at: self.at }
    }

    fn text(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = usize::try_from(self.next - self.at).unwrap_or(usize::MAX);
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.hasher.append(now);
            self.at += now.len() as u64;
            bytes = later;
            if self.at == self.next {
                self.sizes.push(self.mark());
                self.next = after(self.next);
            }
        }
    }

    /// All texts of a value, each behind a byte that no text holds.
    fn value(&mut self, value: &Value) {
        self.text(b"\xFF");
        match value {
            Value::String(text) => self.text(text.as_bytes()),
            Value::Array(all) => all.iter().for_each(|one| self.value(one)),
            Value::Object(members) => {
                for (name, one) in members {
                    self.text(name.as_bytes());
                    self.value(one);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => self.text(value.to_string().as_bytes()),
        }
    }

    fn end(&mut self) {
        if self.ends.len() == ENDS {
            self.ends.pop_front();
        }
        self.ends.push_back(self.mark());
    }

    fn trail(mut self) -> Trail {
        let whole = self.at;
        let mut marks = std::mem::take(&mut self.sizes);
        marks.extend(self.ends);
        marks.sort_unstable_by_key(|mark| mark.at);
        marks.dedup();
        Trail { marks, whole }
    }
}

/// The size after this one: 512, 768, 1024, 1536, 2048 …
const fn after(size: u64) -> u64 {
    if size.is_power_of_two() { size + size / 2 } else { size / 3 * 4 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::request::{Api, dialect};

    fn chat(messages: &serde_json::Value) -> Trail {
        let body = json!({ "messages": messages }).to_string();
        let reading = dialect::read(Api::Chat, body.as_bytes()).unwrap();
        Trail::of(&reading.prompt, &TenantKey::from_bytes([7; 16])).unwrap()
    }

    /// The last mark that two trails share.
    fn common(a: &Trail, b: &Trail) -> u64 {
        a.marks.iter().filter(|mark| b.marks.contains(mark)).map(|mark| mark.at).max().unwrap_or(0)
    }

    #[test]
    fn the_next_turn_repeats_all_of_the_one_before() {
        let mut messages = json!([{"role": "system", "content": "Be brief. ".repeat(500)}]);
        let mut before = chat(&messages);
        for turn in 0..60 {
            for role in ["user", "assistant"] {
                let said = json!({"role": role, "content": format!("{turn} {}", "word ".repeat(turn % 9))});
                messages.as_array_mut().unwrap().push(said);
            }
            let now = chat(&messages);
            assert_eq!(common(&before, &now), before.whole);
            assert!(now.marks.len() <= 60, "{}", now.marks.len());
            before = now;
        }
    }

    #[test]
    fn what_differs_at_the_start_shares_nothing() {
        let one = chat(&json!([{"role": "user", "content": format!("a{}", "x".repeat(9000))}]));
        let other = chat(&json!([{"role": "user", "content": format!("b{}", "x".repeat(9000))}]));
        assert_eq!(common(&one, &other), 0);
    }

    proptest! {
        #[test]
        fn two_texts_share_marks_exactly_within_their_common_beginning(
            start in "[a-c]{0,4000}", one in "[d-f]{1,3000}", other in "[g-i]{1,3000}",
        ) {
            let trail = |rest: &str| {
                let text = PromptItem::Text(format!("{start}{rest}"));
                let prompt = Prompt::Items { items: vec![text], add_special_tokens: true };
                Trail::of(&prompt, &TenantKey::from_bytes([7; 16])).unwrap()
            };
            let (one, other) = (trail(&one), trail(&other));
            let shared = common(&one, &other);
            prop_assert!(shared <= start.len() as u64);
            // No more than a third of the beginning is lost between two marks.
            prop_assert!(start.len() < 512 || shared * 3 >= start.len() as u64 * 2);
            prop_assert!(one.marks.windows(2).all(|two| two[0].at < two[1].at));
        }
    }
}
