"""Forty requests of 300 + 400 tokens at once, on a pool that holds three and a half.

The bare engine takes four, runs out of pool, preempts, and computes again.
"""
import pytest

from kit import honesty, prompts, pulse, settings, wire
from kit.crowd import Crowd, table
from kit.gateway import Gateway

KINDS = ("stream", "plain") if settings.FULL else ("mixed",)
_bare = {}


def bare(engine, kind, show):
    """The bare engine's crowd, run once."""
    if kind not in _bare:
        engine.wait_idle()
        _bare[kind] = Crowd(engine.url, engine.url, kind=kind).run()
        show(f"Bare engine, forty at once ({kind})", table([_bare[kind].row("bare")]))
    return _bare[kind]


def gated(engine, kind, seconds, **more):
    with Gateway(engine.url, f"preemption-{kind}-{seconds}s") as gate:
        # A gateway that has seen the engine's pace, as one has in real life: alone, and with all its seats
        # taken (a step with four takes up to twice as long as one with one).
        for together in (1, settings.MAX_NUM_SEQS):
            calls = [wire.Call(gate.url, "/v1/completions", prompts.completion(50, 100, stream=True))
                     for _ in range(together)]
            answers = [call.wait() for call in calls]
            assert [a.status for a in answers] == [200] * together
        took = max(a.t_end for a in answers) - min(a.t_first for a in answers)
        engine.wait_idle()
        return Crowd(gate.url, engine.url, kind=kind, books=gate.admin,
                     headers=settings.patience(seconds), usual=together * 99 / took, **more).run()


@pytest.mark.parametrize("kind", KINDS)
def test_the_bare_engine_preempts(engine, kind, show):
    crowd = bare(engine, kind, show)
    assert crowd.statuses() == {"200 complete": 40}
    assert crowd.preemptions > 0


@pytest.mark.parametrize("kind", KINDS)
def test_with_a_long_deadline_all_forty_are_served_and_none_is_preempted(engine, kind, show):
    alone, crowds = [bare(engine, kind, show)], [gated(engine, kind, 600)]
    fastest = lambda runs: min(run.seconds for run in runs)
    # Other work on the machine slows the one or the other: then each is run once more, and the best compared.
    if fastest(crowds) > 1.1 * fastest(alone):
        alone.append(Crowd(engine.url, engine.url, kind=kind).run())
        crowds.append(gated(engine, kind, 600))
    rows = [run.row("bare") for run in alone] + [crowd.row("kvgate, 600 s") for crowd in crowds]
    show(f"Forty at once ({kind}), deadline 600 s: {fastest(crowds) / fastest(alone):.2f} "
         "of the bare engine's time", table(rows))
    for crowd in crowds:
        assert crowd.statuses() == {"200 complete": 40}
        assert crowd.preemptions == 0
        assert crowd.most_waiting <= 1
    assert fastest(crowds) <= 1.1 * fastest(alone)


@pytest.mark.parametrize("kind", KINDS)
def test_with_a_short_deadline_who_cannot_make_it_is_told_when_to_come_back(engine, kind, show):
    once = wire.ask(engine.url, "/v1/completions", prompts.completion(300, 400))
    out = once.t_end - once.t_sent
    crowd = gated(engine, kind, 20, come_back=True)
    rows = honesty.waits(crowd, out)
    seconds = lambda value: "-" if value is None else f"{value:.1f}"
    each = [{"client": r["client"], "refused at": seconds(r["refused"]), "told": seconds(r["told"]),
             "real": seconds(r["real"]), "at pace": seconds(r["pace"]), "room after": seconds(r["room"]),
             "verdict": honesty.verdict(r)} for r in sorted(rows, key=lambda r: r["refused"])]
    show(f"Forty at once ({kind}), deadline 20 s, refused clients come back when told; one "
         f"request alone takes {out:.1f} s",
         "\n".join([table([crowd.row("kvgate, 20 s")]), table(honesty.summary(rows)), table(each)]
                   if rows else ["no refusal"]))
    assert crowd.statuses() == {"200 complete": 40}
    assert crowd.preemptions == 0 and crowd.most_waiting <= 1
    assert rows, "nobody was refused: the deadline did not bite"
    queued = [a.t_end - a.t_sent - pulse.stood_still(a.t_sent, a.t_end)
              for c in crowd.clients for _, a in c.refusals]
    late = [t for t in queued if t >= 1]
    # Who could have made it at the pace of that moment, and then cannot, is told as soon as that shows.
    assert len(late) <= len(queued) // 4, f"clients that could not make it waited for their 429: {late}"
    assert max(queued) <= 21
    assert all(a.code == "engine_saturated" and 1 <= int(a.header("retry-after")) <= 60
               for c in crowd.clients for _, a in c.refusals)
    # On a quiet machine one in twenty is wrong; where other work slows the engine meanwhile, those that came
    # back too early are told a second time.
    wrong = [r for r in each if r["verdict"] != "right"]
    assert len(wrong) <= len(each) // 5 + 1, wrong
