//! How much of the engine each tenant has had: virtual token counters.
//!
//! A tenant's counter grows by its prompt tokens and twice its output tokens over its weight (an output
//! token costs the engine a place in every step until it is there; the weights are those of "Fairness in
//! Serving Large Language Models", OSDI '24). Who has the smallest goes first. Tokens and not
//! KV-token-seconds: those of a long stream are known only when it has ended, and until then its tenant
//! would go on being served. What they would show, that one tenant's streams hold the memory, is a
//! matter of room: a tenant that holds far more than its share must leave some free for the others.

use std::collections::HashMap;

use indexmap::IndexMap;

/// Weights of prompt and output tokens.
pub const PROMPT: f64 = 1.0;
pub const OUTPUT: f64 = 2.0;
/// Tenants whose counter is kept while nothing of theirs is here.
const KEPT: usize = 4096;
/// A tenant holds far more than its share from this multiple on.
const FAR_MORE: f64 = 1.5;

/// One tenant.
#[derive(Debug, Clone, Copy, Default)]
struct Account {
    counter: f64,
    queued: usize,
    in_flight: usize,
    /// Tokens of its sequences in the engine.
    held: f64,
}

impl Account {
    const fn active(&self) -> bool {
        self.queued + self.in_flight > 0
    }
}

/// The accounts of all tenants.
#[derive(Debug, Clone, Default)]
pub struct Shares {
    accounts: IndexMap<u64, Account>,
    weights: HashMap<u64, f64>,
    held: f64,
    /// Tenants that hold anything.
    holders: usize,
}

impl Shares {
    /// Accounts for tenants, some of them with a weight other than 1.
    #[must_use]
    pub fn new(weights: HashMap<u64, f64>) -> Self {
        Self { weights, ..Self::default() }
    }

    /// Other weights from now on; what each has had stays as it was counted.
    pub fn reweigh(&mut self, weights: HashMap<u64, f64>) {
        self.weights = weights;
    }

    /// A request of the tenant joins the queue. One that was away begins where the others are: what it
    /// did not use meanwhile is gone.
    pub fn queued(&mut self, tenant: u64) {
        self.account(tenant).queued += 1;
    }

    /// It leaves the queue.
    pub fn unqueued(&mut self, tenant: u64) {
        if let Some(account) = self.accounts.get_mut(&tenant) {
            account.queued = account.queued.saturating_sub(1);
        }
    }

    /// It goes to the engine with so many prompt tokens in all its sequences.
    pub fn sent(&mut self, tenant: u64, prompt: u64) {
        let by = PROMPT * prompt as f64 / self.weight(tenant);
        let account = self.account(tenant);
        account.counter += by;
        account.in_flight += 1;
        self.hold(tenant, prompt as f64);
    }

    /// So many more output tokens came.
    pub fn generated(&mut self, tenant: u64, tokens: u64) {
        self.charged(tenant, tokens);
        self.hold(tenant, tokens as f64);
    }

    /// So many output tokens came with an answer that is over: they hold nothing.
    pub fn charged(&mut self, tenant: u64, tokens: u64) {
        let by = OUTPUT * tokens as f64 / self.weight(tenant);
        if let Some(account) = self.accounts.get_mut(&tenant) {
            account.counter += by;
        }
    }

    /// It left the engine, where it held so many tokens.
    pub fn left(&mut self, tenant: u64, held: u64) {
        self.hold(tenant, -(held as f64));
        if let Some(account) = self.accounts.get_mut(&tenant) {
            account.in_flight = account.in_flight.saturating_sub(1);
        }
    }

    /// The engine is gone, with all that was in it.
    pub fn clear(&mut self) {
        self.accounts.values_mut().for_each(|account| (account.in_flight, account.held) = (0, 0.0));
        (self.held, self.holders) = (0.0, 0);
    }

    /// The counter of a tenant; smaller goes first.
    #[must_use]
    pub fn counter(&self, tenant: u64) -> f64 {
        self.accounts.get(&tenant).map_or(0.0, |account| account.counter)
    }

