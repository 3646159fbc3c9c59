"""The real openai client against the gateway in front of the real engine."""
import threading

import openai
import pytest

from kit import prompts, settings, wire
from kit.client import OpenAI
from kit.fake_engine import FakeEngine
from kit.gateway import Gateway, free_port


@pytest.fixture(scope="module")
def gate(request):
    from conftest import _engines
    with Gateway(_engines.need("plain").url, "openai") as gate:
        yield gate


def test_a_plain_chat_and_a_plain_completion(gate):
    c = OpenAI(gate.url, max_retries=0)
    chat = c.client.chat.completions.create(
        model=settings.MODEL, max_tokens=8, temperature=0, extra_body={"ignore_eos": True},
        messages=[{"role": "user", "content": "Hi there"}])
    assert (chat.usage.prompt_tokens, chat.usage.completion_tokens) == (20, 8)
    assert chat.choices[0].finish_reason == "length"
    assert c.complete(8).usage.completion_tokens == 8
    assert [m.id for m in c.client.models.list()] == [settings.MODEL]


def test_a_streamed_chat_gives_every_piece_and_the_usage(gate):
    c = OpenAI(gate.url, max_retries=0)
    pieces = list(c.client.chat.completions.create(
        model=settings.MODEL, max_tokens=30, temperature=0, stream=True,
        extra_body={"ignore_eos": True}, stream_options={"include_usage": True},
        messages=[{"role": "user", "content": "Hi there"}]))
    assert pieces[-1].usage.completion_tokens == 30
    assert pieces[-1].usage.prompt_tokens == 20
    assert pieces[-2].choices[0].finish_reason == "length"


@pytest.mark.parametrize("stream", [False, True])
def test_an_over_long_prompt_is_one_attempt_and_the_context_length_error(gate, stream):
    c = OpenAI(gate.url, max_retries=5)
    c.complete(8, prompt=3000, stream=stream)
    assert isinstance(c.error, openai.APIStatusError)
    assert (c.error.status_code, c.error.code) == (413, "context_length_exceeded")
    assert "maximum context length is 2048 tokens" in c.error.message
    assert len(c.attempts) == 1


def test_a_429_is_waited_out_as_told(gate, engine):
    """Three long requests fill the pool; the fourth will not wait in the queue."""
    c = OpenAI(gate.url, max_retries=20, headers=settings.patience(0.1))
    calls = prompts.fill(gate.url)
    c.complete(50, prompt=prompts.FILL)
    assert c.result is not None, c.error
    c.check_waits(429)
    assert all(c.wait().status == 200 for c in calls)


def test_a_429_without_retries_is_the_rate_limit_error(gate, engine):
    engine.wait_idle()
    c = OpenAI(gate.url, max_retries=0, headers=settings.patience(0.1))
    calls = prompts.fill(gate.url)
    c.complete(50, prompt=prompts.FILL)
    for call in calls:
        call.leave()
    assert isinstance(c.error, openai.RateLimitError)
    assert c.error.code == "engine_saturated"
    assert 1 <= int(c.error.response.headers["retry-after"]) <= 60


def test_a_503_is_tried_again_until_the_engine_is_there():
    """No engine at first (one of our own that starts late): 503, wait, 200."""
    port = free_port()
    with Gateway(f"http://127.0.0.1:{port}", "openai-503", ready=False) as gate:
        quiet = OpenAI(gate.url, max_retries=0)
        quiet.complete(3)
        assert isinstance(quiet.error, openai.InternalServerError)
        assert (quiet.error.status_code, quiet.error.code) == (503, "engine_unavailable")
        c = OpenAI(gate.url, max_retries=3)
        knocker = threading.Thread(target=c.complete, args=(3,), daemon=True)
        knocker.start()
        wire.wait_for(lambda: c.attempts and c.attempts[0]["status"], 10, "no first attempt")
        fake = FakeEngine(port)
        knocker.join(180)
        assert c.result is not None, (c.error, c.attempts)
        c.check_waits(503)
        fake.close()
