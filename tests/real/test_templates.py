"""Chat templates, with no engine: every template that the packages hold, rendered by
`kvgate count --render` and by Python's transformers, for every conversation."""
import json
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from kit import conversations, settings

NOW = "2026-03-07T09:05:03"         # as reference.py has it


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """What Python makes of them, a row for each template."""
    given = tmp_path_factory.mktemp("templates") / "conversations.json"
    given.write_text(json.dumps([context for _, context in conversations.ALL]), encoding="utf-8")
    done = subprocess.run(
        [settings.CHAT / "bin/python", settings.HERE / "kit/reference.py", settings.TEMPLATES, given],
        capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def ours(name):
    lines = "".join(json.dumps(context) + "\n" for _, context in conversations.ALL)
    done = subprocess.run(
        [settings.BIN, "count", "--render", "--now", NOW, "--tokenizer", settings.TOKENS / "tiny-llama3",
         "--chat-template", settings.TEMPLATES / f"{name}.jinja"],
        input=lines, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.split("\n")[:-1]]  # texts hold other line ends


def verdict(python, here):
    if python == here:
        return "equal" if python is not None else "both refuse"
    if here is None:
        return "only we refuse"
    return "only Python refuses" if python is None else "differ"


def test_templates_render_as_in_python(reference, show):
    assert len(conversations.ALL) >= 110
    assert len(reference) >= 142, "templates are missing: setup.sh fetches them"
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda row: ours(row["name"]), reference))
    seen, wrong = Counter(), []
    for row, got in zip(reference, answers, strict=True):
        for (name, _), python, here in zip(conversations.ALL, row["rendered"], got, strict=True):
            what = verdict(python, here.get("text"))
            seen[what] += 1
            if what not in ("equal", "both refuse"):
                wrong.append(f"{row['name']}, {name}: {what}: {here.get('error', '')}")
    show("Chat templates against Python", f"{len(reference)} templates x {len(conversations.ALL)} conversations: "
           + ", ".join(f"{count} {what}" for what, count in seen.most_common()))
    assert not wrong, f"{len(wrong)} of {sum(seen.values())}\n" + "\n".join(wrong[:40])
    assert seen["equal"] > 100 * len(reference)
