"""The length rule against the engine's own: what it refuses as too long never reaches it."""
import json
import time

from kit import lengths, settings, wire
from kit.crowd import table
from kit.gateway import Gateway


def reached(engine):
    """Requests that reached the engine, by route, whatever became of them."""
    page = engine.page()
    return {path: page.total("http_requests_total", handler=path)
            for path in (lengths.CHAT, lengths.COMPLETIONS)}


def counted(engine, before):
    """Whether one more has reached it; the engine counts an answer just after its last byte."""
    end = time.monotonic() + 1
    while reached(engine) == before and time.monotonic() < end:
        time.sleep(0.02)
    return reached(engine) != before


def test_what_the_engine_refuses_as_too_long_is_a_413_and_never_reaches_it(engine, show):
    rows, wrong = [], []
    start = sum(reached(engine).values())
    with Gateway(engine.url, "too-long") as gate:
        for name, (path, body) in lengths.too_long(engine).items():
            bare = wire.ask(engine.url, path, body)
            assert bare.status == 400, (name, bare)     # or it is no case for this test
            before = reached(engine)
            a = wire.ask(gate.url, path, body)
            ok = (a.status == 413 and a.ended == "complete"
                  and a.code == "context_length_exceeded"
                  and a.header("x-should-retry") == "false"
                  and a.header("x-kvgate-reason") == "context_length_exceeded"
                  and "This model's maximum context length is" in a.json()["error"]["message"]
                  and "exceeds the context window" in a.json()["error"]["message"]
                  and reached(engine) == before)
            if not ok:
                wrong.append((name, a, reached(engine), before))
            rows.append({"case": name, "engine": bare.status, "kvgate": a.status,
                         "prompt": a.header("x-kvgate-prompt-tokens"),
                         "limit": a.header("x-kvgate-limit"), "reached it": not ok})
        page = gate.page()
    time.sleep(1)                       # had one come, the engine has counted it by now
    show("Too long for the engine", table(rows))
    assert not wrong
    assert sum(reached(engine).values()) - start == len(rows), "more than the bare requests"
    assert page.total("kvgate_rejections_total", reason="context_length_exceeded") == len(rows)


def test_what_the_engine_accepts_or_refuses_for_another_reason_passes_to_it(engine, show):
    rows, wrong = [], []
    with Gateway(engine.url, "passes") as gate:
        for name, (path, body) in lengths.passing(engine).items():
            bare = wire.ask(engine.url, path, body)
            engine.wait_idle()
            before = reached(engine)
            a = wire.ask(gate.url, path, body)
            came = counted(engine, before)
            if lengths.comparable(a) != lengths.comparable(bare) or not came:
                wrong.append((name, bare, a, came))
            rows.append({"case": name, "engine": bare.status, "kvgate": a.status, "reached it": came})
    show("Accepted by the engine, or refused for another reason", table(rows))
    assert not wrong
    assert {r["engine"] for r in rows} == {200, 400, 404}


def test_the_output_is_cut_as_the_engine_cuts_it(engine):
    body = lengths.passing(engine)[f"ids {settings.MAX_MODEL_LEN - 7}, 8 out (cut to 7)"][1]
    with Gateway(engine.url, "cut") as gate:
        a = wire.ask(gate.url, lengths.COMPLETIONS, body)
    assert a.json()["usage"]["completion_tokens"] == 7


def test_what_cannot_be_understood_is_refused_with_400_as_the_engine_does(engine):
    """By the gateway or by the engine: that it does not matter is the point."""
    with Gateway(engine.url, "no-json") as gate:
        for body in (b'{"model": "tiny", "prompt": ', b"[1, 2", b"\xff\xfe{}", b"",
                     b'{"model": "tiny", "max_tokens": 1, "prompt": ["Hi", 5]}'):
            for path in (lengths.CHAT, lengths.COMPLETIONS):
                bare = wire.ask(engine.url, path, body)
                a = wire.ask(gate.url, path, body)
                assert (a.status, a.ended) == (bare.status, "complete"), (body, path, bare, a)
                json.loads(a.body)
