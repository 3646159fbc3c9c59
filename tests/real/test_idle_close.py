"""The real engine closes a connection that was idle for five seconds: no request may
fail by it, and it is no death."""
import time

from kit import prompts, settings, wire
from kit.gateway import Gateway

# Around the moment of closing, and well after it.
PAUSES = [4.9, 4.95, 4.98, 5.0, 5.02, 5.05, 5.1, 5.5, 7.0]


def test_an_idle_connection_that_the_engine_closed_is_neither_an_error_nor_a_death(engine):
    with Gateway(engine.url, "idle-close") as gate:
        line = wire.Line(gate.url, timeout=60)
        for pause in [0, *(PAUSES if settings.FULL else PAUSES[1::2])]:
            time.sleep(pause)
            a = line.ask("/v1/completions", prompts.completion(20, 3))
            assert (a.status, a.ended) == (200, "complete"), (pause, a)
            assert a.keep, "the client's own connection was closed"
        line.close()
        page = gate.page()
        assert gate.reports() == []
        assert page.total("kvgate_engine_crashes_total") == 0
        assert page.total("kvgate_rejections_total") == 0
