//! The queue: by priority, then the tenant that has had least, then arrival; bounded in requests and in
//! bytes of the bodies that wait.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use indexmap::IndexMap;
use tokio::time::{Duration, Instant};

use crate::request::{Priority, Trail};

use super::capacity::Candidate;
use super::shares::{OUTPUT, PROMPT, Shares};

/// How many of a tenant's requests are tried, and of all tenants' together.
const TRIED: (usize, usize) = (4, 16);

/// A request in the queue.
#[derive(Debug, Clone)]
pub struct Waiter {
    /// Its ticket.
    pub id: u64,
    /// What it asks for.
    pub asked: Candidate,
    /// Bytes of its body, held in memory meanwhile.
    pub bytes: u64,
    /// Since when it waits.
    pub since: Instant,
    /// When it gives up.
    pub deadline: Instant,
    /// Time from `since` to the first token after which the answer is worth nothing.
    pub ttft: Option<Duration>,
    /// The wait that was predicted for it, before correction, seconds.
    pub predicted: Option<f64>,
    /// The beginnings of its prompt.
    pub trail: Option<Arc<Trail>>,
}

impl Waiter {
    /// What it costs the engine, in tokens as the shares count them.
    #[must_use]
    pub fn cost(&self) -> f64 {
        cost(&self.asked)
    }
}

/// What a request costs the engine, in tokens as the shares count them.
#[must_use]
pub fn cost(asked: &Candidate) -> f64 {
    (PROMPT * asked.kind.prompt as f64 + OUTPUT * asked.likely as f64) * asked.sequences as f64
}

/// One tenant's requests of one priority, in the order of their arrival.
#[derive(Debug, Clone)]
struct Line {
    waiting: VecDeque<Waiter>,
    /// Since when it has never been empty.
    standing: Instant,
    /// What all in it cost: a sum of whole numbers, and so exact.
    cost: f64,
}

/// The queue.
#[derive(Debug, Clone)]
pub struct Queue {
    /// One for each priority.
    bands: [IndexMap<u64, Line>; 2],
    places: HashMap<u64, (usize, u64)>,
    deadlines: BTreeSet<(Instant, u64)>,
    /// Those whose first token has a deadline.
    hurried: usize,
    bytes: u64,
    most: usize,
    most_bytes: u64,
}

impl Queue {
    /// An empty queue for at most `most` requests and `most_bytes` bytes.
    #[must_use]
    pub fn new(most: usize, most_bytes: u64) -> Self {
        Self {
            bands: [IndexMap::new(), IndexMap::new()],
            places: HashMap::new(),
            deadlines: BTreeSet::new(),
            hurried: 0,
            bytes: 0,
            most,
            most_bytes,
        }
    }

    /// Other bounds, for those that come from now on: who waits keeps the place.
    pub const fn bound(&mut self, most: usize, most_bytes: u64) {
        (self.most, self.most_bytes) = (most, most_bytes);
    }

    /// Requests in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Bytes in it.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether a request of so many bytes has a place. The first one always has.
    #[must_use]
    pub fn has_place(&self, bytes: u64) -> bool {
        self.len() < self.most && (self.is_empty() || self.bytes.saturating_add(bytes) <= self.most_bytes)
    }

    /// Whether anybody of this priority waits.
    #[must_use]
    pub fn has(&self, priority: Priority) -> bool {
        !self.bands[priority as usize].is_empty()
    }

    /// Requests of a tenant that wait, of this priority.
    #[must_use]
    pub fn of(&self, tenant: u64, priority: Priority) -> usize {
        self.bands[priority as usize].get(&tenant).map_or(0, |line| line.waiting.len())
    }

    /// Puts a request at the end of its tenant's line; the caller has asked [`Queue::has_place`].
    pub fn push(&mut self, waiter: Waiter) {
        let (band, tenant) = (waiter.asked.priority as usize, waiter.asked.kind.tenant);
        self.bytes = self.bytes.saturating_add(waiter.bytes);
        self.places.insert(waiter.id, (band, tenant));
        self.deadlines.insert((waiter.deadline, waiter.id));
        self.hurried += usize::from(waiter.ttft.is_some());
        let new = || Line { waiting: VecDeque::new(), standing: waiter.since, cost: 0.0 };
        let line = self.bands[band].entry(tenant).or_insert_with(new);
        line.cost += waiter.cost();
        line.waiting.push_back(waiter);
    }

    /// One that waits.
    #[must_use]
    pub fn get(&self, id: u64) -> Option<&Waiter> {
        let (band, tenant) = self.places.get(&id)?;
        self.bands[*band].get(tenant)?.waiting.iter().find(|waiter| waiter.id == id)
    }

