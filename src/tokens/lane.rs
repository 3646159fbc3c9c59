//! A fixed number of threads that count, and a bounded, fair queue before them.
//!
//! The threads are the lane's own and live as long as it: what the tokenizers keep for each thread (tables of
//! words, up to 96 MiB: `fastokens` 0.3.5 `models/bpe.rs`) is bounded by their number, and goes with them. The tenants that wait take
//! turns, so that one with many prompts delays another by one prompt, and nobody may have more than three
//! quarters of the places.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::count::CountError;

/// What one thread does for one prompt.
type Work = Box<dyn FnOnce() + Send>;

/// The lane. Dropped, its threads end after what they are at.
#[derive(Debug)]
pub struct Lane {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    more: Condvar,
    limit: usize,
}

#[derive(Debug, Default)]
struct Queue {
    /// Those who wait, in the order of their turns; none without work.
    tenants: VecDeque<(u64, VecDeque<Waiting>)>,
    waiting: usize,
    closed: bool,
}

struct Waiting {
    work: Work,
    /// Nobody waits for it any more.
    dropped: Arc<AtomicBool>,
}

/// Sets its flag when it goes.
struct Dropped(Arc<AtomicBool>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Waiting")
    }
}

impl Queue {
    /// Takes work in; gives it back where there is no place.
    fn push(&mut self, tenant: u64, waiting: Waiting, limit: usize) -> Result<(), usize> {
        let most_each = (limit - limit / 4).max(1);
        let full = |queue: &Self| {
            let own = queue.tenants.iter().find(|(who, _)| *who == tenant).map_or(0, |(_, own)| own.len());
            queue.waiting >= limit || own >= most_each
        };
        if full(self) {
            self.forget_dropped();
            if full(self) {
                return Err(self.waiting);
            }
        }
        match self.tenants.iter_mut().find(|(who, _)| *who == tenant) {
            Some((_, own)) => own.push_back(waiting),
            None => self.tenants.push_back((tenant, VecDeque::from([waiting]))),
        }
        self.waiting += 1;
        Ok(())
    }

    /// The next one's turn; the tenant then waits behind all others.
    fn pop(&mut self) -> Option<Waiting> {
        let (tenant, mut own) = self.tenants.pop_front()?;
        let next = own.pop_front();
        self.waiting -= usize::from(next.is_some());
        if !own.is_empty() {
            self.tenants.push_back((tenant, own));
        }
        next
    }

    fn forget_dropped(&mut self) {
        for (_, own) in &mut self.tenants {
            own.retain(|waiting| !waiting.dropped.load(Ordering::Relaxed));
        }
        self.tenants.retain(|(_, own)| !own.is_empty());
        self.waiting = self.tenants.iter().map(|(_, own)| own.len()).sum();
    }
}

impl Lane {
    /// `threads` named after `name`, and places for `limit` that wait; both at least 1.
    #[must_use]
    pub fn new(name: &str, threads: usize, limit: usize) -> Self {
        let shared = Arc::new(Shared { queue: Mutex::default(), more: Condvar::new(), limit: limit.max(1) });
        // Where the system gives fewer threads these do the work; with none at all counts end as stopped.
        let begun = (0..threads.max(1)).filter(|number| {
            let (shared, name) = (Arc::clone(&shared), format!("{name}-{number}"));
            std::thread::Builder::new().name(name).spawn(move || shared.work()).is_ok()
        });
        shared.lock().closed = begun.count() == 0;
        Self { shared }
    }

    /// Runs `work` in the tenant's turn. Cancel-safe: dropped before its turn, it is never started; dropped
    /// later, it runs to its end unheard.
    ///
    /// # Errors
    /// [`CountError::Busy`] where there is no place; [`CountError::Stopped`] where `work` panics or there is no thread.
    pub async fn run<T: Send + 'static>(
        &self,
        tenant: u64,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, CountError> {
        let (send, receive) = oneshot::channel();
        let dropped = Arc::new(AtomicBool::new(false));
        let _waits = Dropped(Arc::clone(&dropped));
        let work = move || _ = send.send(work());
        let waiting = Waiting { work: Box::new(work), dropped };
        self.shared.enqueue(tenant, waiting)?;
        self.shared.more.notify_one();
        receive.await.map_err(|_| CountError::Stopped)
    }

    /// Prompts that wait.
    #[cfg(test)]
    fn waiting(&self) -> usize {
        self.shared.lock().waiting
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let mut queue = self.shared.lock();
        queue.closed = true;
        // Who waits learns that nobody will come.
        let rest = std::mem::take(&mut queue.tenants);
        queue.waiting = 0;
        drop(queue);
        self.shared.more.notify_all();
        drop(rest);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        lock(&self.queue)
    }

