"""A client that goes away frees its place and the engine's work within one second."""
import time

import pytest

from kit import prom, prompts, settings, wire
from kit.client import OpenAI
from kit.crowd import table
from kit.gateway import Gateway

LIMIT = 1.0
_rows = []


def freed(what, read, want):
    """Seconds until `read()` is `want`; fails after LIMIT."""
    began = time.monotonic()
    while True:
        seen = read()
        # By when that was asked for: an engine that answers late shows what was later.
        took = prom.asked - began
        assert took < LIMIT, f"{what}: {seen}, not {want} within {LIMIT} s; looked at after {took:.3f} s"
        if seen == want:
            break
        time.sleep(0.02)
    _rows.append({"who left": what, "free after ms": f"{1000 * took:.0f}"})


def depth(gate):
    return int(gate.page().total("kvgate_queue_depth"))


def nothing_kept(gate):
    """No trace in the gateway's own books."""
    def books():
        page = gate.page()
        return [page.total(f"kvgate_{n}") for n in
                ("queue_depth", "inflight_requests", "inflight_reserved_tokens")]
    wire.wait_for(lambda: books() == [0, 0, 0], 1, lambda: f"still in the books: {books()}")


@pytest.fixture(scope="module", autouse=True)
def printed():
    yield
    if _rows:
        from conftest import _tables
        _tables.append("\nA client left\n" + table(_rows))


def test_while_queued(engine):
    with Gateway(engine.url, "leave-queued") as gate:
        full = prompts.fill(gate.url)
        came = engine.page().total("http_requests_total", handler="/v1/completions")
        queued = [wire.Call(gate.url, "/v1/completions", prompts.completion(prompts.FILL, 50, stream=s),
                            settings.patience(600))
                  for s in (True, False)]
        wire.wait_for(lambda: depth(gate) == 2, 10, lambda: f"queue depth is {depth(gate)}, not 2")
        queued[0].leave()
        freed("queued, stream", lambda: depth(gate), 1)
        queued[1].leave()
        freed("queued, plain", lambda: depth(gate), 0)
        assert all(c.wait().status == 200 for c in full)
        engine.wait_idle()
        # The counter moves when a request ends: the three that ran, and no other.
        assert engine.page().total("http_requests_total", handler="/v1/completions") - came == 3
        nothing_kept(gate)


def test_waiting_in_the_engine_before_the_first_token(engine):
    with Gateway(engine.url, "leave-waiting", config=settings.Config.CAPACITY_OFF) as gate:
        run = [wire.Call(gate.url, "/v1/completions", prompts.completion(50, 800, stream=True))
               for _ in range(settings.MAX_NUM_SEQS)]
        engine.wait_busy(settings.MAX_NUM_SEQS, 0, of=run)
        wait = wire.Call(gate.url, "/v1/completions", prompts.completion(50, 50, stream=True))
        engine.wait_busy(settings.MAX_NUM_SEQS, 1, of=[*run, wait])
        assert wait.got == 0
        wait.leave()
        freed("before the first token, waiting in the engine", lambda: engine.busy()[1], 0)
        for c in run:
            c.leave()
        freed("mid-stream, four at once", engine.busy, (0, 0))
        nothing_kept(gate)


@pytest.mark.parametrize("stream", [False, True])
def test_running_in_the_engine(engine, stream):
    with Gateway(engine.url, "leave-running") as gate:
        c = wire.Call(gate.url, "/v1/completions", prompts.completion(50, 1500, stream=stream))
        engine.wait_busy(1)
        if stream:
            wire.wait_for(lambda: c.got >= 3, 30, "no stream")
        else:
            assert c.got == 0
        c.leave()
        freed("mid-stream" if stream else "plain, before its answer", engine.busy, (0, 0))
        wire.wait_for(lambda: engine.page().total("vllm:kv_cache_usage_perc") == 0, 1,
                      "the engine's pool is not free")
        nothing_kept(gate)


def test_the_openai_client_that_closes_its_stream(engine):
    with Gateway(engine.url, "leave-openai") as gate:
        c = OpenAI(gate.url, max_retries=0)
        stream = c.complete(1500, prompt=50, stream=True)
        for _ in range(3):
            next(stream)
        engine.wait_busy(1)
        stream.close()
        freed("openai client, mid-stream", engine.busy, (0, 0))
        nothing_kept(gate)
        assert gate.reports() == []