    /// Takes one out, wherever it stands.
    pub fn remove(&mut self, id: u64) -> Option<Waiter> {
        let (band, tenant) = self.places.remove(&id)?;
        let line = self.bands[band].get_mut(&tenant)?;
        let place = line.waiting.iter().position(|waiter| waiter.id == id)?;
        let waiter = line.waiting.remove(place)?;
        line.cost -= waiter.cost();
        if line.waiting.is_empty() {
            self.bands[band].swap_remove(&tenant);
        }
        self.deadlines.remove(&(waiter.deadline, id));
        self.hurried -= usize::from(waiter.ttft.is_some());
        self.bytes = self.bytes.saturating_sub(waiter.bytes);
        Some(waiter)
    }

    /// Those whose deadline has passed, the earliest first.
    #[must_use]
    pub fn passed(&self, now: Instant) -> Vec<u64> {
        self.deadlines.range(..=(now, u64::MAX)).map(|(_, id)| *id).collect()
    }

    /// Whether the first token of anybody who waits has a deadline.
    #[must_use]
    pub const fn hurried(&self) -> bool {
        self.hurried > 0
    }

    /// Takes one out, whichever.
    pub fn pop(&mut self) -> Option<Waiter> {
        let id = *self.places.keys().next()?;
        self.remove(id)
    }