    fn enqueue(&self, tenant: u64, waiting: Waiting) -> Result<(), CountError> {
        let mut queue = self.lock();
        if queue.closed {
            return Err(CountError::Stopped);
        }
        let limit = self.limit;
        queue.push(tenant, waiting, limit).map_err(|waiting| CountError::Busy { waiting, limit })
    }

    /// One thread's life.
    fn work(&self) {
        loop {
            let mut queue = self.lock();
            let next = loop {
                if let Some(next) = queue.pop() {
                    break next;
                }
                if queue.closed {
                    return;
                }
                queue = self.more.wait(queue).unwrap_or_else(PoisonError::into_inner);
            };
            drop(queue);
            if !next.dropped.load(Ordering::Relaxed) {
                // A panic ends one count, not the thread.
                let _ = catch_unwind(AssertUnwindSafe(next.work));
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// A lane whose only thread is held until something is sent.
    async fn held(
        limit: usize,
    ) -> (Arc<Lane>, mpsc::Sender<()>, tokio::task::JoinHandle<Result<(), CountError>>) {
        let lane = Arc::new(Lane::new("held", 1, limit));
        let (release, gate) = mpsc::channel();
        let (begun, begins) = tokio::sync::oneshot::channel();
        let task = tokio::spawn({
            let lane = Arc::clone(&lane);
            let work = move || {
                begun.send(()).unwrap();
                gate.recv().unwrap();
            };
            async move { lane.run(0, work).await }
        });
        begins.await.unwrap();
        (lane, release, task)
    }

    async fn waiting(lane: &Lane, wanted: usize) {
        while lane.waiting() != wanted {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_full_lane_says_busy_and_a_dropped_waiter_is_never_started() {
        let (lane, release, task) = held(1).await;
        let started = Arc::new(AtomicBool::new(false));
        let waiter = tokio::spawn({
            let (lane, started) = (Arc::clone(&lane), Arc::clone(&started));
            async move { lane.run(1, move || started.store(true, Ordering::SeqCst)).await }
        });
        waiting(&lane, 1).await;
        assert_eq!(lane.run(2, || ()).await, Err(CountError::Busy { waiting: 1, limit: 1 }));
        waiter.abort();
        assert!(waiter.await.is_err());
        let next = tokio::spawn({
            let lane = Arc::clone(&lane);
            async move { lane.run(2, || 5).await }
        });
        waiting(&lane, 1).await;
        release.send(()).unwrap();
        task.await.unwrap().unwrap();
        assert_eq!(next.await.unwrap(), Ok(5));
        assert!(!started.load(Ordering::SeqCst));
    }

    #[tokio::test]
    async fn tenants_take_turns_and_none_takes_all_places() {
        let (lane, release, task) = held(8).await;
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for (number, tenant) in [1, 1, 1, 1, 2, 2].into_iter().enumerate() {
            let (lane2, order) = (Arc::clone(&lane), Arc::clone(&order));
            tasks.push(tokio::spawn(
                async move { lane2.run(tenant, move || lock(&order).push(tenant)).await },
            ));
            waiting(&lane, number + 1).await;
        }
        for more in 0..2 {
            let lane2 = Arc::clone(&lane);
            tasks.push(tokio::spawn(async move { lane2.run(1, || ()).await }));
            waiting(&lane, 7 + more).await;
        }
        assert!(matches!(lane.run(1, || ()).await, Err(CountError::Busy { .. })));
        release.send(()).unwrap();
        task.await.unwrap().unwrap();
        for task in tasks {
            task.await.unwrap().unwrap();
        }
        assert_eq!(*lock(&order), [1, 2, 1, 2, 1, 1]);
    }

    #[tokio::test]
    async fn a_panic_in_a_lane_is_an_error_and_the_thread_goes_on() {
        let lane = Lane::new("panics", 1, 1);
        assert_eq!(lane.run(0, || panic!("x")).await.map(|()| 0), Err(CountError::Stopped));
        assert_eq!(lane.run(0, || 5).await, Ok(5));
    }

    #[tokio::test]
    async fn who_waits_when_the_lane_goes_is_told() {
        let (lane, release, task) = held(4).await;
        let shared = Arc::clone(&lane.shared);
        let (send, receive) = oneshot::channel::<()>();
        let work: Work = Box::new(move || drop(send));
        shared.lock().push(1, Waiting { work, dropped: Arc::default() }, 4).unwrap();
        task.abort();
        let _ = task.await;
        drop(lane);
        assert!(receive.await.is_err());
        release.send(()).unwrap();
    }
}
