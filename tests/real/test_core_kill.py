"""SIGKILL to the engine's core with everything in flight: what each client gets, byte by
byte, what the report says, and that the gateway goes on until the engine is back.

The engine that comes back is the one of the mission, with the crash plugin and another pool.
"""
import json
import threading
import time

from kit import prompts, settings, wire
from kit.client import OpenAI
from kit.crowd import table
from kit.gateway import Gateway, client_ids, named

STREAMS, PLAIN = 4, 4           # of each; the engine runs four and lets the others wait
TAIL = b"data: [DONE]\n\n"


def launch(gate):
    """{id: (is a stream, call)}: two streams and two plain ones run, as many wait."""
    calls = {}
    for wave in ("run", "wait"):
        for i in range(STREAMS // 2 + PLAIN // 2):
            stream = i % 2 == 0
            rid = f"{wave}-{'stream' if stream else 'plain'}-{i}"
            calls[rid] = stream, wire.Call(
                gate.url, "/v1/completions", prompts.completion(100, 500, stream=stream),
                {"x-request-id": rid})
        want = (4, 0) if wave == "run" else (4, 4)
        wire.wait_for(lambda: gate_engine_busy(gate) == want, 30,
                      lambda: f"running, waiting: {gate_engine_busy(gate)}, not {want}; answers so far: "
                              f"{[(rid, call.got, call.answer) for rid, (_, call) in calls.items()]}")
    return calls


def gate_engine_busy(gate):
    from kit import prom
    page = prom.scrape(gate.engine)
    return (int(page.total("vllm:num_requests_running")),
            int(page.total("vllm:num_requests_waiting")))


def check_stream_that_ran(a):
    """Whole events as the engine sent them, then the contract's ending, then a proper end."""
    assert (a.status, a.ended) == (200, "complete"), a
    assert a.raw.endswith(b"\r\n0\r\n\r\n"), a.raw[-200:]
    at = a.body.index(b"event: error\n")
    sent, ending = a.body[:at], a.body[at:]
    assert sent.endswith(b"\n\n")
    for event in sent.split(b"\n\n")[:-1]:
        assert event.startswith(b"data: "), event
        assert json.loads(event[6:])["object"] == "text_completion"
    assert ending.endswith(b"\n\n" + TAIL)
    first, data = ending[:-len(b"\n\n" + TAIL)].split(b"\n")
    assert first == b"event: error" and data.startswith(b"data: ")
    error = json.loads(data[6:])["error"]
    assert error["code"] == "engine_crashed"
    assert set(error) >= {"message", "type", "param", "code"}
    assert b"EngineCore encountered" not in a.body


def check_refused(a):
    """Nothing had been sent to this client: a clean 503."""
    assert (a.status, a.ended, a.code) == (503, "complete", "engine_crashed"), a
    assert a.header("x-kvgate-reason") == "engine_crashed"
    assert a.header("retry-after") is not None or a.header("x-should-retry") == "false"
    if a.header("retry-after"):
        assert 1 <= int(a.header("retry-after")) <= 60


def check_while_down(gate):
    """No engine: it says so, and how long it may take."""
    status, body = gate.ready()
    assert status == 503 and json.loads(body)["reason"] in ("engine_down", "engine_loading"), body
    assert wire.ask(gate.admin, "/livez").status == 200
    a = wire.ask(gate.url, "/v1/completions", prompts.completion(5, 1))
    assert (a.status, a.ended, a.code) == (503, "complete", "engine_unavailable"), a
    assert 1 <= int(a.header("retry-after")) <= 60


def check_report(gate, calls):
    wire.wait_for(gate.reports, 15, "no crash report")
    reports = gate.reports()
    assert len(reports) == 1, f"{len(reports)} reports for one death"
    assert client_ids(named(reports[0], settings.REPORT_IN_FLIGHT)) == sorted(calls)
    assert gate.page().total("kvgate_engine_crashes_total") == 1


def test_the_engines_death_is_a_clear_answer_for_each_client(engines, show):
    engine = engines.need("plain")
    with Gateway(engine.url, "core-kill", config=settings.Config.CAPACITY_OFF) as gate:
        # Two that are over before the death, and so belong to no report.
        assert wire.ask(gate.url, "/v1/completions", prompts.completion(9, 1),
                        {"x-request-id": "over-before"}).status == 200
        assert wire.ask(gate.url, "/v1/completions", prompts.completion(3000, 1),
                        {"x-request-id": "refused-before"}).status == 413
        calls = launch(gate)
        time.sleep(1)
        began = time.monotonic()
        engine.kill_core()
        answers = {rid: (stream, call.wait(30)) for rid, (stream, call) in calls.items()}
        rows = []
        for rid, (stream, a) in answers.items():
            (check_stream_that_ran if stream and rid.startswith("run") else check_refused)(a)
            rows.append({"request": rid, "status": a.status, "ended": a.ended,
                         "after ms": f"{1000 * (a.t_end - began):.0f}",
                         "retry-after": a.header("retry-after"), "retry": a.header("x-should-retry"),
                         "last bytes": repr(a.body[-60:])[1:]})
        show("The engine's core killed: what each client got", table(rows))
        check_report(gate, calls)
        check_while_down(gate)

        # A client of the openai library that knocks on until the engine is back.
        knocking = OpenAI(gate.url, max_retries=60)
        knocker = threading.Thread(target=knocking.complete, args=(5,), daemon=True)
        knocker.start()
        down = time.monotonic()
        back = engines.need("crash")
        gate.wait_ready(60)
        assert back.url == engine.url
        a = wire.ask(gate.url, "/v1/completions", prompts.completion(20, 5))
        assert (a.status, a.ended) == (200, "complete"), a
        knocker.join(120)
        assert knocking.result is not None, knocking.error
        knocking.check_waits(503)
        show("The engine came back", f"after {time.monotonic() - down:.0f} s; a client of the openai "
             f"library asked {len(knocking.attempts)} times, told {knocking.told()}")
        assert len(gate.reports()) == 1
        assert gate.page().total("kvgate_engine_starts_total") >= 1
