"""`kvgate count`, with no engine: the golden requests of both families."""
import json
import subprocess

import pytest

from kit import golden, settings


@pytest.mark.parametrize("path", golden.PATHS)
@pytest.mark.parametrize("family", ["llama3", "qwen2"])
def test_the_count_command_counts_as_the_engine_did(family, path):
    rows = [r for r in golden.rows(family) if r["request_path"] == path]
    assert len(rows) >= 13
    bodies = "".join(json.dumps(r["request_body"], ensure_ascii=False) + "\n" for r in rows)
    done = subprocess.run(
        [settings.BIN, "count", "--tokenizer", settings.TOKENS / f"tiny-{family}",
         "--api", settings.COUNT_API[path]],
        input=bodies, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    counted = [json.loads(line) for line in done.stdout.splitlines()]
    wrong = {r["name"]: (c, r["prompt_tokens"]) for r, c in zip(rows, counted, strict=True)
             if c.get("prompt_tokens") != r["prompt_tokens"]}
    assert not wrong
