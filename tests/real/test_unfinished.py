"""SIGKILL to the gateway under load: the journal knows what was in flight.

At the next start its list must hold every request whose bytes had reached the
engine and which had not ended, and beyond these only such as ended (or came) within
the last 50 ms.
"""
import itertools
import random
import threading
import time

from kit import prompts, settings, wire
from kit.crowd import table
from kit.fake_engine import FakeEngine
from kit.gateway import Gateway, client_ids, free_port, named

ROUNDS, CLIENTS, GRACE = 20, 8, 0.050


class Client(threading.Thread):
    """Asks again and again until the gateway is gone; keeps the times."""

    def __init__(self, base, name, made):
        super().__init__(daemon=True)
        self.base, self.name_, self.made = base, name, made
        self.story = {}                 # id: [asked at, answered at or None]
        self.start()

    def run(self):
        chance = random.Random(self.name_)
        while True:
            rid = f"{self.name_}n{next(self.made)}"
            body = prompts.completion(5, chance.choice([1, 2, 5, 20]),
                                      stream=chance.random() < 0.7)
            self.story[rid] = [time.monotonic(), None]
            a = wire.ask(self.base, "/v1/completions", body, {"x-request-id": rid}, timeout=20)
            if (a.status, a.ended) != (200, "complete"):
                return
            self.story[rid][1] = a.t_end
            time.sleep(chance.random() * 0.03)


def load_and_kill(gate, number, chance, made):
    """Every request's story, and the moment of the kill."""
    clients = [Client(gate.url, f"r{number}c{i}", made) for i in range(CLIENTS)]
    time.sleep(chance.uniform(0.3, 1.2))
    at = time.monotonic()
    gate.kill()
    dead = time.monotonic()
    for c in clients:
        c.join(30)
    return {rid: times for c in clients for rid, times in c.story.items()}, at, dead


def judge(listed, stories, reached, at, dead):
    """(ids that miss, ids that should not be there, ids that were due)"""
    due = {rid for rid in reached if stories[rid][1] is None}
    # Ended or came within the last moment: may be there or not.
    late = {rid for rid, (asked, answered) in stories.items()
            if (answered is None and asked > at - GRACE)
            or (answered is not None and answered > at - GRACE)}
    return due - listed, listed - due - late, due


def test_after_a_kill_the_journal_holds_what_had_reached_the_engine(tmp_path, show):
    chance, made = random.Random(7), itertools.count()
    fake, ports = FakeEngine(gap=0.01), (free_port(), free_port())
    rows, bad = [], []
    for number in range(ROUNDS):
        gate = Gateway(fake.url, "unfinished", args=["--state-dir", tmp_path], ports=ports,
                       config=settings.Config.CAPACITY_OFF).start()
        stories, at, dead = load_and_kill(gate, number, chance, made)
        time.sleep(0.2)                 # what was still on its way to the engine has come
        reached = {rid for b in fake.books
                   if (rid := settings.client_part(b["id"])) in stories}
        gate = Gateway(fake.url, "unfinished", args=["--state-dir", tmp_path], ports=ports).start()
        listed = client_ids(named(gate.state(), settings.RECOVERED))
        gate.stop()
        assert len(set(listed)) == len(listed), "a request is listed twice"
        missing, extra, due = judge(set(listed), stories, reached, at, dead)
        rows.append({"kill": number + 1, "requests": len(stories), "in flight": len(due),
                     "listed": len(listed), "missing": len(missing), "too many": len(extra)})
        bad += [(number, "missing", m, stories[m]) for m in missing]
        bad += [(number, "too many", e, stories.get(e), at) for e in extra]
    fake.close()
    show("The gateway killed under load: the journal at the next start", table(rows))
    assert not bad
    assert sum(r["in flight"] for r in rows) >= ROUNDS * CLIENTS / 4, "too little was in flight"
