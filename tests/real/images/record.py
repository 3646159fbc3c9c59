#!/usr/bin/env python3
"""Records what images cost, by transformers' and vLLM's own code, one JSON object a line.

    .real/vllm/bin/python tests/real/images/record.py >tests/data/tokens/images.jsonl
    .real/vllm/bin/python tests/real/images/record.py --again tests/data/tokens/images.jsonl

`kind` `model`: a model's three configuration files, the most tokens of any image (as vLLM
sees it), and `sizes`: width, height, tokens in place of the marker (null where it is refused).
Each number is vLLM's rule and transformers' (`_get_num_multimodal_tokens`), which must agree;
for `real` sizes an image is really processed by both as well.
`kind` `prompt`: the ids of a text, and how many there are once vLLM has put the images in (null
where it refuses).
`kind` `file`: an image file and the size that vLLM's loader sees (null where it refuses it).
`--again FILE` takes the image files from an earlier record, and makes all else anew: CI compares.
"""
import argparse
import base64
import json
import os
import random
import sys
import tempfile
import warnings
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
sys.path.insert(0, str(Path(__file__).parent))
warnings.filterwarnings("ignore")

import files  # noqa: E402
import numpy as np  # noqa: E402
from models import MODELS, write  # noqa: E402
from PIL import Image  # noqa: E402

# Edges of the families' rules, and sizes of every day.
SIZES = [(1, 1), (1, 2), (2, 1), (1, 200), (200, 1), (1, 201), (201, 1), (2, 401), (13, 2600), (14, 14),
         (15, 14), (28, 28), (28, 42), (42, 28), (32, 32), (48, 32), (27, 29), (55, 57), (56, 56), (70, 14),
         (98, 28), (99, 500), (100, 100), (224, 224), (256, 256), (336, 336), (336, 672), (337, 336),
         (384, 384), (512, 512), (640, 480), (480, 640), (672, 672), (673, 672), (800, 600), (896, 896),
         (1000, 300), (1023, 1024), (1024, 1024), (1024, 1025), (1025, 16), (1008, 336), (336, 1008),
         (1280, 720), (1540, 1540), (1541, 1540), (1540, 28), (1920, 1080), (1080, 1920), (2048, 2048),
         (3584, 3584), (3585, 3584), (4000, 3000), (3000, 4000), (4032, 3024), (4096, 4096), (6000, 4000),
         (1, 5000), (5000, 1), (25, 5000), (5000, 25), (10000, 50), (12000, 12000), (13377, 13377),
         (16000, 80), (178956970, 1), (65500, 2700), (2700, 65500), (7, 1399), (50, 9999)]


def sizes():
    random.seed(7)
    more = [(random.randint(1, 5000), random.randint(1, 5000)) for _ in range(100)]
    more += [(int(2 ** random.uniform(0, 14)), int(2 ** random.uniform(0, 13))) for _ in range(80)]
    more += [(28 * random.randint(1, 150) + random.randint(-1, 1), 16 * random.randint(1, 250)) for _ in range(40)]
    return list(dict.fromkeys(SIZES + more))


class Model:
    """A model as transformers and as vLLM see it."""

    def __init__(self, name, folder):
        import transformers
        self.spec = MODELS[name]
        self.files = write(self.spec, folder)
        self.hf = transformers.AutoProcessor.from_pretrained(folder)
        self.vllm = None
        if self.spec["family"] != "mllama":     # vLLM dropped it after 0.10.2
            from vllm.config import ModelConfig
            from vllm.multimodal import MULTIMODAL_REGISTRY
            self.vllm = MULTIMODAL_REGISTRY.create_processor(ModelConfig(
                model=str(folder), tokenizer=str(folder), dtype="float32", max_model_len=4096))

    def text(self, images=1):
        before, after = self.spec.get("around", ("", ""))
        return (before + self.spec["marker"] + after) * images

    def by_transformers(self, width, height):
        """Tokens in place of the marker, by the processor's own count."""
        if self.spec["family"] == "mllama":
            return 1
        if self.spec["family"] in ("pixtral", "mistral3"):
            # Its own count takes an image one or three pixels high for one with its channels first.
            from transformers.models.pixtral.image_processing_pixtral import get_resize_output_image_size
            edge, patch = self.hf.image_processor.size["longest_edge"], self.hf.patch_size
            patch *= self.hf.spatial_merge_size
            high, wide = get_resize_output_image_size(
                np.broadcast_to(np.uint8(0), (height, width, 3)), size=(edge, edge),
                patch_size=(patch, patch), input_data_format="channels_last")
            return high // patch * (wide // patch + 1)
        tokens = self.hf._get_num_multimodal_tokens(image_sizes=[(height, width)]).num_image_tokens[0]
        return int(tokens) + (4 if self.spec["family"] == "gemma3" else 0)

    def by_vllm(self, width, height):
        """The same by vLLM's rule, where it is one that needs no image."""
        info, family = self.vllm.info, self.spec["family"]
        size = {"image_width": width, "image_height": height}
        if family == "qwen_vl":
            return int(info.get_num_image_tokens(**size, image_processor=info.get_image_processor(), mm_kwargs={}))
        if family == "gemma3":
            return len(info.get_image_repl(**size, processor=info.get_hf_processor(), mm_kwargs={}).full)
        if family in ("pixtral", "mistral3"):
            columns, rows = info.get_vision_encoder_info().get_patch_grid_size(**size)
            if not columns * rows:
                raise ValueError("a side shrinks to nothing")
            return rows * (columns + 1)
        return int(info.get_num_image_tokens(**size))

    def tokens(self, width, height):
        """Both, which must agree; null where both refuse."""
        answers = []
        for ask in (self.by_transformers, self.by_vllm if self.vllm else self.by_transformers):
            try:
                answers.append(ask(width, height))
            except (ValueError, ZeroDivisionError):
                answers.append(None)
        # transformers' count does not notice a side that shrinks to nothing; its processing does.
        if answers[1] is None and self.spec["family"] in ("pixtral", "mistral3"):
            return None
        assert answers[0] == answers[1], (self.spec["family"], width, height, answers)
        return answers[0]

    def really(self, width, height):
        """An image of this size, processed by transformers: tokens in place of the marker."""
        text = self.text()
        got = self.hf(images=[Image.new("RGB", (width, height))], text=[text])["input_ids"][0]
        plain = self.hf.tokenizer(text)["input_ids"]
        extra = 1 if self.spec["family"] == "mllama" else 0     # it adds the BOS itself
        return len(got) - extra - len(plain) + 1

    def prompt(self, text, images):
        """The ids of a text, and what vLLM's processor makes of them."""
        from vllm.multimodal.processing.context import TimingContext
        from vllm.multimodal.processing.inputs import ProcessorInputs
        ids = self.hf.tokenizer(text)["input_ids"]
        items = self.vllm.info.parse_mm_data({"image": [Image.new("RGB", size) for size in images]})
        inputs = ProcessorInputs(prompt=ids, mm_data_items=items)
        try:
            return ids, len(self.vllm.apply(inputs, TimingContext(enabled=False))["prompt_token_ids"])
        except RuntimeError as error:
            assert "prompt placeholders" in str(error), error
            return ids, None

    def most(self):
        if self.vllm is None:
            return 1
        size = self.vllm.info.get_image_size_with_most_features()
        return self.tokens(size.width, size.height)


