//! What one request leaves behind: its ledger entry, its permit, its figures. Ends by `Drop`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::events::Usage;
use super::respond::Wire;
use crate::admit::{Permit, Rule, Shadow, reached};
use crate::ledger::{Ending, Entry};
use crate::request::{Api, Outcome, Tokens};
use crate::telemetry::{self, Event};
use crate::tokens::Truth;

/// Tokens that one piece of a stream holds at most, for its gap to say anything (speculative decoding).
const MOST_TOKENS_A_PIECE: u64 = 8;

/// The longest prompt that the running engine has answered: what it has proven it can bear.
#[derive(Debug, Default)]
pub struct Proven {
    incarnation: AtomicU64,
    prompt: AtomicU64,
}

impl Proven {
    /// Notes an answer to a prompt of so many tokens.
    pub fn note(&self, incarnation: u64, prompt: u64) {
        if self.incarnation.swap(incarnation, Ordering::Relaxed) == incarnation {
            self.prompt.fetch_max(prompt, Ordering::Relaxed);
        } else {
            self.prompt.store(prompt, Ordering::Relaxed);
        }
    }

    /// Whether a prompt of so many tokens is longer than any that was answered.
    #[must_use]
    pub fn unproven(&self, prompt: u64) -> bool {
        prompt > self.prompt.load(Ordering::Relaxed)
    }
}

/// What the records of all requests share.
pub struct Common {
    /// Compares counts with the engine's.
    pub truth: Arc<Truth>,
    /// The longest prompt that was answered.
    pub proven: Proven,
    /// What the rules in shadow would have done.
    pub shadow: Shadow,
}

/// What a record needs to know about its request.
pub struct About {
    /// kvgate's id.
    pub id: String,
    /// The API.
    pub api: Api,
    /// When its head was read.
    pub arrived: Instant,
    /// Prompt tokens, where counted exactly.
    pub prompt: Option<u64>,
    /// Sequences asked for.
    pub sequences: u64,
    /// Which life of the engine it was sent to.
    pub incarnation: u64,
    /// The engine was known to be away when it was sent.
    pub away: bool,
}

/// One request's record.
pub struct Record {
    /// Taken when the record ends.
    entry: Option<Entry>,
    /// The request.
    pub about: About,
    permit: Option<Permit>,
    common: Arc<Common>,
    outcome: Option<Outcome>,
    status: u16,
    reason: Option<&'static str>,
    /// The rules that judged it in shadow, and for what they would have refused it.
    shadow: Vec<(Rule, Option<&'static str>)>,
    last_token: Option<Instant>,
    output: u64,
    usage: Option<Usage>,
    sent: bool,
}

impl Record {
    /// The record of a request that just arrived.
    #[must_use]
    pub const fn new(entry: Entry, about: About, common: Arc<Common>) -> Self {
        Self {
            entry: Some(entry),
            about,
            permit: None,
            common,
            outcome: None,
            status: 0,
            reason: None,
            shadow: Vec::new(),
            last_token: None,
            output: 0,
            usage: None,
            sent: false,
        }
    }

    /// The ledger entry.
    #[must_use]
    pub const fn entry(&self) -> Option<&Entry> {
        self.entry.as_ref()
    }

    /// Time since arrival that was not spent in the queue.
    #[must_use]
    pub fn added(&self) -> Duration {
        let queued = self.permit.as_ref().map_or(Duration::ZERO, Permit::waited);
        self.about.arrived.elapsed().saturating_sub(queued)
    }

    /// A plain answer is whole: its tokens came all at once.
    pub fn whole_answer(&mut self, usage: Option<Usage>) {
        let output = usage.and_then(|u| u.output).unwrap_or(0);
        self.pieces(u64::from(output > 0), usage);
    }

    /// Whether the request carries a prompt that was read.
    #[must_use]
    pub fn is_prompt(&self) -> bool {
        self.about.api != Api::Other
    }

    /// Sequences whose finish ends the answer.
    #[must_use]
    pub const fn sequences(&self) -> u64 {
        self.about.sequences
    }

    /// The prompt, where no token of the answer has come yet and no prompt as long was ever answered.
    #[must_use]
    pub fn unproven(&self) -> Option<u64> {
        self.about.prompt.filter(|prompt| self.last_token.is_none() && self.common.proven.unproven(*prompt))
    }

    /// Holds the place in the engine until the engine is done.
    pub fn admitted(&mut self, permit: Permit) {
        self.permit = Some(permit);
    }

