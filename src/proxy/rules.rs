//! The rules that need no waiting, and what a rule's mode makes of its verdict.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::forward::Failure;
use super::pipeline::Pipeline;
use super::record::Record;
use super::respond::Refusal;
use crate::admit::{Limits, Mode, OutputRule, Rejection, Rule, length};
use crate::request::{Api, Client, Count, Reading, Shape, Tokens};
use crate::telemetry::{self, Event};
use crate::tokens::CountError;

/// How long ago a request that may have killed the engine was sent at most.
const IN_PREFILL: Duration = Duration::from_secs(10);

impl Pipeline {
    /// The rules that need no waiting: requests per minute, then length.
    pub(super) fn within_limits(
        &self,
        shape: &Shape,
        count: Option<&Count>,
        client: &Client,
        record: &mut Record,
    ) -> Result<(), Refusal> {
        if self.parts.modes.get(Rule::Rates) != Mode::Off {
            let rates = Arc::clone(&self.parts.terms.borrow().rates);
            let verdict = rates.check(&client.tenant).map(|_| ()).map_err(Refusal::from);
            self.judge(Rule::Rates, verdict, record)?;
        }
        if let Some(count) = count
            && self.parts.modes.get(Rule::Length) != Mode::Off
        {
            let limits = self.limits(shape, record.about.api);
            let verdict = length::check(&limits, count, shape).map_err(Refusal::from);
            self.judge(Rule::Length, verdict, record)?;
        }
        if let (Some(count), Some(guard)) = (count, self.parts.gate.guard()) {
            let verdict = length::guarded(guard, count).map_err(Refusal::from);
            self.judge(Rule::Guard, verdict, record)?;
        }
        Ok(())
    }

    /// The upper bound of a prompt that could not be counted now, where that is within every limit.
    pub(super) async fn bounded(
        &self,
        reading: &Arc<Reading>,
        limits: &Limits,
        tenant: &str,
    ) -> Option<Count> {
        let bound = self.parts.counter.bound(reading, tenant).await?;
        let fitting = limits.engine.filter(|_| reading.truncate == Some(-1));
        let bound = fitting.map_or(bound, |context| bound.cut_to(context.saturating_sub(Tokens(1))));
        length::fits(limits, &bound, &reading.shape).then(|| {
            telemetry::emit(Event::Bounded);
            bound
        })
    }

    /// What a rule's mode makes of its verdict.
    pub(super) fn judge(
        &self,
        rule: Rule,
        verdict: Result<(), Refusal>,
        record: &mut Record,
    ) -> Result<(), Refusal> {
        match (verdict, self.parts.modes.get(rule)) {
            (Ok(()), Mode::Enforce) | (_, Mode::Off) => Ok(()),
            (verdict, Mode::Shadow) => {
                record.shadowed(rule, verdict.err().map(|refusal| refusal.wire(self.too_long()).reason));
                Ok(())
            }
            (Err(refusal), Mode::Enforce) => Err(refusal),
        }
    }

    /// What a client is told whose request the engine did not survive, or never lived to see.
    pub(super) fn died_under(&self, record: &Record) -> Failure {
        let retry_after = self.parts.forward.retry_after();
        if record.about.away {
            return Failure::Unreachable { why: "it has stopped", retry_after };
        }
        Failure::Crashed { retry_after, suspect: self.suspect(record) }
    }

    /// Whether a request under which the engine died may be what killed it, so that sending it again could
    /// kill the next one: it was sent a short time ago and not answered, its prompt is longer than any that
    /// this engine has answered, and no other that was with the engine is longer.
    fn suspect(&self, record: &Record) -> bool {
        let Some(prompt) = record.unproven() else { return false };
        let now = Instant::now();
        let recent = |at: Instant| now.saturating_duration_since(at) < IN_PREFILL;
        let flights = self.parts.ledger.flights();
        let mine = flights.iter().find(|f| f.record.id == record.about.id);
        mine.and_then(|f| f.admitted).is_some_and(recent)
            && !flights.iter().any(|f| {
                let there = f.admitted.is_some_and(recent) && f.ended.is_none_or(recent);
                there && f.record.t_first_token.is_none() && f.record.shape.prompt().get() > prompt
            })
    }

    /// The length limits for a request of this shape.
    pub(super) fn limits(&self, shape: &Shape, api: Api) -> Limits {
        let snapshot = self.parts.snapshot.borrow();
        let pool = snapshot.sample.as_ref().and_then(|s| s.pool);
        let model = snapshot.facts.model(shape.model.as_deref());
        let terms = self.parts.terms.borrow();
        let settings = &terms.settings;
        Limits {
            engine: model.and_then(|m| m.max_model_len).or_else(|| snapshot.facts.context_length()),
            configured: settings.length.max_prompt_tokens.map(|limit| Tokens(limit.get())),
            profiled: terms.profile.as_ref().and_then(|p| p.limit_for(shape)),
            pool: pool.map(|p| p.ceiling()),
            pool_certain: pool.is_some(),
            drift_margin: self.parts.truth.margin(api),
            strict_output: settings.length.output == OutputRule::Strict,
        }
    }
}

/// The smallest limit: counting may stop beyond it.
pub(super) fn smallest(limits: &Limits) -> Option<Tokens> {
    let all = [limits.engine, limits.configured, limits.profiled];
    all.into_iter().flatten().min().map(|limit| limit + limits.drift_margin)
}

/// The refusal where a prompt could not be counted now, and the rule that it is of; none where the engine is to decide.
pub(super) fn uncounted(error: &CountError) -> Option<(Rule, Rejection)> {
    match error {
        CountError::Busy { .. } => {
            Some((Rule::Capacity, Rejection::CountBusy { retry_after: Duration::from_secs(1) }))
        }
        CountError::Share { retry_after } => {
            Some((Rule::Capacity, Rejection::CountShare { retry_after: *retry_after }))
        }
        CountError::TooDear => Some((Rule::Body, Rejection::CountTooDear)),
        _ => None,
    }
}
