"""Many clients at once, each on a connection of its own, and the table of what became of them.

A client that is refused with a Retry-After comes back exactly when it was told to.
"""
import statistics
import threading
import time

from . import prom, prompts, pulse, wire


class One:
    """One client's story; times are seconds since the crowd's start."""

    def __init__(self, number, stream):
        self.number, self.stream = number, stream
        self.tries = []                 # (asked at, answer)
        self.done_at = None

    @property
    def last(self):
        return self.tries[-1][1]

    @property
    def refusals(self):
        return [(t, a) for t, a in self.tries if a.status == 429]


class Crowd:
    def __init__(self, base, engine, size=40, prompt=300, output=400, kind="mixed",
                 headers=None, come_back=False, books=None, usual=None):
        self.base, self.engine, self.books, self.usual = base, engine, books, usual
        self.output, self.come_back, self.headers = output, come_back, headers or {}
        self.clients = [One(i, kind == "stream" or (kind == "mixed" and i % 2 == 0))
                        for i in range(size)]
        self.bodies = [prompts.completion(prompt, output, stream=c.stream) for c in self.clients]
        self.samples = []               # (t, running, waiting, kv usage, preemptions, our queue)
        self.generated = []             # (t, tokens generated so far)
        self.watching = threading.Event()

    def now(self):
        return time.monotonic() - self.start

    def _client(self, c, gate):
        gate.wait()
        while True:
            asked = self.now()
            a = wire.ask(self.base, "/v1/completions", self.bodies[c.number],
                         {"x-request-id": f"crowd-{c.number}-{len(c.tries)}"} | self.headers)
            c.tries.append((asked, a))
            if a.status != 429 or not self.come_back or a.told is None:
                break
            time.sleep(max(0, asked + (a.t_end - self.start - asked) + a.told - self.now()))
        c.done_at = self.now()

    def _watch(self):
        while not self.watching.wait(0.25):
            try:
                page = prom.scrape(self.engine)
                ours = prom.scrape(self.books).total("kvgate_queue_depth") if self.books else 0
            except OSError:
                continue
            self.samples.append((self.now(), page.total("vllm:num_requests_running"),
                                 page.total("vllm:num_requests_waiting"),
                                 page.total("vllm:kv_cache_usage_perc"),
                                 page.total("vllm:num_preemptions_total"), ours))
            self.generated.append((self.now(), page.total("vllm:generation_tokens_total")))

    def run(self):
        before = prom.scrape(self.engine)
        gate = threading.Barrier(len(self.clients) + 1)
        threads = [threading.Thread(target=self._client, args=(c, gate), daemon=True)
                   for c in self.clients]
        for t in threads:
            t.start()
        self.start = time.monotonic()
        gate.wait()
        self.start = time.monotonic()
        watcher = threading.Thread(target=self._watch, daemon=True)
        watcher.start()
        for t in threads:
            t.join(1800)
        self.still = pulse.stood_still(self.start, time.monotonic())
        self.seconds = self.now() - self.still
        self.watching.set()
        watcher.join()
        after = prom.scrape(self.engine)
        self.moved = lambda name, **labels: after.total(name, **labels) - before.total(name, **labels)
        self.preemptions = self.moved("vllm:num_preemptions_total")
        return self

    def made(self, t):
        """Tokens that the engine had generated at `t` seconds, between two samples as if evenly."""
        before, after = self.generated[0], self.generated[-1]
        for sample in self.generated:
            if sample[0] > t:
                after = sample
                break
            before = sample
        share = (t - before[0]) / (after[0] - before[0]) if after[0] > before[0] else 0
        return before[1] + min(max(share, 0), 1) * (after[1] - before[1])

    def pace(self, t, span=10):
        """The engine's tokens per second in the `span` seconds before `t`; at first that of before."""
        return self.usual if t < span else (self.made(t) - self.made(t - span)) / span

    @property
    def most_waiting(self):
        return max((s[2] for s in self.samples), default=0)

    def statuses(self):
        seen = {}
        for c in self.clients:
            key = f"{c.last.status} {c.last.ended}"
            seen[key] = seen.get(key, 0) + 1
        return seen

    def row(self, name):
        first = [a.t_first - a.t_sent for c in self.clients if c.stream
                 for a in [c.last] if a.status == 200 and a.t_first]
        served = sorted(c.done_at for c in self.clients if c.last.status == 200)
        return {
            "run": name, "clients": len(self.clients), "200": len(served),
            "429": sum(len(c.refusals) for c in self.clients),
            "preemptions": int(self.preemptions), "most waiting": int(self.most_waiting),
            "most running": int(max((s[1] for s in self.samples), default=0)),
            "kv max": f"{max((s[3] for s in self.samples), default=0):.2f}",
            "first token p50": f"{statistics.median(first):.1f}" if first else "-",
            "done p50": f"{statistics.median(served):.1f}" if served else "-",
            "all done": f"{self.seconds:.1f}", "stood still": f"{self.still:.1f}",
            "tokens/s": f"{self.moved('vllm:generation_tokens_total') / self.seconds:.1f}",
        }


def table(rows):
    """Rows of equal keys as text columns."""
    keys = list(rows[0])
    cells = [keys] + [[str(r.get(k, "")) for k in keys] for r in rows]
    wide = [max(len(r[i]) for r in cells) for i in range(len(keys))]
    return "\n".join("  ".join(c.rjust(w) for c, w in zip(r, wide)) for r in cells)