def prompts(name, model):
    one = model.text()
    texts = {"gemma-3": [
        (f"user\n{one}what", 1), (f"user\n{one}\nwhat", 1), (f"\n\n{one}\n\n", 1), (f"{one}{one}", 2),
        (f"a\n{one}\n{one}\n\n\nb\n", 2), (f"\n\n\n{one}\n\n\n\n", 1), (f"{one}\n{one}{one}\n\n{one}", 4),
        (f"no image\n\nhere {one}", 1), (f"{one} {one} one too many", 1), (f"\n{one}\n{one}\n{one}\n", 3),
    ]}.get(name, [(f"what is {one}?", 1), (f"{one}{one}\n{one}", 3), (f"{one} and {one}, one more", 1)])
    shapes = [(64, 48), (500, 333), (37, 1200), (48, 64)]
    for text, count in texts:
        images = shapes[:count]
        ids, total = model.prompt(text, images)
        # A line break behind an image makes three with its two, in which vLLM does not find its
        # two again: it refuses the request.
        assert total is not None or name == "gemma-3", (name, text)
        yield {"kind": "prompt", "model": name, "text": text, "ids": ids, "images": images, "total": total}


def image_files(again):
    """Names and bytes: of an earlier record, or made here."""
    if again is None:
        yield from files.every()
        return
    for line in again.read_text().splitlines():
        row = json.loads(line)
        if row["kind"] == "file":
            yield row["name"], base64.b64decode(row["base64"])


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--again", type=Path, metavar="FILE")
    args = args.parse_args()
    out = sys.stdout
    every = sizes()
    assert len(every) >= 250
    with tempfile.TemporaryDirectory() as scratch:
        for name in MODELS:
            model = Model(name, Path(scratch) / name)
            vocabulary = model.hf.tokenizer.get_vocab()
            marks = [model.spec["marker"], "\n", "\n\n", "\n\n\n", "\n\n\n\n"]
            config, preprocessor, processor = model.files
            row = {"kind": "model", "model": name, "family": model.spec["family"], "config": config,
                   "preprocessor": preprocessor, "processor": processor,
                   "vocabulary": {mark: vocabulary[mark] for mark in marks}, "most": model.most(),
                   "sizes": [[w, h, model.tokens(w, h)] for w, h in every]}
            for width, height, tokens in row["sizes"]:
                small = width * height < 700_000 and max(width, height) < 3000
                if small and (width * 7 + height) % 5 == 0 and tokens is not None:
                    got = model.really(width, height)
                    assert got == tokens, (name, width, height, got, tokens)
            print(json.dumps(row), file=out, flush=True)
            if model.vllm is not None:
                for prompt in prompts(name, model):
                    print(json.dumps(prompt), file=out)
    from vllm.multimodal.media.image import ImageMediaIO
    reader = ImageMediaIO()
    for name, data in image_files(args.again):
        text = base64.b64encode(data).decode()
        try:
            size = list(reader.load_base64("image", text).media.size)
        except Exception:
            size = None
        print(json.dumps({"kind": "file", "name": name, "base64": text, "size": size}), file=out)


if __name__ == "__main__":
    main()
