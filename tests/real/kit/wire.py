"""HTTP/1.1 over plain sockets: every byte of an answer with its time, and how it ended.

The tests use no HTTP library where the bytes are the matter: a library hides a
reset, a missing last chunk, or an answer that came while it was still sending.
"""
import json
import socket
import threading
import time


class Answer:
    """What came back.  `ended` is one of
    complete  all of the body as its framing says
    cut       the connection was closed before that
    reset     ECONNRESET or EPIPE
    silent    nothing came in the time allowed
    left      this client went away (`until` said so)
    refused   no connection
    """

    def __init__(self):
        self.status, self.reason, self.headers = 0, "", []
        self.raw, self.body = b"", b""
        self.pieces = []            # (time, bytes) of each chunk, or of each read
        self.ended, self.keep = None, False
        self.t_sent = self.t_head = self.t_end = None

    def header(self, name):
        for key, value in self.headers:
            if key.lower() == name.lower():
                return value
        return None

    def json(self):
        return json.loads(self.body)

    @property
    def code(self):
        """`error.code` of a refusal."""
        try:
            return self.json()["error"]["code"]
        except (ValueError, KeyError, TypeError):
            return None

    @property
    def events(self):
        return [e for e in self.body.split(b"\n\n") if e]

    @property
    def t_first(self):
        return self.pieces[0][0] if self.pieces else None

    @property
    def told(self):
        """Seconds that Retry-After asks for (the finer header first), or None."""
        fine = self.header("retry-after-ms")
        if fine is not None:
            return float(fine) / 1000
        coarse = self.header("retry-after")
        return None if coarse is None else float(coarse)

    def __repr__(self):
        return f"<{self.status} {self.ended} {len(self.body)} bytes {self.body[-160:]!r}>"


class Line:
    """One connection; `ask` may be called again where the answer allowed it."""

    def __init__(self, base, timeout=900):
        host, port = base.removeprefix("http://").split(":")
        self.address, self.timeout = (host, int(port)), timeout
        self.sock, self.rest, self.raw = None, b"", b""

    def connect(self):
        self.sock = socket.create_connection(self.address, timeout=self.timeout)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.rest = b""

    def close(self):
        sock, self.sock = self.sock, None       # two threads may close it
        if sock:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            sock.close()

    def _more(self):
        data = self.sock.recv(65536)
        if not data:
            raise EOFError
        self.raw += data
        self.rest += data

    def _until(self, mark):
        while mark not in self.rest:
            self._more()
        part, self.rest = self.rest.split(mark, 1)
        return part

    def _exactly(self, size):
        while len(self.rest) < size:
            self._more()
        part, self.rest = self.rest[:size], self.rest[size:]
        return part

    def read_head(self, a):
        lines = self._until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        _, status, a.reason = (lines[0] + " ").split(" ", 2)
        a.status, a.t_head = int(status), time.monotonic()
        a.headers = [tuple(x.strip() for x in h.split(":", 1)) for h in lines[1:]]

    def _read_body(self, a, until):
        def took(part):
            a.body += part
            a.pieces.append((time.monotonic(), part))
            return until is not None and until(a)

        if (a.header("transfer-encoding") or "").lower() == "chunked":
            while True:
                size = int(self._until(b"\r\n").split(b";")[0], 16)
                part = self._exactly(size)
                if self._exactly(2) != b"\r\n":
                    raise ValueError("a chunk that does not end with CRLF")
                if size == 0:
                    return "complete"
                if took(part):
                    return "left"
        size = a.header("content-length")
        if size is not None:
            if int(size):
                took(self._exactly(int(size)))
            return "complete"
        try:
            while True:
                self._more()
                part, self.rest = self.rest, b""
                if took(part):
                    return "left"
        except EOFError:
            return "complete"

    def read(self, a, until=None):
        """Read one answer into `a`."""
        self.raw = b""
        try:
            self.read_head(a)
            a.ended = self._read_body(a, until)
        except EOFError:
            a.ended = "cut"
        except (ConnectionResetError, BrokenPipeError):
            a.ended = "reset"
        except TimeoutError:
            a.ended = "silent"
        except (OSError, AttributeError):
            a.ended = "left"            # closed by `close` from another thread
        a.raw, a.t_end = self.raw, time.monotonic()
        a.keep = a.ended == "complete" and (a.header("connection") or "").lower() != "close"
        return a

    def ask(self, path, body=None, headers=None, until=None, method=None):
        a = Answer()
        try:
            if self.sock is None:
                self.connect()
            data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
            self.sock.sendall(head(self.address, path, data, headers, method) + (data or b""))
        except ConnectionRefusedError:
            a.ended = "refused"
            return a
        except OSError:
            pass                        # an answer may be there all the same
        a.t_sent = time.monotonic()
        self.read(a, until)
        if not a.keep:
            self.close()
        return a


def head(address, path, data, headers=None, method=None):
    lines = {"host": "%s:%d" % address}
    if data is not None:
        lines |= {"content-type": "application/json", "content-length": str(len(data))}
    lines |= headers or {}
    first = f"{method or ('GET' if data is None else 'POST')} {path} HTTP/1.1\r\n"
    return (first + "".join(f"{k}: {v}\r\n" for k, v in lines.items()) + "\r\n").encode()


def ask(base, path, body=None, headers=None, until=None, timeout=900, method=None):
    """One request on a connection of its own."""
    line = Line(base, timeout)
    try:
        return line.ask(path, body, headers, until, method)
    finally:
        line.close()


class Call(threading.Thread):
    """A request in the background; `leave` closes its connection at once."""

    def __init__(self, base, path, body, headers=None, timeout=900):
        super().__init__(daemon=True)
        self.line, self.what = Line(base, timeout), (path, body, headers)
        self.answer, self.seen = None, threading.Event()
        self.got = 0                    # pieces of the body so far
        self.start()

    def _count(self, a):
        self.got = len(a.pieces)
        self.seen.set()
        return False

    def run(self):
        path, body, headers = self.what
        self.answer = self.line.ask(path, body, headers, until=self._count)
        self.seen.set()
        self.line.close()

    def leave(self):
        self.line.close()

    def wait(self, timeout=900):
        self.join(timeout)
        assert self.answer is not None, "the request did not end in time"
        return self.answer


def wait_for(what, seconds, why, every=0.05):
    """Until `what()` is true; its value.  Fails with `why` and the last value.

    A look that takes long (a machine that stood still) counts as one second of the time: what is
    waited for stood still too.
    """
    left = seconds
    while True:
        began = time.monotonic()
        value = what()
        if value:
            return value
        if left <= 0:
            raise AssertionError(f"not within {seconds} s: {why() if callable(why) else why}")
        time.sleep(every)
        left -= min(time.monotonic() - began, 1)