    /// All in it, with the time since when their line has stood; in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&Waiter, Instant)> {
        let lines = self.bands.iter().flat_map(|band| band.values());
        lines.flat_map(|line| line.waiting.iter().map(|waiter| (waiter, line.standing)))
    }

    /// Notes the wait that was predicted for one.
    pub fn predict(&mut self, id: u64, seconds: f64) {
        let Some((band, tenant)) = self.places.get(&id) else { return };
        let line = self.bands[*band].get_mut(tenant);
        if let Some(waiter) = line.and_then(|line| line.waiting.iter_mut().find(|waiter| waiter.id == id)) {
            waiter.predicted.get_or_insert(seconds);
        }
    }

    /// Those to try now, of the first priority that waits (or of batch): the tenant that has had least
    /// first, a few of each, a bounded number in all.
    #[must_use]
    pub fn first(&self, shares: &Shares, batch: bool) -> Vec<u64> {
        let band = if batch || self.bands[0].is_empty() { &self.bands[1] } else { &self.bands[0] };
        let mut tenants: Vec<(f64, &Line)> =
            band.iter().map(|(tenant, line)| (shares.counter(*tenant), line)).collect();
        let since = |line: &Line| line.waiting.front().map(|waiter| waiter.since);
        let least =
            |a: &(f64, &Line), b: &(f64, &Line)| a.0.total_cmp(&b.0).then(since(a.1).cmp(&since(b.1)));
        if tenants.len() > TRIED.1 {
            tenants.select_nth_unstable_by(TRIED.1, least);
            tenants.truncate(TRIED.1);
        }
        tenants.sort_by(least);
        let ids = tenants.iter().flat_map(|(_, line)| line.waiting.iter().take(TRIED.0));
        ids.map(|waiter| waiter.id).take(TRIED.1).collect()
    }

    /// The first `most` in the order in which they will be served, as far as that can be known now.
    #[must_use]
    pub fn in_order(&self, shares: &Shares, most: usize) -> Vec<&Waiter> {
        let mut all = Vec::new();
        for (band, lines) in self.bands.iter().enumerate() {
            for (tenant, line) in lines {
                let mut counter = shares.counter(*tenant);
                // A line is in its order already: no more of it than of all.
                for waiter in line.waiting.iter().take(most) {
                    all.push((band, counter, waiter));
                    counter += waiter.cost() / shares.weight(*tenant);
                }
            }
        }
        all.sort_by(|a, b| (a.0.cmp(&b.0)).then(a.1.total_cmp(&b.1)).then(a.2.since.cmp(&b.2.since)));
        all.into_iter().map(|(_, _, waiter)| waiter).take(most).collect()
    }

    /// What will be served before one more of this tenant and priority: cost, as [`cost`] counts it.
    #[must_use]
    pub fn ahead(&self, asked: &Candidate, shares: &Shares) -> f64 {
        let (band, tenant) = (asked.priority as usize, asked.kind.tenant);
        let own = self.bands[band].get(&tenant).map_or(0.0, |line| line.cost);
        let mine = shares.counter_if_it_came(tenant) + own / shares.weight(tenant);
        let before: f64 = self.bands[..band].iter().flat_map(IndexMap::values).map(|line| line.cost).sum();
        let others = self.bands[band].iter().filter(|(other, _)| **other != tenant);
        let ahead = others.map(|(other, line)| {
            let room = (mine - shares.counter(*other)).max(0.0) * shares.weight(*other);
            if line.cost <= room {
                return line.cost;
            }
            let mut sum = 0.0;
            for waiter in &line.waiting {
                if sum > room {
                    break;
                }
                sum += waiter.cost();
            }
            sum
        });
        before + own + ahead.sum::<f64>()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::admit::predict::Kind;

    fn waiter(id: u64, tenant: u64, priority: Priority, since: Instant) -> Waiter {
        let kind = Kind { tenant, prompt: 100, cap: None };
        let asked = Candidate {
            kind,
            sequences: 1,
            stream: true,
            priority,
            output: 50,
            plan: 50,
            likely: 50,
            draw: 0,
            doubt: false,
            cached: 0,
        };
        Waiter { id, asked, bytes: 10, since, deadline: since, ttft: None, predicted: None, trail: None }
    }

    /// Serves all, as the admission would with room for one at a time; who went when.
    fn served(queue: &mut Queue, shares: &mut Shares) -> Vec<u64> {
        let mut order = Vec::new();
        while let Some(id) = queue.first(shares, false).first().copied() {
            let waiter = queue.remove(id).unwrap();
            shares.unqueued(waiter.asked.kind.tenant);
            shares.sent(waiter.asked.kind.tenant, 100);
            shares.generated(waiter.asked.kind.tenant, 50);
            order.push(id);
        }
        order
    }

    proptest! {
        #[test]
        fn the_order_is_priority_then_share_then_arrival_and_is_foretold(
            all in proptest::collection::vec((0u64..4, any::<bool>()), 1..40), doubled in 0u64..4,
        ) {
            let t = Instant::now();
            let mut shares = Shares::new(HashMap::from([(doubled, 2.0)]));
            let mut queue = Queue::new(100, 1_000_000);
            for (id, (tenant, batch)) in all.iter().enumerate() {
                let priority = if *batch { Priority::Batch } else { Priority::Interactive };
                shares.queued(*tenant);
                queue.push(waiter(id as u64, *tenant, priority, t + Duration::from_millis(id as u64)));
            }
            let foretold: Vec<u64> = queue.in_order(&shares, usize::MAX).iter().map(|waiter| waiter.id).collect();
            let order = served(&mut queue, &mut shares);
            prop_assert_eq!(order.len(), all.len());
            prop_assert!(queue.is_empty() && queue.bytes() == 0);
            let band = |id: &u64| all[*id as usize].1;
            prop_assert!(order.windows(2).all(|two| band(&two[0]) <= band(&two[1])), "priority");
            for tenant in 0..4 {
                for batch in [false, true] {
                    let own: Vec<_> = order.iter().filter(|id| all[**id as usize] == (tenant, batch)).collect();
                    prop_assert!(own.windows(2).all(|two| two[0] < two[1]), "arrival");
                }
            }
            // Foretold exactly where nobody's counter is touched by the other priority.
            if all.iter().all(|(_, batch)| !batch) {
                prop_assert_eq!(&foretold, &order);
            }
        }
    }

    #[test]
    fn a_flood_of_one_tenant_is_not_ahead_of_another() {
        let t = Instant::now();
        let mut shares = Shares::default();
        let mut queue = Queue::new(1000, 1_000_000);
        for id in 0..100 {
            shares.queued(1);
            queue.push(waiter(id, 1, Priority::Interactive, t));
        }
        let of = |tenant, priority| waiter(500, tenant, priority, t).asked;
        assert_eq!(queue.ahead(&of(1, Priority::Interactive), &shares), 20_000.0);
        assert!(queue.ahead(&of(2, Priority::Interactive), &shares) <= 200.0);
        assert_eq!(queue.ahead(&of(2, Priority::Batch), &shares), 20_000.0);
    }

    #[test]
    fn it_is_bounded_in_requests_and_bytes() {
        let t = Instant::now();
        let mut queue = Queue::new(3, 25);
        assert!(queue.has_place(1000), "one may always wait");
        queue.push(waiter(1, 0, Priority::Interactive, t));
        queue.push(waiter(2, 0, Priority::Batch, t));
        assert!(queue.has_place(5) && !queue.has_place(6));
        queue.push(Waiter { bytes: 0, ..waiter(3, 1, Priority::Interactive, t) });
        assert!(!queue.has_place(0));
        assert!(queue.remove(9).is_none() && queue.remove(2).is_some() && queue.remove(2).is_none());
        assert_eq!((queue.len(), queue.bytes(), queue.has(Priority::Batch)), (2, 10, false));
    }
}
