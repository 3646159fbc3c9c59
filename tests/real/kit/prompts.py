"""Requests of an exact size, and no two with a common prefix."""
import itertools
import random

from . import settings, wire

_made = itertools.count(1)
_random = random.Random(20240501)
LAST_ID = 4000                     # below the tokenizer's special tokens


def ids(tokens):
    """Token ids that no earlier prompt began with (so that no prefix cache helps)."""
    serial = next(_made)
    start = [1 + serial % 3900, 1 + (serial // 3900) % 3900]
    return (start + [_random.randrange(1, LAST_ID) for _ in range(tokens)])[:tokens]


def completion(prompt, output, stream=False, **more):
    """A completion of `prompt` tokens (or of the given prompt) with exactly `output` tokens."""
    body = {"model": settings.MODEL, "temperature": 0, "max_tokens": output, "ignore_eos": True,
            "prompt": ids(prompt) if isinstance(prompt, int) else prompt}
    if stream:
        body["stream"] = True
    return body | more


def fill(base):
    """Three streams that fill the pool: they have room for all that they ask for (25 of 79 blocks each), and
    while they run a fourth prompt of this size has none, whatever its output."""
    calls = [wire.Call(base, "/v1/completions", completion(FILL, 200, stream=True),
                       settings.patience(600)) for _ in range(3)]
    wire.wait_for(lambda: all(c.got for c in calls), 60, "the pool was not filled")
    return calls


FILL = 600


def chat(text, output=1, stream=False, **more):
    body = {"model": settings.MODEL, "temperature": 0, "max_tokens": output, "ignore_eos": True,
            "messages": [{"role": "user", "content": text}]}
    if stream:
        body["stream"] = True
    return body | more