    /// A rule in shadow judged it: for which reason it would have refused it, if it would.
    pub fn shadowed(&mut self, rule: Rule, reason: Option<&'static str>) {
        self.shadow.push((rule, reason));
    }

    /// What the queue in shadow would have done, as far as it knows by now.
    fn queue_in_shadow(&mut self) {
        if let Some(permit) = self.permit.as_ref().filter(|permit| permit.in_shadow()) {
            self.shadow.push((Rule::Capacity, permit.would_refuse()));
        }
    }

    /// The request is refused.
    pub fn refused(mut self, wire: &Wire, outcome: Outcome) {
        self.reason = Some(wire.reason);
        self.status = wire.status.as_u16();
        self.outcome = Some(outcome);
    }

    /// The request is refused after its answer began.
    pub fn refused_in_stream(mut self, wire: &Wire, outcome: Outcome) {
        self.reason = Some(wire.reason);
        self.status = 200;
        self.outcome = Some(outcome);
    }

    /// The status that goes to the client.
    pub const fn status(&mut self, status: u16) {
        self.status = status;
    }

    /// How it will have ended, whatever the client does; the first word counts.
    pub fn outcome(&mut self, outcome: Outcome) {
        self.outcome.get_or_insert(outcome);
    }

    /// So many more pieces of the answer came, and perhaps the engine's own counts.
    pub fn pieces(&mut self, pieces: u64, usage: Option<Usage>) {
        let before = self.output;
        if pieces > 0 {
            let now = Instant::now();
            match self.last_token.replace(now) {
                None => {
                    if let Some(entry) = &self.entry {
                        entry.first_token();
                    }
                    if let Some(permit) = &self.permit {
                        permit.first_token();
                    }
                    telemetry::emit(Event::FirstToken {
                        ttft: now.saturating_duration_since(self.about.arrived),
                    });
                }
                Some(last) => {
                    let gap = now.saturating_duration_since(last) / u32::try_from(pieces).unwrap_or(u32::MAX);
                    telemetry::emit(Event::NextToken { gap });
                }
            }
            self.output += pieces;
        }
        if let Some(usage) = usage {
            self.usage = Some(usage);
            if let Some(output) = usage.output {
                self.output = output;
            }
        }
        if pieces > 0 || usage.is_some() {
            if let Some(entry) = &self.entry {
                entry.output(Tokens(self.output));
            }
            let total = Tokens(self.output);
            // More than so came earlier than now: an answer at once, or pieces of several tokens.
            let now = self.output.saturating_sub(before) <= pieces.saturating_mul(MOST_TOKENS_A_PIECE);
            match &self.permit {
                Some(permit) if now => permit.tokens(total),
                Some(permit) => permit.corrected(total),
                None => {}
            }
        }
    }

    /// Says to the queue that the engine may have died, where it broke this answer.
    fn suspect(&self) {
        if let Some(permit) = self.permit.as_ref().filter(|_| self.outcome == Some(Outcome::EngineCrashed)) {
            permit.suspect();
        }
    }

    /// The engine is done with it: its place is free.
    pub fn engine_done(&mut self) {
        let fine = self.outcome.is_none();
        self.queue_in_shadow();
        self.suspect();
        if let Some(permit) = self.permit.take()
            && fine
        {
            permit.completed(Tokens(self.output));
        }
        if fine && let Some(prompt) = self.about.prompt {
            self.common.proven.note(self.about.incarnation, prompt);
        }
        if let (Some(usage), Some(ours)) = (self.usage.take(), self.about.prompt) {
            self.common.truth.compared(self.about.api, ours, usage.prompt, &self.about.id);
        }
    }

    /// The last byte was handed over.
    pub const fn sent(&mut self) {
        self.sent = true;
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.queue_in_shadow();
        self.suspect();
        let default = if self.sent { Outcome::Completed } else { Outcome::ClientGone };
        let outcome = self.outcome.unwrap_or(default);
        for (rule, reason) in &self.shadow {
            let engine_outcome = outcome.label();
            if let Some(reason) = reason {
                telemetry::emit(Event::WouldRefuse { reason, engine_outcome, id: &self.about.id });
            }
            if reached(outcome) {
                self.common.shadow.note(*rule, reason.is_some(), outcome);
                let (refused, completed) = (reason.is_some(), outcome == Outcome::Completed);
                let crashed = outcome == Outcome::EngineCrashed;
                telemetry::emit(Event::Shadowed { rule: rule.label(), refused, completed, crashed });
            }
        }
        if let Some(entry) = self.entry.take() {
            entry.end(Ending { outcome, status: self.status, reason: self.reason });
        }
    }
}
