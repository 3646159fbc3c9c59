//! Requests per minute of each tenant: a contract limit, never a load signal.
//!
//! GCRA (the `governor` crate), one bucket per tenant, a bounded number of tenants: those beyond
//! it share one bucket. A bucket that has been idle for as long as it takes to fill is forgotten,
//! which changes no verdict.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use governor::clock::Clock;
use governor::middleware::StateInformationMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::request::Tenant;

use super::rejection::Rejection;

/// The per-tenant request limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RateSettings {
    /// Requests per minute of one tenant, at least 1; absent means no limit.
    pub requests_per_minute: Option<NonZeroU32>,
    /// Requests that may come at once, at least 1; absent means as many as in one minute.
    pub burst: Option<NonZeroU32>,
    /// Tenants that have a bucket of their own; those beyond share one. At least 1.
    pub max_tenants: usize,
}

impl Default for RateSettings {
    fn default() -> Self {
        Self { requests_per_minute: None, burst: None, max_tenants: 10_000 }
    }
}

/// How a tenant stands after a request that passed: the `x-ratelimit-*` headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// Requests per minute.
    pub limit: u32,
    /// Requests that would pass at once now.
    pub remaining: u32,
    /// Until the bucket is full again.
    pub reset: Duration,
}

/// Tokio's clock as governor wants it: time since a start, so that paused tests are obeyed.
#[derive(Debug, Clone)]
struct Since(Instant);

impl Clock for Since {
    type Instant = Duration;

    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}

type Limiter = RateLimiter<NotKeyed, InMemoryState, Since, StateInformationMiddleware>;

struct Bucket {
    limiter: Limiter,
    used: Duration,
}

/// The buckets of all tenants.
pub struct Rates {
    rule: Option<Limit>,
}

struct Limit {
    per_minute: NonZeroU32,
    burst: NonZeroU32,
    max_tenants: usize,
    clock: Since,
    buckets: Mutex<Buckets>,
}

#[derive(Default)]
struct Buckets {
    /// `None` is the bucket shared by the tenants beyond the bound.
    by_tenant: HashMap<Option<Tenant>, Bucket>,
    swept: Duration,
}

impl Rates {
    /// No limit where none is configured.
    #[must_use]
    pub fn new(settings: &RateSettings) -> Self {
        let rule = settings.requests_per_minute.map(|per_minute| Limit {
            per_minute,
            burst: settings.burst.unwrap_or(per_minute),
            max_tenants: settings.max_tenants.max(1),
            clock: Since(Instant::now()),
            buckets: Mutex::default(),
        });
        Self { rule }
    }

    /// Takes one request out of the tenant's bucket; `None` where no limit is configured.
    ///
    /// # Errors
    ///
    /// [`Rejection::RateLimited`]; a refused request takes nothing.
    pub fn check(&self, tenant: &Tenant) -> Result<Option<Standing>, Rejection> {
        self.rule.as_ref().map(|limit| limit.check(tenant)).transpose()
    }

    /// Tenants that have a bucket now, for the state page.
    #[must_use]
    pub fn tenants(&self) -> usize {
        self.rule.as_ref().map_or(0, |limit| limit.lock().by_tenant.len())
    }
}

impl Limit {
    fn lock(&self) -> std::sync::MutexGuard<'_, Buckets> {
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time in which one request is given back.
    fn period(&self) -> Duration {
        Duration::from_secs(60) / self.per_minute.get()
    }

    fn check(&self, tenant: &Tenant) -> Result<Standing, Rejection> {
        let now = self.clock.now();
        let mut buckets = self.lock();
        let mut key = Some(tenant.clone());
        if buckets.by_tenant.len() >= self.max_tenants && !buckets.by_tenant.contains_key(&key) {
            buckets.sweep(now, self.period() * self.burst.get());
            if buckets.by_tenant.len() >= self.max_tenants {
                key = None;
            }
        }
        let bucket = buckets.by_tenant.entry(key).or_insert_with(|| self.bucket(now));
        bucket.used = now;
        match bucket.limiter.check() {
            Ok(state) => {
                let remaining = state.remaining_burst_capacity();
                let used = self.burst.get().saturating_sub(remaining);
                Ok(Standing { limit: self.per_minute.get(), remaining, reset: self.period() * used })
            }
            Err(until) => Err(Rejection::RateLimited {
                limit: self.per_minute.get(),
                remaining: 0,
                retry_after: until.wait_time_from(now),
            }),
        }
    }

    fn bucket(&self, now: Duration) -> Bucket {
        let quota = Quota::with_period(self.period())
            .unwrap_or_else(|| Quota::per_minute(self.per_minute))
            .allow_burst(self.burst);
        let limiter = Limiter::new(quota, InMemoryState::default(), self.clock.clone());
        Bucket { limiter, used: now }
    }
}

impl Buckets {
    /// Forgets the buckets that are full again; at most once a second, because it walks them all.
    fn sweep(&mut self, now: Duration, fill: Duration) {
        if now < self.swept + Duration::from_secs(1) {
            return;
        }
        self.swept = now;
        self.by_tenant.retain(|_, bucket| now < bucket.used + fill);
        self.by_tenant.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Client, TenantKey};

    fn tenant(name: &str) -> Tenant {
        let mut headers = http::HeaderMap::new();
        headers.insert("x-api-key", name.parse().unwrap());
        Client::from_headers(&headers, &TenantKey::from_bytes([1; 16])).tenant
    }

    fn rates(per_minute: u32, burst: u32, max_tenants: usize) -> Rates {
        Rates::new(&RateSettings {
            requests_per_minute: NonZeroU32::new(per_minute),
            burst: NonZeroU32::new(burst),
            max_tenants,
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_passes_then_the_rate_and_the_told_time_is_right() {
        let rates = rates(60, 3, 10);
        let a = tenant("a");
        for left in [2, 1, 0] {
            let standing = rates.check(&a).unwrap().unwrap();
            assert_eq!((standing.limit, standing.remaining), (60, left));
            assert_eq!(standing.reset, Duration::from_secs(u64::from(3 - left)));
        }
        let told = rates.check(&a).unwrap_err().retry_after().unwrap();
        assert!(told <= Duration::from_secs(1) && told > Duration::from_millis(900), "{told:?}");
        assert!(rates.check(&tenant("b")).is_ok(), "another tenant has a bucket of its own");
        tokio::time::advance(told).await;
        assert!(rates.check(&a).is_ok());
        assert!(rates.check(&a).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_tenants_is_bounded_and_those_beyond_share() {
        let rates = rates(60, 1, 3);
        for i in 0..3 {
            assert!(rates.check(&tenant(&format!("t{i}"))).is_ok());
        }
        assert!(rates.check(&tenant("x")).is_ok(), "the shared bucket has one");
        assert!(rates.check(&tenant("y")).is_err(), "and no more");
        assert!(rates.tenants() <= 4);
        tokio::time::advance(Duration::from_secs(5)).await;
        assert!(rates.check(&tenant("z")).is_ok(), "full buckets were forgotten");
        assert!(rates.tenants() <= 2);
    }

    #[test]
    fn without_a_configured_rate_nothing_is_limited() {
        let rates = Rates::new(&RateSettings::default());
        assert!((0..10_000).all(|_| rates.check(&Tenant::anonymous()) == Ok(None)));
    }
}
