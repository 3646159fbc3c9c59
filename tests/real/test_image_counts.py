"""Chats with images: `kvgate count` says what the engine's own usage says."""
import base64
import json
import os
import subprocess
import sys
import time

import pytest

from kit import settings, wire
from kit.engine import Engine

sys.path.insert(0, str(settings.HERE / "images"))

from models import MODELS  # noqa: E402

PORT = settings.ENGINE_PORT + 1

# Four engines to load take some eight minutes: `test_images.py` compares the numbers in every run.
pytestmark = pytest.mark.skipif(not settings.FULL, reason="KVGATE_REAL_FULL=1 loads four models that see")

# Writes a model's folder and the images, with the libraries of vLLM's environment.
MAKE = """
import base64, json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import files, models
models.write(models.MODELS[sys.argv[2]], Path(sys.argv[3]))
every = dict(files.every())
for size, kind in [((640, 480), "JPEG"), ((1500, 1100), "PNG"), ((400, 30), "WEBP"), ((33, 700), "PNG")]:
    every[f"{kind} {size[0]}x{size[1]}"] = files.saved(size, kind)
json.dump({name: base64.b64encode(data).decode() for name, data in every.items()}, sys.stdout)
"""


def conversations(files):
    def text(text):
        return {"type": "text", "text": text}

    def image(name):
        url = f"data:image/x;base64,{files[name]}"
        return {"type": "image_url", "image_url": {"url": url}}

    def bare(name):
        return {"image_url": image(name)["image_url"]["url"]}

    yield [text("no image at all")]
    yield [text("what is it?"), image("JPEG 640x480")]
    yield [image("PNG 1500x1100"), text("and this?")]
    yield [image("jpeg turned 6"), bare("gif screen under its frame"), text("two of them")]
    yield [text("one "), image("WEBP 400x30"), text("two"), image("PNG 33x700"), text("three"),
           image("png turned by xmp"), text("end")]
    yield [image("webp turned 8")]


@pytest.mark.parametrize("model", ["qwen2.5-vl", "gemma-3", "llava-1.6", "pixtral-12b"])
def test_a_chat_with_images_is_counted_as_the_engine_counts(model, engines, tmp_path, show):
    engines.end()
    folder = tmp_path / model
    made = subprocess.run([settings.VLLM / "bin/python", "-c", MAKE, settings.HERE / "images", model, folder],
                          capture_output=True, text=True)
    assert made.returncode == 0, made.stderr[-3000:]
    run_dir = settings.LOGS / f"engine-{model}-{time.strftime('%H%M%S')}"
    run_dir.mkdir(parents=True)
    subprocess.run([settings.HERE / "engine/serve.sh", settings.VLLM, folder, str(PORT), "--",
                    "--load-format", "dummy"], check=True,
                   env=os.environ | {"RUN_DIR": str(run_dir), "MAX_MODEL_LEN": "8192", "NUM_BLOCKS": "400"})
    engine = Engine(run_dir, PORT, model)
    try:
        rows = []
        for content in conversations(json.loads(made.stdout)):
            body = {"model": "tiny", "max_tokens": 1, "messages": [
                {"role": "user", "content": content}, {"role": "assistant", "content": "x"},
                {"role": "user", "content": "again"}]}
            answer = wire.ask(engine.url, "/v1/chat/completions", body)
            assert answer.status == 200, answer
            ours = subprocess.run([settings.BIN, "count", "--tokenizer", folder], input=json.dumps(body) + "\n",
                                  capture_output=True, text=True, check=True)
            rows.append((answer.json()["usage"]["prompt_tokens"], json.loads(ours.stdout)))
    finally:
        engine.stop()
    assert all(ours == {"prompt_tokens": engine_says} for engine_says, ours in rows), rows
    show(f"Chats with images, {MODELS[model]['family']}",
         f"{len(rows)} of {len(rows)} as the engine counts: {', '.join(str(n) for n, _ in rows)} tokens")
