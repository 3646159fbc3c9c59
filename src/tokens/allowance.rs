//! How much of the counting time one tenant may use.
//!
//! Each tenant owes the time that was spent on its prompts, and is forgiven a share of all counting time as it passes.
//! Who owes more than ten seconds of that is told to come back when it no longer does. Bounded: tenants beyond a number
//! share one account. Pure: the time is handed in.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

/// Accounts kept.
const MOST: usize = 4096;
/// The account of those beyond.
const OTHERS: u64 = u64::MAX;
/// Seconds of a tenant's share that may be owed.
const CREDIT: f64 = 10.0;

/// The accounts.
#[derive(Debug)]
pub struct Allowance {
    /// Counting seconds forgiven in each second.
    rate: f64,
    accounts: HashMap<u64, Account>,
}

#[derive(Debug, Clone, Copy)]
struct Account {
    owed: f64,
    at: Instant,
}

impl Allowance {
    /// Each tenant has `share` (0–1) of what `threads` can count.
    #[must_use]
    pub fn new(share: f64, threads: usize) -> Self {
        Self { rate: share.clamp(0.01, 1.0) * threads.max(1) as f64, accounts: HashMap::new() }
    }

    fn owed(&self, tenant: u64, now: Instant) -> f64 {
        let account = self.accounts.get(&tenant);
        account.map_or(0.0, |a| {
            (a.owed - now.saturating_duration_since(a.at).as_secs_f64() * self.rate).max(0.0)
        })
    }

    fn account(&self, tenant: u64) -> u64 {
        if self.accounts.len() < MOST || self.accounts.contains_key(&tenant) { tenant } else { OTHERS }
    }

    /// How long a tenant must wait until it may have another prompt counted; `None`: not at all.
    #[must_use]
    pub fn wait(&self, tenant: u64, now: Instant) -> Option<Duration> {
        let over = self.owed(self.account(tenant), now) - CREDIT * self.rate;
        (over > 0.0).then(|| Duration::from_secs_f64((over / self.rate).min(3600.0)))
    }

    /// So much time was spent on a tenant's prompt.
    pub fn spent(&mut self, tenant: u64, spent: Duration, now: Instant) {
        let tenant = self.account(tenant);
        let owed = self.owed(tenant, now) + spent.as_secs_f64();
        self.accounts.insert(tenant, Account { owed, at: now });
        if self.accounts.len() > MOST {
            let rate = self.rate;
            self.accounts.retain(|_, a| a.owed > now.saturating_duration_since(a.at).as_secs_f64() * rate);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_spends_more_than_its_share_waits_and_others_do_not() {
        let now = Instant::now();
        let mut allowance = Allowance::new(0.5, 2);
        allowance.spent(1, Duration::from_secs(10), now);
        assert_eq!(allowance.wait(1, now), None);
        allowance.spent(1, Duration::from_secs(4), now);
        assert_eq!(allowance.wait(1, now), Some(Duration::from_secs(4)));
        assert_eq!(allowance.wait(2, now), None);
        assert_eq!(allowance.wait(1, now + Duration::from_secs(5)), None);
    }

    #[test]
    fn accounts_are_bounded() {
        let now = Instant::now();
        let mut allowance = Allowance::new(0.5, 1);
        for tenant in 0..100_000 {
            allowance.spent(tenant, Duration::from_secs(1), now);
        }
        assert!(allowance.accounts.len() <= MOST + 1);
        assert!(allowance.wait(1_000_000, now).is_some(), "those beyond share one");
        assert_eq!(allowance.wait(5, now), None);
    }
}
