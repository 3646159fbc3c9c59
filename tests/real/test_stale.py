"""An engine that closes, or resets, a pooled connection just when a request comes on it.

A real engine does so only by chance; this stand-in does it each time.
"""
import pytest

from kit import prompts, settings, wire
from kit.fake_engine import FakeEngine
from kit.gateway import Gateway


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("how", ["close_reused", "reset_reused"])
def test_a_pooled_connection_closed_under_a_request_is_neither_an_error_nor_a_death(how, stream):
    fake = FakeEngine(gap=0.001)
    with Gateway(fake.url, f"stale-{how}-{stream}") as gate:
        fake.rude = how
        for number in range(20):
            a = wire.ask(gate.url, "/v1/completions", prompts.completion(20, 3, stream=stream),
                         {"x-request-id": f"stale{number}"})
            assert (a.status, a.ended) == (200, "complete"), (number, a)
        assert gate.reports() == []
        assert gate.ready()[0] == 200
        assert gate.page().total("kvgate_engine_crashes_total") == 0
        assert gate.page().total("kvgate_rejections_total") == 0
    assert fake.rude_times >= 5, "no connection was used again"
    # No request was done twice: each was answered once.
    done = sorted(settings.client_part(b["id"]) for b in fake.books if b["ended"])
    assert done == sorted(f"stale{number}" for number in range(20))
    fake.close()
