//! What requests are admitted on: settings, profile and the tenants' buckets, exchanged as one by a reload.

use std::sync::Arc;

use super::profile::Profile;
use super::rate::Rates;
use super::settings::Settings;

/// The terms in force. A request may see those before a reload in one step and those after it in the next; each
/// step sees whole ones.
pub struct Terms {
    /// Limits, queue, targets.
    pub settings: Settings,
    /// The profile file's limits.
    pub profile: Option<Profile>,
    /// Requests per tenant.
    pub rates: Arc<Rates>,
}

impl Terms {
    /// The first terms of a run.
    #[must_use]
    pub fn new(settings: Settings, profile: Option<Profile>) -> Self {
        let rates = Arc::new(Rates::new(&settings.rates));
        Self { settings, profile, rates }
    }

    /// Those that follow these. Tenants keep what they have used up, unless the rates themselves have changed.
    #[must_use]
    pub fn followed_by(&self, settings: Settings, profile: Option<Profile>) -> Self {
        if settings.rates != self.settings.rates {
            return Self::new(settings, profile);
        }
        Self { rates: Arc::clone(&self.rates), settings, profile }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::request::Tenant;

    #[test]
    fn a_reload_gives_nobody_new_requests_unless_the_rates_change() {
        let mut settings = Settings::default();
        settings.rates.requests_per_minute = NonZeroU32::new(1);
        let terms = Terms::new(settings.clone(), None);
        let tenant = Tenant::anonymous();
        assert!(terms.rates.check(&tenant).is_ok());
        settings.queue.requests = 1;
        let terms = terms.followed_by(settings.clone(), None);
        assert!(terms.rates.check(&tenant).is_err());
        assert_eq!(terms.settings.queue.requests, 1);
        settings.rates.requests_per_minute = NonZeroU32::new(2);
        assert!(terms.followed_by(settings, None).rates.check(&tenant).is_ok());
    }
}
