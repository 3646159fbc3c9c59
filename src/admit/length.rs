//! Whether a prompt can run at all: pure comparisons, no clock and no state.
//!
//! vLLM's own rule (0.32, measured): the longest prompt that runs is `max_model_len` − 1; output
//! over the context is cut silently, not refused; `max_tokens` over `max_model_len` is refused by
//! the engine for another reason, which is its own to say. A prompt that is larger than the whole
//! KV pool is accepted by the engine and then waits for ever.

use crate::request::{Certainty, Count, Shape, Tokens};

use super::rejection::{LimitSource, Rejection};

/// The limits that hold for one request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// The engine's context length (`max_model_len`).
    pub engine: Option<Tokens>,
    /// The configured longest prompt.
    pub configured: Option<Tokens>,
    /// The longest prompt of this request's class in the profile file.
    pub profiled: Option<Tokens>,
    /// Tokens that the usable KV pool of one rank holds.
    pub pool: Option<Tokens>,
    /// Whether that size is the engine's own word (a guess never refuses).
    pub pool_certain: bool,
    /// While counts are unproven: a prompt up to so many tokens over a limit passes.
    pub drift_margin: Tokens,
    /// Refuse prompt + asked output over the context, which vLLM would cut (`output = strict`).
    pub strict_output: bool,
}

/// Decides whether the longest prompt of a request can run.
///
/// The smallest limit that is exceeded is the one that is named.
///
/// # Errors
///
/// [`Rejection::PromptTooLong`], [`Rejection::PromptExceedsPool`], [`Rejection::OutputTooLong`].
pub fn check(limits: &Limits, count: &Count, shape: &Shape) -> Result<(), Rejection> {
    // An upper bound proves nothing to be too long; whether it is short enough says [`fits`].
    if matches!(count.certain, Certainty::Unknown | Certainty::AtMost { .. }) {
        return Ok(());
    }
    let prompt = count.longest;
    let at_least = count.certain == Certainty::AtLeast;
    let over = |limit: Tokens| prompt > limit + limits.drift_margin;
    let longest = limits.engine.map(|context| context.saturating_sub(Tokens(1)));
    let bitten = [
        (longest, LimitSource::Engine),
        (limits.configured, LimitSource::Configured),
        (limits.profiled, LimitSource::Profiled),
    ]
    .into_iter()
    .filter_map(|(limit, source)| Some((limit?, source)))
    .filter(|(limit, _)| over(*limit))
    .min_by_key(|(limit, _)| *limit);
    let fits_pool = limits.pool.filter(|_| limits.pool_certain).map(|pool| pool.saturating_sub(Tokens(1)));
    let pool_bites = fits_pool.filter(|fits| over(*fits));
    match (bitten, pool_bites) {
        (Some((limit, source_of_limit)), pool) if pool.is_none_or(|fits| limit <= fits) => {
            let context = match source_of_limit {
                LimitSource::Engine => limit + Tokens(1),
                LimitSource::Configured | LimitSource::Profiled | LimitSource::Learned => limit,
            };
            Err(Rejection::PromptTooLong { prompt, at_least, limit, context, source_of_limit })
        }
        (_, Some(limit)) => Err(Rejection::PromptExceedsPool { prompt, at_least, limit }),
        _ => output(limits, prompt, shape),
    }
}

/// Decides whether the longest prompt of a request is over what a death of the engine has taught.
///
/// # Errors
///
/// [`Rejection::PromptTooLong`].
pub fn guarded(limit: Tokens, count: &Count) -> Result<(), Rejection> {
    let (prompt, at_least) = (count.longest, count.certain == Certainty::AtLeast);
    if matches!(count.certain, Certainty::Unknown | Certainty::AtMost { .. }) || prompt <= limit {
        return Ok(());
    }
    let source_of_limit = LimitSource::Learned;
    Err(Rejection::PromptTooLong { prompt, at_least, limit, context: limit, source_of_limit })
}

