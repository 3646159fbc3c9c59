"""Every case of the engine's length rules, with prompts of an exact number of tokens."""
import json

from . import prompts, settings, wire

N = settings.MAX_MODEL_LEN
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def text_of(engine, tokens, chat=False):
    """A text that the engine counts as `tokens` tokens, asked of the engine itself."""
    def count(words):
        text = "the" + " the" * (words - 1)
        what = {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
        a = wire.ask(engine.url, "/tokenize", {"model": settings.MODEL} | what)
        return a.json()["count"], text
    base, _ = count(1)
    got, text = count(tokens - base + 1)
    assert got == tokens, (got, tokens)
    return text


def too_long(engine):
    """name: (path, body) of what the engine itself refuses as too long."""
    done = prompts.completion
    cases = {
        f"ids {N}, 1 out": done(N, 1),
        f"ids {N}, no max_tokens": {"model": "tiny", "prompt": prompts.ids(N)},
        f"ids {N + 1}, 1 out": done(N + 1, 1),
        f"ids {4 * N}, 1 out": done(4 * N, 1),
        f"ids {N}, stream": done(N, 1, stream=True),
        f"text {N}, 1 out": done(text_of(engine, N), 1),
        f"text {N}, no max_tokens": {"model": "tiny", "prompt": text_of(engine, N)},
        f"text {N + 1}, 1 out": done(text_of(engine, N + 1), 1),
        f"text {4 * N}, stream": done(text_of(engine, 4 * N), 8, stream=True),
        "text of 900000 characters": done("abcdefghi " * 90_000, 1),
        "list of texts, one too long": done(["Hi", text_of(engine, N)], 1),
        "list of id lists, one too long": done([[5, 6], prompts.ids(N + 1)], 1),
    }
    found = {name: (COMPLETIONS, body) for name, body in cases.items()}
    cases = {
        f"chat {N}, 1 out": prompts.chat(text_of(engine, N, chat=True)),
        f"chat {N + 1}, 1 out": prompts.chat(text_of(engine, N + 1, chat=True)),
        f"chat {2 * N}, stream": prompts.chat(text_of(engine, 2 * N, chat=True), 8, stream=True),
    }
    return found | {name: (CHAT, body) for name, body in cases.items()}


def passing(engine):
    """name: (path, body) of what the engine accepts, or refuses for another reason."""
    done = prompts.completion
    cases = {
        f"ids {N - 1}, 1 out": done(N - 1, 1),
        f"ids {N - 7}, 8 out (cut to 7)": done(N - 7, 8),
        f"text {N - 1}, 1 out": done(text_of(engine, N - 1), 1),
        f"text {N - 7}, 8 out (cut to 7)": done(text_of(engine, N - 7), 8),
        "truncated to 8": done(text_of(engine, N + 500), 1, truncate_prompt_tokens=8),
        "truncated to the most": done(text_of(engine, N + 500), 1, truncate_prompt_tokens=-1),
        "two texts of 1500, together over": done([text_of(engine, 1500)] * 2, 1),
        f"max_tokens over {N}": done("Hi there", 5000),
        "max_tokens 0": done("Hi there", 0),
        "max_tokens -1": done("Hi there", -1),
        "n 0": done("Hi there", 1, n=0),
        "n 16385": done("Hi there", 1, n=16385),
        "empty ids": done([], 1),
        "empty text": done("", 1),
        "id out of vocabulary": done([5, 9_999_999], 1),
        "unknown model": done("Hi there", 1) | {"model": "nope"},
        "unknown field": done("Hi there", 1, no_such_field=3),
        "repeated key": b'{"model":"tiny","prompt":"zzz","prompt":"Hi there","max_tokens":1,'
                        b'"temperature":0}',
    }
    found = {name: (COMPLETIONS, body) for name, body in cases.items()}
    cases = {
        f"chat {N - 1}, 1 out": prompts.chat(text_of(engine, N - 1, chat=True)),
        "chat, truncated": prompts.chat(text_of(engine, N + 500, chat=True),
                                        truncate_prompt_tokens=12),
        "chat, max_tokens 0": prompts.chat("Hi there", 0),
        "chat, n 0": prompts.chat("Hi there", n=0),
        "chat without messages": {"model": "tiny", "max_tokens": 1},
    }
    return found | {name: (CHAT, body) for name, body in cases.items()}


def comparable(a):
    """The answer without what differs from one asking to the next."""
    try:
        body = json.loads(a.body)
    except ValueError:
        return a.status, a.body
    for key in ("id", "created"):
        body.pop(key, None)
    (body.get("usage") or {}).pop("prompt_tokens_details", None)
    return a.status, body
