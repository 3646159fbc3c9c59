"""A real vLLM: started, watched, killed."""
import os
import signal
import subprocess
import time
from pathlib import Path

from . import prom, prompts, settings, wire

KINDS = {
    # The engine of most tests: a pool of a few requests, so that it can be filled.
    "plain": {},
    # Dies on a long prompt, and has room for a crowd of short ones.
    "crash": {"CRASH_PROMPT_LEN": str(settings.CRASH_AT), "MAX_NUM_SEQS": "24",
              "NUM_BLOCKS": "320"},
}


class Engine:
    def __init__(self, run_dir, port, kind):
        self.run_dir, self.kind = Path(run_dir), kind
        self.url = f"http://127.0.0.1:{port}"
        self.log = self.run_dir / "server.log"

    @classmethod
    def start(cls, kind, port=settings.ENGINE_PORT):
        """Start one and wait for its /health (1 to 4 minutes)."""
        run_dir = settings.LOGS / f"engine-{kind}-{time.strftime('%H%M%S')}"
        run_dir.mkdir(parents=True)
        env = dict(os.environ, RUN_DIR=str(run_dir), **KINDS[kind])
        subprocess.run([settings.HERE / "engine/serve.sh", settings.VLLM, settings.SLOW, str(port)],
                       env=env, check=True)
        return cls(run_dir, port, kind)

    @classmethod
    def begun(cls, run_dir, port=settings.ENGINE_PORT):
        """The one that somebody else started with serve.sh: wait for it."""
        engine = cls(run_dir, port, "plain")
        wire.wait_for(lambda: wire.ask(engine.url, "/health").status == 200, 600,
                      f"the engine of {run_dir} is not healthy", every=1)
        return engine

    @property
    def pid(self):
        return int((self.run_dir / "server.pid").read_text())

    def alive(self):
        return not (self.run_dir / "server.exit").exists() and Path(f"/proc/{self.pid}").exists()

    def serves(self):
        """Does it still work?  One whose core has died answers /metrics and /health for a moment longer."""
        return wire.ask(self.url, "/v1/completions", prompts.completion(5, 1), timeout=60).status == 200

    def page(self):
        return prom.scrape(self.url)

    def family(self):
        """The processes below the server: {pid: its command line}."""
        parents, lines = {}, {}
        for proc in Path("/proc").iterdir():
            if proc.name.isdigit():
                try:
                    stat = (proc / "stat").read_text().rsplit(")", 1)[1].split()
                    line = (proc / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                except OSError:
                    continue
                parents[int(proc.name)], lines[int(proc.name)] = int(stat[1]), line
        found, todo = {}, [self.pid]
        while todo:
            parent = todo.pop()
            for pid in [p for p, above in parents.items() if above == parent]:
                found[pid] = lines[pid]
                todo.append(pid)
        return found

    def kill_core(self):
        """SIGKILL to the process that does the work; the API server lives a moment longer."""
        core, = (p for p, line in self.family().items() if line.startswith("VLLM::EngineCore"))
        os.kill(core, signal.SIGKILL)

    def wait_gone(self, seconds=60):
        """Until the server and all its processes have ended."""
        family = [self.pid, *self.family()]
        wire.wait_for(lambda: not any(_runs(p) for p in family), seconds,
                      "the engine's processes did not end", every=0.2)

    def stop(self):
        if not self.alive():
            return
        family = [self.pid, *self.family()]
        os.kill(self.pid, signal.SIGTERM)
        end = time.monotonic() + 30
        while any(_runs(p) for p in family):
            if time.monotonic() > end:
                for p in filter(_runs, family):
                    os.kill(p, signal.SIGKILL)
            time.sleep(0.2)

    def busy(self):
        """The engine's own two counts."""
        page = self.page()
        return (int(page.total("vllm:num_requests_running")),
                int(page.total("vllm:num_requests_waiting")))

    def wait_idle(self, seconds=120):
        wire.wait_for(lambda: self.busy() == (0, 0), seconds, "the engine is not idle")

    def wait_busy(self, running, waiting=0, seconds=60, of=()):
        """Until so many run and wait; fails at once when a call in `of` has ended, with its answer."""
        def so():
            ended = [call.answer for call in of if call.answer]
            assert not ended, f"ended before {(running, waiting)} was seen: {ended}"
            return self.busy() == (running, waiting)
        wire.wait_for(so, seconds,
                      lambda: f"running, waiting are {self.busy()}, not {(running, waiting)}; "
                              f"pieces so far: {[call.got for call in of]}")


def _runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class Engines:
    """At most one engine at a time, of the kind that a test asks for."""

    def __init__(self):
        self.now = None

    def need(self, kind):
        if self.now and self.now.kind == kind and self.now.alive():
            self.now.wait_idle()
            return self.now
        self.end()
        if kind == "plain" and settings.ENGINE_RUN and self._never_used(settings.ENGINE_RUN):
            self.now = Engine.begun(settings.ENGINE_RUN)
        else:
            self.now = Engine.start(kind)
        self.now.wait_idle()
        return self.now

    def renew(self):
        """What a test left that failed, perhaps half-way through killing it, is used no more if it is dead."""
        if self.now and not (self.now.alive() and self.now.serves()):
            self.now.stop()
            self.now.wait_gone()
            self.now = None

    def _never_used(self, run_dir):
        """An engine started from outside serves until it has ended, and is not restarted."""
        return not (Path(run_dir) / "server.exit").exists()

    def end(self):
        if self.now and not settings.KEEP:
            self.now.stop()
        self.now = None