/// Whether [`check`] lets pass any prompt of so many tokens or fewer, even where counts are off by as much as they
/// were seen to be. For the upper bound of a prompt that is not counted: without a limit everything fits.
#[must_use]
pub fn fits(limits: &Limits, bound: &Count, shape: &Shape) -> bool {
    let before = |limit: Option<Tokens>| limit.map(|limit| limit.saturating_sub(Tokens(1)));
    let pool = before(limits.pool.filter(|_| limits.pool_certain));
    let strict = limits.engine.filter(|_| limits.strict_output);
    let asked = shape.max_output_tokens.map(Tokens);
    // Over the context by itself is for the engine to refuse: see [`output`].
    let beside = strict.zip(asked).filter(|(context, output)| output <= context);
    let beside = beside.map(|(context, output)| context.saturating_sub(output));
    let all = [before(limits.engine), limits.configured, limits.profiled, pool, beside];
    let least = all.into_iter().flatten().min();
    least.is_none_or(|least| bound.longest + limits.drift_margin <= least)
}

/// The strict reading of the context length: prompt and asked output together.
fn output(limits: &Limits, prompt: Tokens, shape: &Shape) -> Result<(), Rejection> {
    let (Some(context), Some(output), true) =
        (limits.engine, shape.max_output_tokens.map(Tokens), limits.strict_output)
    else {
        return Ok(());
    };
    // Over `max_model_len` by itself is refused by the engine, in its own words.
    if output <= context && prompt + output > context + limits.drift_margin {
        return Err(Rejection::OutputTooLong { prompt, output, context });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn exact(n: u64) -> Count {
        Count { total: Tokens(n), longest: Tokens(n), certain: Certainty::Exact }
    }

    fn engine(n: u64) -> Limits {
        Limits { engine: Some(Tokens(n)), ..Limits::default() }
    }

    fn asks(max: u64) -> Shape {
        Shape { max_output_tokens: Some(max), ..Shape::default() }
    }

    #[test]
    fn what_a_death_has_taught_refuses_only_what_is_surely_longer() {
        let count = |certain| Count { certain, ..Count::exact(Tokens(100)) };
        assert!(guarded(Tokens(100), &count(Certainty::Exact)).is_ok());
        assert!(guarded(Tokens(99), &count(Certainty::AtMost { likely: Tokens(50) })).is_ok());
        assert!(guarded(Tokens(99), &count(Certainty::Unknown)).is_ok());
        for certain in [Certainty::Exact, Certainty::AtLeast] {
            let why = guarded(Tokens(99), &count(certain)).unwrap_err();
            assert!(why.to_string().contains("(learned limit)"), "{why}");
        }
    }

    #[test]
    fn the_longest_prompt_that_runs_is_one_below_the_context() {
        assert!(check(&engine(2048), &exact(2047), &asks(1)).is_ok());
        assert!(matches!(
            check(&engine(2048), &exact(2048), &asks(1)),
            Err(Rejection::PromptTooLong { limit: Tokens(2047), context: Tokens(2048), .. })
        ));
    }

    #[test]
    fn output_over_the_context_is_cut_by_the_engine_and_not_refused() {
        assert!(check(&engine(2048), &exact(2041), &asks(8)).is_ok());
        let strict = Limits { strict_output: true, ..engine(2048) };
        assert!(matches!(check(&strict, &exact(2041), &asks(8)), Err(Rejection::OutputTooLong { .. })));
        assert!(check(&strict, &exact(2041), &asks(7)).is_ok());
    }

    #[test]
    fn max_tokens_over_the_context_is_the_engines_to_refuse() {
        assert!(check(&engine(2048), &exact(3), &asks(5000)).is_ok());
        assert!(check(&Limits { strict_output: true, ..engine(2048) }, &exact(3), &asks(5000)).is_ok());
    }

    #[test]
    fn the_smallest_limit_that_bites_is_named() {
        let limits = Limits { configured: Some(Tokens(1500)), profiled: Some(Tokens(1400)), ..engine(2048) };
        let Err(Rejection::PromptTooLong { limit, source_of_limit, .. }) =
            check(&limits, &exact(1600), &Shape::default())
        else {
            unreachable!("it is over all three or two of them")
        };
        assert_eq!((limit, source_of_limit), (Tokens(1400), LimitSource::Profiled));
        assert!(check(&limits, &exact(1400), &Shape::default()).is_ok());
    }

    #[test]
    fn only_the_longest_prompt_of_a_list_counts() {
        let list = Count { total: Tokens(9000), longest: Tokens(900), certain: Certainty::Exact };
        assert!(check(&engine(2048), &list, &Shape::default()).is_ok());
    }

    #[test]
    fn a_prompt_larger_than_the_pool_is_refused_only_where_the_size_is_certain() {
        let pool = |certain| Limits { pool: Some(Tokens(1000)), pool_certain: certain, ..engine(100_000) };
        assert!(check(&pool(true), &exact(999), &Shape::default()).is_ok());
        assert!(matches!(
            check(&pool(true), &exact(1000), &Shape::default()),
            Err(Rejection::PromptExceedsPool { limit: Tokens(999), .. })
        ));
        assert!(check(&pool(false), &exact(5000), &Shape::default()).is_ok());
    }

    #[test]
    fn a_lower_bound_refuses_and_an_unknown_count_never_does() {
        let least = Count { certain: Certainty::AtLeast, ..exact(2049) };
        assert!(matches!(
            check(&engine(2048), &least, &Shape::default()),
            Err(Rejection::PromptTooLong { at_least: true, .. })
        ));
        let unknown = Count { certain: Certainty::Unknown, ..exact(u64::MAX) };
        assert!(check(&engine(2048), &unknown, &Shape::default()).is_ok());
    }

    #[test]
    fn within_the_margin_of_an_unproven_count_a_prompt_passes() {
        let limits = Limits { drift_margin: Tokens(16), ..engine(2048) };
        assert!(check(&limits, &exact(2047 + 16), &Shape::default()).is_ok());
        assert!(check(&limits, &exact(2048 + 16), &Shape::default()).is_err());
    }

    #[test]
    fn an_upper_bound_never_refuses() {
        let bound = Count::at_most(Tokens(5000), Tokens(1250));
        assert!(check(&engine(2048), &bound, &asks(1)).is_ok());
        assert!(!fits(&engine(2048), &bound, &asks(1)) && fits(&engine(5001), &bound, &asks(1)));
        assert!(fits(&Limits::default(), &bound, &asks(1)), "nothing to exceed");
    }

    proptest! {
        #[test]
        fn what_fits_by_its_bound_passes_by_its_count(
            bound in 0u64..5000, less in 0u64..5000, engine in proptest::option::of(0u64..5000),
            configured in proptest::option::of(0u64..5000), pool in 0u64..5000, certain in any::<bool>(),
            strict in any::<bool>(), margin in 0u64..100, max in 0u64..5000,
        ) {
            let limits = Limits {
                engine: engine.map(Tokens), configured: configured.map(Tokens), profiled: None,
                pool: Some(Tokens(pool)), pool_certain: certain, drift_margin: Tokens(margin), strict_output: strict,
            };
            let most = Count::at_most(Tokens(bound), Tokens(0));
            // The true count, off by as much as counts were seen to be.
            let truth = exact((bound + margin).saturating_sub(less));
            let proven = Limits { drift_margin: Tokens(0), ..limits };
            if fits(&limits, &most, &asks(max)) {
                prop_assert!(check(&proven, &truth, &asks(max)).is_ok());
            } else {
                prop_assert!(check(&proven, &exact(bound + margin), &asks(max)).is_err());
            }
        }

        #[test]
        fn any_numbers_are_survived_and_what_fits_every_limit_passes(
            prompt in any::<u64>(), context in any::<u64>(), configured in any::<u64>(),
            pool in any::<u64>(), margin in 0u64..100, max in any::<u64>(),
        ) {
            let limits = Limits {
                engine: Some(Tokens(context)), configured: Some(Tokens(configured)), profiled: None,
                pool: Some(Tokens(pool)), pool_certain: true, drift_margin: Tokens(margin), strict_output: false,
            };
            let passed = check(&limits, &exact(prompt), &asks(max)).is_ok();
            let least = configured.min(context.saturating_sub(1)).min(pool.saturating_sub(1));
            prop_assert_eq!(passed, prompt <= least.saturating_add(margin));
        }
    }
}
