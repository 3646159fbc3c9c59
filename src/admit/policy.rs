//! Rules to compare with: what others do, on the same books.

use super::capacity::{Comparison, Policy};

/// What these rules look at.
#[derive(Debug, Clone, Copy)]
pub struct View {
    /// Requests in flight.
    pub in_flight: usize,
    /// Prompt tokens in the engine without a first token.
    pub prefill: f64,
    /// Prompt tokens of the request.
    pub prompt: u64,
    /// KV usage of the last scrape, 0–1.
    pub kv_usage: Option<f64>,
    /// Requests waiting in the engine at the last scrape.
    pub waiting: f64,
    /// Whether the last scrape is recent.
    pub fresh: bool,
}

/// Whether the rule holds the request. With nothing in flight none does.
#[must_use]
pub fn holds(policy: Policy, by: &Comparison, view: &View) -> bool {
    if view.in_flight == 0 {
        return false;
    }
    let usage = view.kv_usage.unwrap_or(0.0);
    match policy {
        Policy::Kvgate | Policy::None => false,
        Policy::Cap => view.in_flight as u64 >= by.inflight,
        Policy::KvThreshold => usage >= by.kv_usage,
        Policy::KvAndQueue => !view.fresh || (view.waiting / by.waiting).max(usage / by.kv_usage) >= 1.0,
        Policy::PrefillCap => {
            view.prefill > 0.0 && view.prefill + view.prompt as f64 > by.prefill_tokens as f64
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VIEW: View =
        View { in_flight: 10, prefill: 1000.0, prompt: 500, kv_usage: Some(0.5), waiting: 0.0, fresh: true };

    #[test]
    fn each_rule_looks_at_what_it_says() {
        let by =
            Comparison { inflight: 11, kv_usage: 0.8, waiting: 5.0, prefill_tokens: 1500, queue_share: None };
        let full = View { in_flight: 11, ..VIEW };
        let used = View { kv_usage: Some(0.8), ..VIEW };
        let waiting = View { waiting: 5.0, ..VIEW };
        let stale = View { fresh: false, ..VIEW };
        let long = View { prompt: 501, ..VIEW };
        let says = |policy| [VIEW, full, used, waiting, stale, long].map(|view| holds(policy, &by, &view));
        assert_eq!(says(Policy::None), [false; 6]);
        assert_eq!(says(Policy::Cap), [false, true, false, false, false, false]);
        assert_eq!(says(Policy::KvThreshold), [false, false, true, false, false, false]);
        assert_eq!(says(Policy::KvAndQueue), [false, false, true, true, true, false]);
        assert_eq!(says(Policy::PrefillCap), [false, false, false, false, false, true]);
        let first = View { prefill: 0.0, prompt: 10_000, ..VIEW };
        assert!(!holds(Policy::PrefillCap, &by, &first), "the first prompt always goes");
        assert!(!holds(Policy::Cap, &by, &View { in_flight: 0, ..full }));
    }
}