    /// Whether the tenant holds far more of the engine than an equal share among those that hold any.
    #[must_use]
    pub fn holds_far_more(&self, tenant: u64) -> bool {
        let Some(account) = self.accounts.get(&tenant) else { return false };
        self.holders > 1 && account.held > FAR_MORE * self.held / self.holders as f64 * self.weight(tenant)
    }

    /// The counter that a tenant would have if a request of it came now.
    #[must_use]
    pub fn counter_if_it_came(&self, tenant: u64) -> f64 {
        match self.accounts.get(&tenant) {
            Some(account) if account.active() => account.counter,
            account => account.map_or(0.0, |account| account.counter).max(self.floor()),
        }
    }

    /// The share of a tenant against that of one with 1.
    #[must_use]
    pub fn weight(&self, tenant: u64) -> f64 {
        self.weights.get(&tenant).copied().unwrap_or(1.0)
    }

    fn hold(&mut self, tenant: u64, tokens: f64) {
        let Some(account) = self.accounts.get_mut(&tenant) else { return };
        let before = account.held;
        account.held = (account.held + tokens).max(0.0);
        self.held = (self.held + account.held - before).max(0.0);
        match (before > 0.0, account.held > 0.0) {
            (false, true) => self.holders += 1,
            (true, false) => self.holders -= 1,
            _ => {}
        }
    }

    /// The smallest counter of those that are here.
    fn floor(&self) -> f64 {
        let active = self.accounts.values().filter(|account| account.active());
        active.map(|account| account.counter).reduce(f64::min).unwrap_or(0.0)
    }

    fn account(&mut self, tenant: u64) -> &mut Account {
        if self.accounts.get(&tenant).is_none_or(|account| !account.active()) {
            let floor = self.floor();
            if !self.accounts.contains_key(&tenant) && self.accounts.len() >= KEPT {
                self.accounts.retain(|_, account| account.active());
            }
            let account = self.accounts.entry(tenant).or_default();
            account.counter = account.counter.max(floor);
        }
        self.accounts.entry(tenant).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_had_less_goes_first_by_weight() {
        let mut shares = Shares::new(HashMap::from([(2, 4.0)]));
        (1..=2).for_each(|tenant| shares.queued(tenant));
        (1..=2).for_each(|tenant| shares.sent(tenant, 100));
        (1..=2).for_each(|tenant| shares.generated(tenant, 50));
        assert_eq!((shares.counter(1), shares.counter(2)), (200.0, 50.0));
    }

    #[test]
    fn who_was_away_begins_where_the_others_are() {
        let mut shares = Shares::default();
        shares.sent(1, 1000);
        shares.queued(2);
        assert_eq!(shares.counter(2), 1000.0);
        shares.unqueued(2);
        shares.generated(1, 500);
        shares.queued(2);
        assert_eq!(shares.counter(2), 2000.0);
    }

    #[test]
    fn a_tenant_that_holds_far_more_is_seen_until_it_has_left() {
        let mut shares = Shares::default();
        shares.sent(1, 1000);
        assert!(!shares.holds_far_more(1), "alone it may have all");
        shares.sent(2, 100);
        assert!(shares.holds_far_more(1) && !shares.holds_far_more(2));
        shares.left(1, 1000);
        assert!(!shares.holds_far_more(1) && !shares.holds_far_more(2));
        assert_eq!((shares.held, shares.holders), (100.0, 1));
        shares.clear();
        assert_eq!((shares.held, shares.holders), (0.0, 0));
    }

    #[test]
    fn the_accounts_are_bounded_and_none_that_is_active_is_lost() {
        let mut shares = Shares::default();
        shares.sent(7, 10);
        for tenant in 100..20_000 {
            shares.queued(tenant);
            shares.unqueued(tenant);
        }
        assert!(shares.accounts.len() <= KEPT && shares.counter(7) == 10.0);
    }
}
