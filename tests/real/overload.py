"""A real engine under more than it can serve, with and without the gateway: prints a table.

    KVGATE_REAL_DIR/client/bin/python tests/real/overload.py ENGINE_URL [--load 1.75] [--seconds 300]

Requests arrive at random (exponential gaps) at `--load` times the rate at which the bare engine serves a
backlog of them, with prompts of 50–500 and answers of 50–350 tokens, every second one as a stream.  A client
gives up `--patience` seconds after it asked: what the engine generated for it until then is abandoned.  One that
is told to come back later does not.  Both runs get the same requests at the same times.
"""
import argparse
import random
import threading
import time

from kit import prom, prompts, settings, wire
from kit.crowd import table
from kit.gateway import Gateway


def shapes(count, seed):
    """Prompt and output tokens of each request."""
    dice = random.Random(seed)
    return [(dice.randint(50, 500), dice.randint(50, 350)) for _ in range(count)]


def capacity(url, shape):
    """Requests per second of the bare engine, all asked at once."""
    calls = [wire.Call(url, "/v1/completions", prompts.completion(p, o)) for p, o in shape]
    began = time.monotonic()
    assert all(call.wait().status == 200 for call in calls)
    return len(shape) / (time.monotonic() - began)


class Client(threading.Thread):
    def __init__(self, url, number, shape, patience, headers):
        super().__init__(daemon=True)
        body = prompts.completion(*shape, stream=number % 2 == 0)
        self.patience, self.output = patience, shape[1]
        self.asked = time.monotonic()
        self.call = wire.Call(url, "/v1/completions", body, headers)
        self.fate = None
        self.start()

    def run(self):
        self.call.join(self.patience)
        if self.call.answer is None:
            self.fate = "gave up"
            self.call.leave()
            self.call.join(30)
        else:
            status = self.call.answer.status
            self.fate = {200: "served", 429: "told to come back"}.get(status, str(status))


def run(url, engine, rate, shape, args, headers=None):
    """One course; what became of its clients."""
    before, dice, clients = prom.scrape(engine), random.Random(args.seed), []
    began = next_at = time.monotonic()
    for number, each in enumerate(shape):
        next_at += dice.expovariate(rate)
        if next_at - began > args.seconds:
            break
        time.sleep(max(0, next_at - time.monotonic()))
        clients.append(Client(url, number, each, args.patience, headers))
    for client in clients:
        client.join(args.patience + 60)
    seconds, after = time.monotonic() - began, prom.scrape(engine)
    moved = lambda name: after.total(name) - before.total(name)
    fates = [client.fate for client in clients]
    served = sum(client.output for client in clients if client.fate == "served")
    made = moved("vllm:generation_tokens_total")
    return {"asked": len(clients), "served": fates.count("served"), "gave up": fates.count("gave up"),
            "told to come back": fates.count("told to come back"),
            "other": sum(f not in ("served", "gave up", "told to come back") for f in fates),
            "tokens served": served, "per second": f"{served / seconds:.1f}",
            "abandoned": f"{max(0, made - served):.0f} ({100 * max(0, made - served) / max(made, 1):.0f} %)",
            "preemptions": int(moved("vllm:num_preemptions_total"))}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("engine")
    parser.add_argument("--load", type=float, default=1.75)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--patience", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rate = capacity(args.engine, shapes(40, args.seed + 1))
    shape = shapes(int(3 * args.load * rate * args.seconds) + 10, args.seed)
    print(f"the bare engine serves {rate:.3f} requests/s of a backlog; they come at {args.load} times that for "
          f"{args.seconds:.0f} s; each gives up after {args.patience:.0f} s", flush=True)
    rows = [{"run": "bare"} | run(args.engine, args.engine, args.load * rate, shape, args)]
    print(table(rows), flush=True)
    with Gateway(args.engine, "overload") as gate:
        # What its clients say: an answer is worth nothing after their patience; the work itself takes up to a
        # third of it.
        headers = settings.patience(args.patience * 2 / 3)
        for _ in range(2):
            wire.ask(gate.url, "/v1/completions", prompts.completion(50, 100, stream=True))
        rows.append({"run": "kvgate"} | run(gate.url, args.engine, args.load * rate, shape, args, headers))
    print(table(rows), flush=True)


if __name__ == "__main__":
    main()
