"""The gateway under test, as a process of its own."""
import json
import os
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

from . import prom, settings, wire


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Gateway:
    """`with Gateway(engine.url, "name") as gate:` is ready inside, and drained after."""

    last = None                         # the one that was started last

    def __init__(self, engine, name, config="", args=(), ready=True, ports=None):
        settings.LOGS.mkdir(parents=True, exist_ok=True)
        self.engine, self.name, self.wants_ready = engine, name, ready
        self.ports = ports or (free_port(), free_port())
        self.url, self.admin = (f"http://127.0.0.1:{p}" for p in self.ports)
        self.log = settings.LOGS / f"gateway-{name}.log"
        self.command = [settings.BIN, "serve", "--engine", engine,
                        "--listen", f"127.0.0.1:{self.ports[0]}",
                        "--admin", f"127.0.0.1:{self.ports[1]}", *args]
        if config:
            file = settings.LOGS / f"gateway-{name}.toml"
            file.write_text(config)
            self.command += ["--config", file]
        self.process = None

    def start(self):
        Gateway.last = self
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log,
                                            stdin=subprocess.DEVNULL)
        try:
            wire.wait_for(self._listens, 20, f"kvgate does not listen; see {self.log}")
            if self.wants_ready:
                self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    __enter__ = start

    def __exit__(self, *_):
        self.stop()

    def _listens(self):
        assert self.process.poll() is None, \
            f"kvgate ended with {self.process.returncode}; see {self.log}:\n{self.log_tail()}"
        return wire.ask(self.admin, "/livez", timeout=5).status == 200

    def log_tail(self):
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])

    def wait_ready(self, seconds=30):
        """Ready, and with the model's tokenizer at hand (which comes a moment later)."""
        def whole():
            status, body = self.ready()
            return status == 200 and (json.loads(body).get("tokenizer") or {}).get("kind") == "tokenizer"
        wire.wait_for(whole, seconds,
                      lambda: f"/readyz says {self.ready()}; see {self.log}")

    def ready(self):
        a = wire.ask(self.admin, "/readyz", timeout=10)
        return a.status, a.body.decode(errors="replace")

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(40)
            except subprocess.TimeoutExpired:
                self.process.kill()
                raise AssertionError("kvgate did not end within 40 s of SIGTERM") from None

    def kill(self):
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def page(self):
        return prom.scrape(self.admin)

    def get(self, path):
        with urllib.request.urlopen(self.admin + path, timeout=10) as answer:
            return json.load(answer)

    def state(self):
        return self.get("/api/v1/state")

    def in_flight(self):
        return self.get("/api/v1/inflight")

    def reports(self):
        """The crash reports, whole, oldest first."""
        listed = self.get("/api/v1/reports")
        if isinstance(listed, dict):
            listed = next(v for v in listed.values() if isinstance(v, list))
        ids = [r if isinstance(r, str) else r["id"] for r in listed]
        return [self.get(f"/api/v1/reports/{i}") for i in ids]

    def spent(self):
        """Seconds of processor time so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def named(part, names):
    """The first of `names` that the JSON object has, at the top or one level below."""
    for level in [part, *(v for v in part.values() if isinstance(v, dict))]:
        for name in names:
            if name in level:
                return level[name]
    raise AssertionError(f"none of {names} in {json.dumps(part)[:2000]}")


def client_ids(records):
    """Sorted `client_id`s of ledger records, however deep they lie."""
    found, todo = [], [records]
    while todo:
        item = todo.pop()
        if isinstance(item, list):
            todo += item
        elif isinstance(item, dict):
            if isinstance(item.get("client_id"), str):
                found.append(item["client_id"])
            todo += [v for v in item.values() if isinstance(v, (dict, list))]
    return sorted(found)
