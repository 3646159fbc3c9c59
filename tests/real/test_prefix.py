"""What prompts have in common costs the engine no prefill: what kvgate expects of its prefix cache comes true, and
only that is credited."""
import random

from kit import prompts, wire
from kit.crowd import table
from kit.gateway import Gateway

TURNS = 12
WORDS = "over the river and through the wood a grey horse knows where to carry its sleigh".split()


def text(seed, words):
    """Words that no other seed gives in this order."""
    dice = random.Random(seed)
    return " ".join(dice.choice(WORDS) for _ in range(words))


def ask(gate, prompt):
    a = wire.ask(gate.url, "/v1/completions", prompts.completion(prompt, 1))
    assert (a.status, a.ended) == (200, "complete"), a


def found(engine):
    """Prompt tokens that the engine looked for in its cache, and those that it found there."""
    page = engine.page()
    return (page.total("vllm:prefix_cache_queries_total"), page.total("vllm:prefix_cache_hits_total"))


def test_a_common_beginning_is_credited_as_far_as_the_engine_finds_it(engine, show):
    rows = []
    with Gateway(engine.url, "prefix") as gate:
        trust = lambda: gate.state()["admission"]["prefix_trust"]  # noqa: E731
        assert trust() == 0
        for what, common in (("nothing in common", ""), ("900 words in common", text("common", 900))):
            before = found(engine)
            for turn in range(TURNS):
                ask(gate, f"{common} " + text(f"{what} {turn}", 120))
            # The scrape that says what was found comes every second.
            enough = 0.7 if common else 0.0
            wire.wait_for(lambda: trust() >= enough, 10, lambda: f"trust is {trust()}")
            looked, hits = (now - then for now, then in zip(found(engine), before))
            rows.append({"prompts with": what, "looked for": int(looked), "found": int(hits), "trust": f"{trust():.2f}"})
            share = hits / looked
            assert share < 0.05 if not common else share > 0.6, rows
            assert trust() == 0 if not common else trust() <= 1, rows
        assert gate.page().total("kvgate_rejections_total") == 0
    show("What prompts have in common, and what the engine found of it in its prefix cache", table(rows))
