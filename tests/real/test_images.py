"""What images cost: the recorded numbers, by which the gateway's rules are tested, are still those
of transformers' processors and of vLLM."""
import json
import os
import subprocess
from collections import Counter

from kit import settings

RECORD = settings.TOKENS / "images.jsonl"
SCRIPT = settings.HERE / "images" / "record.py"


def rows(text):
    return [json.loads(line) for line in text.splitlines()]


def test_the_recorded_costs_are_those_of_the_engine_and_its_processors(show):
    python = settings.VLLM / "bin/python"
    run = subprocess.run([python, SCRIPT, "--again", RECORD], capture_output=True, text=True, timeout=600,
                         env=os.environ | {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""})
    assert run.returncode == 0, run.stderr[-3000:]
    recorded, now = rows(RECORD.read_text()), rows(run.stdout)
    kinds = Counter(row["kind"] for row in recorded)
    assert kinds["model"] >= 12 and kinds["prompt"] >= 40 and kinds["file"] >= 100
    assert len(now) == len(recorded)
    for was, is_now in zip(recorded, now):
        assert was == is_now, (was["kind"], was.get("model") or was.get("name"))
    models = [row for row in now if row["kind"] == "model"]
    assert all(len(row["sizes"]) >= 200 for row in models)
    table = [f"  {row['model']:18} {row['family']:11} {len(row['sizes'])} sizes, "
             f"{min(t for *_, t in row['sizes'] if t):4} to {row['most']:5} tokens" for row in models]
    show("Image costs: transformers, vLLM and the record agree",
         "\n".join(table) + f"\n  {kinds['prompt']} prompts, {kinds['file']} files")
