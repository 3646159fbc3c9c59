use proptest::prelude::*;

use super::Observation::{ConnectRefused, DeadAnswer, Reset, Tick};
use super::*;

const OK: Observation = Observation::Health { ok: true };
const FAILING: Observation = Observation::Health { ok: false };
const MODELS: Observation = Observation::Models { served: true };

fn start(at: f64) -> Observation {
    Observation::Scraped { start_time: Some(at), generation_tokens: Some(1.0), steps: Some(1.0) }
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// One word for each change, death with what confirmed it.
fn word(change: &Change) -> String {
    match change {
        Change::Started { incarnation } => format!("started {incarnation}"),
        Change::Ready { .. } => "ready".to_owned(),
        Change::Suspected { by } => format!("suspected {by}"),
        Change::Cleared => "cleared".to_owned(),
        Change::Died { confirmed_by, .. } => format!("died {}", confirmed_by.join("+")),
    }
}

struct Story {
    life: Life,
    zero: Instant,
    changes: Vec<Change>,
}

impl Story {
    fn new() -> Self {
        let zero = Instant::now();
        Self { life: Life::new(zero), zero, changes: Vec::new() }
    }

    /// A vLLM that has been ready since ten seconds.
    fn ready() -> Self {
        let mut story = Self::new();
        story.all(&[(0, start(100.0)), (0, OK), (1, MODELS), (10_000, start(100.0)), (10_000, OK)]);
        assert_eq!(story.words(), ["started 1", "ready"]);
        story.changes.clear();
        story
    }

    fn all(&mut self, seen: &[(u64, Observation)]) -> &mut Self {
        for (at, seen) in seen {
            let (life, mut changes) = self.life.clone().next(*seen, self.zero + ms(*at));
            self.life = life;
            self.changes.append(&mut changes);
        }
        self
    }

    fn words(&self) -> Vec<String> {
        self.changes.iter().map(word).collect()
    }
}

/// From a ready engine: what is seen at which millisecond, the changes, the state at the end.
fn after(seen: &[(u64, Observation)], words: &[&str], state: State) {
    let mut story = Story::ready();
    story.all(seen);
    assert_eq!(story.words(), words, "{seen:?}");
    assert_eq!(story.life.state(), state, "{seen:?}");
}

#[test]
fn an_idle_connection_that_the_engine_closed_is_no_death() {
    after(
        &[(11_000, Reset), (11_005, start(100.0)), (11_006, OK)],
        &["suspected reset", "cleared"],
        State::Ready,
    );
    after(&[(11_000, Reset), (11_001, Reset), (11_006, OK)], &["suspected reset"], State::Suspect);
}

#[test]
fn a_killed_core_is_one_death() {
    // vLLM 0.32: dead answers, 50 ms of 503, then refused.
    after(
        &[
            (11_071, DeadAnswer),
            (11_072, DeadAnswer),
            (11_080, start(100.0)),
            (11_114, FAILING),
            (11_120, DeadAnswer),
            (11_161, ConnectRefused),
            (11_400, ConnectRefused),
            (14_000, ConnectRefused),
        ],
        &["suspected dead_answer", "died dead_answer+health_failing"],
        State::Down,
    );
}

#[test]
fn a_good_health_that_overtook_the_news_clears_nothing() {
    after(
        &[(11_071, DeadAnswer), (11_072, OK), (11_073, start(100.0)), (11_161, ConnectRefused)],
        &["suspected dead_answer", "died dead_answer+connect_refused"],
        State::Down,
    );
}

#[test]
fn an_api_server_kept_alive_after_the_engines_death_stays_down() {
    after(
        &[
            (11_000, DeadAnswer),
            (11_010, FAILING),
            (12_000, MODELS),
            (12_000, start(100.0)),
            (12_000, FAILING),
            (60_000, FAILING),
            (60_000, MODELS),
        ],
        &["suspected dead_answer", "died dead_answer+health_failing"],
        State::Down,
    );
}

#[test]
fn a_killed_api_server_is_a_death_by_reset_and_refusal() {
    after(
        &[(11_000, Reset), (11_001, Reset), (11_002, ConnectRefused)],
        &["suspected reset", "died reset+connect_refused"],
        State::Down,
    );
}

#[test]
fn an_idle_engine_that_vanished_is_a_death_when_it_stays_refused() {
    after(
        &[(11_000, ConnectRefused), (12_000, ConnectRefused), (13_000, ConnectRefused)],
        &["suspected connect_refused", "died connect_refused+still_refused"],
        State::Down,
    );
    after(
        &[(11_000, ConnectRefused), (11_100, OK), (13_000, ConnectRefused)],
        &["suspected connect_refused"],
        State::Suspect,
    );
}

#[test]
fn a_restart_between_two_scrapes_is_a_death_and_a_start() {
    after(
        &[(11_000, start(111.0)), (11_001, OK), (11_002, MODELS), (12_000, start(111.0))],
        &[
            "suspected start_time_changed",
            "died start_time_changed+new_process_answers",
            "started 2",
            "ready",
        ],
        State::Ready,
    );
}

#[test]
fn a_reset_and_a_failing_health_are_not_enough() {
    after(&[(11_000, Reset), (11_001, FAILING)], &["suspected reset"], State::Suspect);
    after(
        &[(11_000, FAILING), (12_000, FAILING), (90_000, FAILING)],
        &["suspected health_failing"],
        State::Suspect,
    );
}

#[test]
fn two_confirmations_far_apart_are_not_one_death() {
    after(&[(11_000, DeadAnswer), (42_000, ConnectRefused)], &["suspected dead_answer"], State::Suspect);
    after(&[(11_000, DeadAnswer), (41_000, Tick)], &["suspected dead_answer", "cleared"], State::Ready);
}

#[test]
fn a_confirmation_that_stays_alone_is_cleared_by_good_answers() {
    after(
        &[(11_000, DeadAnswer), (12_100, start(100.0)), (12_101, OK)],
        &["suspected dead_answer", "cleared"],
        State::Ready,
    );
}

#[test]
fn a_death_says_when_it_was_first_suspected() {
    let mut story = Story::ready();
    story.all(&[(11_000, Reset), (11_500, ConnectRefused)]);
    let zero = story.zero;
    let Some(Change::Died { suspected_at, at, incarnation, .. }) = story.changes.last() else { panic!() };
    assert_eq!((*suspected_at, *at, *incarnation), (zero + ms(11_000), zero + ms(11_500), 1));
}

#[test]
fn the_load_time_and_the_downtime_are_learned() {
    let mut story = Story::new();
    story.all(&[(0, ConnectRefused), (5000, ConnectRefused), (80_000, OK), (80_001, MODELS)]);
    assert_eq!(story.words(), ["started 1", "ready"]);
    assert_eq!(story.life.load(), Some(ms(80_001)));
    story.all(&[(100_000, Reset), (100_000, ConnectRefused), (100_500, ConnectRefused)]);
    assert_eq!(story.life.downtime(story.zero + ms(130_000)), ms(30_000));
    story.all(&[(150_000, FAILING), (160_000, OK), (160_000, MODELS)]);
    assert_eq!(story.life.load(), Some(ms(60_000)));
    assert_eq!(story.life.downtime(story.zero + ms(999_000)), ms(60_000));
    let Some(Change::Ready { load, away }) = story.changes.last() else { panic!() };
    assert_eq!((*load, *away), (Some(ms(60_000)), Some(ms(60_000))));
    assert_eq!(story.life.incarnation(), 2);
}

#[test]
fn a_running_engine_teaches_no_load_time() {
    assert_eq!(Story::ready().life.load(), None);
}

#[test]
fn a_loading_engine_that_starts_anew_has_not_died() {
    let mut story = Story::new();
    story.all(&[(0, FAILING), (1, start(1.0)), (5000, start(5.0)), (6000, ConnectRefused), (9000, FAILING)]);
    assert_eq!(story.words(), ["started 1", "started 2", "started 3"]);
    assert_eq!(story.life.state(), State::Loading);
}

#[test]
fn a_fast_restart_after_a_death_is_no_second_death() {
    after(
        &[
            (11_000, DeadAnswer),
            (11_050, FAILING),
            (12_500, OK),
            (12_500, MODELS),
            (12_600, start(112.0)),
            (12_700, OK),
            (12_700, MODELS),
        ],
        &["suspected dead_answer", "died dead_answer+health_failing", "started 2", "ready"],
        State::Ready,
    );
}

#[test]
fn the_same_process_may_come_back_without_a_start() {
    after(
        &[(11_000, DeadAnswer), (11_050, FAILING), (13_000, start(100.0)), (13_000, OK), (13_000, MODELS)],
        &["suspected dead_answer", "died dead_answer+health_failing", "ready"],
        State::Ready,
    );
}

#[test]
fn an_engine_without_start_times_that_answers_again_is_a_new_one() {
    let mut story = Story::new();
    story.all(&[
        (0, OK),
        (0, MODELS),
        (9000, DeadAnswer),
        (9000, FAILING),
        (9500, OK),
        (9500, MODELS),
        (11_000, OK),
    ]);
    assert_eq!(
        story.words(),
        [
            "started 1",
            "ready",
            "suspected dead_answer",
            "died dead_answer+health_failing",
            "started 2",
            "ready"
        ]
    );
}

#[test]
fn several_engines_behind_one_address_die_at_most_once() {
    let mut story = Story::ready();
    story.all(&[(11_000, start(90.0)), (12_000, start(100.0)), (13_000, start(90.0)), (14_000, OK)]);
    assert_eq!(story.words(), Vec::<String>::new());
    assert!(story.life.several());
}

#[test]
fn counters_that_went_back_are_one_confirmation() {
    let low =
        Observation::Scraped { start_time: Some(100.0), generation_tokens: Some(0.0), steps: Some(0.0) };
    after(&[(11_000, low)], &["suspected counters_went_back"], State::Suspect);
    after(
        &[(11_000, low), (11_001, DeadAnswer)],
        &["suspected counters_went_back", "died counters_went_back+dead_answer"],
        State::Down,
    );
}

fn observation() -> impl Strategy<Value = Observation> {
    prop_oneof![
        3 => any::<bool>().prop_map(|ok| Observation::Health { ok }),
        2 => Just(OK),
        2 => any::<bool>().prop_map(|served| Observation::Models { served }),
        1 => Just(ConnectRefused),
        1 => Just(Reset),
        1 => Just(DeadAnswer),
        1 => Just(Tick),
        3 => (proptest::option::of(0..4u8), proptest::option::of(0..4u8)).prop_map(|(s, c)| Observation::Scraped {
            start_time: s.map(|s| f64::from(s) * 10.0 + 100.0),
            generation_tokens: c.map(f64::from),
            steps: None,
        }),
        1 => any::<f64>().prop_map(|x| Observation::Scraped {
            start_time: Some(x), generation_tokens: Some(x), steps: Some(x),
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn any_order_of_observations_keeps_the_rules(
        seen in proptest::collection::vec((0..5000u64, observation()), 0..80),
    ) {
        let mut at = Instant::now();
        let mut life = Life::new(at);
        let (mut ready, mut started, mut suspected) = (false, 0, false);
        let mut down = Duration::ZERO;
        for (wait, seen) in seen {
            at += ms(wait);
            let (next, changes) = life.next(seen, at);
            life = next;
            for change in changes {
                match change {
                    Change::Started { incarnation } => {
                        prop_assert_eq!(incarnation, started + 1);
                        prop_assert!(!ready, "a start while ready needs a death before");
                        started = incarnation;
                    }
                    Change::Ready { .. } => {
                        prop_assert!(!ready && started > 0);
                        ready = true;
                    }
                    Change::Suspected { .. } => {
                        prop_assert!(ready && !suspected);
                        suspected = true;
                    }
                    Change::Cleared => {
                        prop_assert!(ready && suspected);
                        suspected = false;
                    }
                    Change::Died { suspected_at, at: confirmed, confirmed_by, .. } => {
                        prop_assert!(ready, "a death without a life");
                        prop_assert!(confirmed_by.len() >= 2);
                        let mut kinds = confirmed_by.clone();
                        kinds.sort_unstable();
                        kinds.dedup();
                        prop_assert_eq!(kinds.len(), confirmed_by.len());
                        prop_assert!(suspected_at <= confirmed);
                        (ready, suspected) = (false, false);
                    }
                }
            }
            prop_assert_eq!(ready, life.state().serves());
            prop_assert_eq!(suspected, life.state() == State::Suspect);
            prop_assert!(life.downtime(at) >= down);
            down = life.downtime(at);
        }
    }
}
