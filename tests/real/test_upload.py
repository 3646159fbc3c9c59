"""A body that is too large is refused while it still comes, and the refusal arrives.

Closing a socket with unread bytes in it sends a reset, which can overtake the
answer: the gateway must go on reading for a while.
"""
import threading
import time

import pytest

from kit import prompts, settings, wire
from kit.fake_engine import FakeEngine
from kit.gateway import Gateway

LIMIT = 1_000_000


@pytest.fixture(scope="module")
def fake():
    fake = FakeEngine()
    yield fake
    fake.close()


@pytest.fixture(scope="module")
def gate(fake):
    with Gateway(fake.url, "upload", config=settings.Config.max_body(LIMIT)) as gate:
        yield gate


class Uploader:
    """Sends a head, then trickles, and reads at the same time as it sends."""

    def __init__(self, base, head, piece, pause, seconds):
        self.line = wire.Line(base, timeout=30)
        self.line.connect()
        self.line.sock.sendall(head)
        self.piece, self.pause, self.seconds = piece, pause, seconds
        self.sent, self.broke = 0, None
        self.answered = threading.Event()
        self.sender = threading.Thread(target=self._send, daemon=True)
        self.sender.start()

    def _send(self):
        end = time.monotonic() + self.seconds
        try:
            while time.monotonic() < end and not self.answered.is_set():
                self.line.sock.sendall(self.piece)
                self.sent += len(self.piece)
                time.sleep(self.pause)
            # A client that notices the answer late: it goes on for a moment.
            for _ in range(5):
                self.line.sock.sendall(self.piece)
                time.sleep(self.pause)
        except OSError as error:
            self.broke = error

    def answer(self):
        a = self.line.read(wire.Answer())
        self.t_answer = time.monotonic()
        self.answered.set()
        self.sender.join(30)
        return a


def check(a, up):
    assert (a.status, a.ended, a.code) == (413, "complete", "request_too_large"), (a, up.broke)
    assert a.header("connection") == "close"
    assert a.header("x-should-retry") == "false"
    assert not isinstance(up.broke, ConnectionResetError), "a reset while it was sending"


def test_a_slow_upload_that_says_it_is_too_large_is_answered_before_it_has_come(gate, fake):
    before = len(fake.books)
    head = (b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"content-length: 200000000\r\n\r\n")
    began = time.monotonic()
    up = Uploader(gate.url, head, b"a" * 1000, 0.1, 20)
    a = up.answer()
    check(a, up)
    assert up.t_answer - began < 1, "it waited for the body"
    up.line.close()
    assert len(fake.books) == before


def test_a_fast_upload_gets_its_413_too(gate):
    head = (b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"content-length: 50000000\r\n\r\n")
    up = Uploader(gate.url, head, b"a" * 65536, 0.001, 20)
    check(up.answer(), up)
    up.line.close()


def test_a_client_that_reads_only_after_it_has_sent_all_gets_its_413(gate):
    """What most libraries do: the whole body first.  It may fail to send the rest, but
    then the answer must be there to be read."""
    line = wire.Line(gate.url, timeout=30)
    line.connect()
    body = b'{"model":"tiny","prompt":"' + b"a" * (4 * LIMIT) + b'"}'
    try:
        line.sock.sendall(wire.head(line.address, "/v1/completions", body) + body)
    except OSError as error:
        assert not isinstance(error, ConnectionResetError)
    a = line.read(wire.Answer())
    assert (a.status, a.ended, a.code) == (413, "complete", "request_too_large"), a
    line.close()


def test_a_chunked_upload_is_cut_off_where_it_passes_the_limit(gate, fake):
    before = len(fake.books)
    head = (b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"transfer-encoding: chunked\r\n\r\n")
    piece = b"%x\r\n%b\r\n" % (50_000, b"a" * 50_000)
    up = Uploader(gate.url, head, piece, 0.02, 20)
    check(up.answer(), up)
    assert up.sent < 3 * LIMIT
    up.line.close()
    assert len(fake.books) == before


def test_who_expects_100_continue_is_refused_before_it_sends(gate):
    line = wire.Line(gate.url, timeout=10)
    line.connect()
    line.sock.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n"
                      b"content-type: application/json\r\ncontent-length: 200000000\r\n\r\n")
    a = line.read(wire.Answer())
    assert (a.status, a.code) == (413, "request_too_large"), a
    line.close()


def test_a_body_within_the_limit_passes_chunked_and_with_100_continue(gate):
    line = wire.Line(gate.url, timeout=10)
    line.connect()
    line.sock.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n"
                      b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
    a = line.read(wire.Answer())
    assert a.status == 100, a
    body = b'{"model":"tiny","prompt":"Hi there","max_tokens":2}'
    line.sock.sendall(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
    a = line.read(wire.Answer())
    assert (a.status, a.ended) == (200, "complete"), a
    line.close()
    assert wire.ask(gate.url, "/v1/completions", prompts.completion(5, 1)).status == 200
