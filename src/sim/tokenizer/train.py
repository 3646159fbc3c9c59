#!/usr/bin/env python3
"""Trains the simulated engine's tokenizer: a small byte-level BPE of the Llama 3 kind.

    python train.py TEXT_FILE OUT_DIR

TEXT_FILE is any public-domain English text; the vocabulary committed here was trained on one.
Needs the `tokenizers` package (0.23). The chat template beside this file is written by hand.
"""
import json
import sys
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

# The split pattern of Llama 3.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = [
    "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
    "<|eot_id|>", "<|eom_id|>", "<|python_tag|>",
]
VOCABULARY = 2048
# The output of the simulated engine is made of these words, so each is one token.
WORDS = Path(__file__).with_name("words.txt").read_text().split()


def main():
    text, out = Path(sys.argv[1]).read_text(), Path(sys.argv[2])
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tok.decoder = decoders.ByteLevel()
    lines = text.split("\n\n") + ["".join(f" {w}" for w in WORDS)] * 200
    tok.train_from_iterator(lines, trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL), show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=[]))
    tok.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIAL])
    bos = SPECIAL[0]
    tok.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos}:1 $B:1",
            special_tokens=[(bos, tok.token_to_id(bos))]),
    ])
    for word in WORDS:
        assert len(tok.encode(f" {word}", add_special_tokens=False).ids) == 1, word
    (out / "tokenizer.json").write_text(tok.to_str(pretty=False) + "\n")
    (out / "tokenizer_config.json").write_text(json.dumps({
        "bos_token": bos, "eos_token": "<|eot_id|>", "pad_token": "<|end_of_text|>",
        "clean_up_tokenization_spaces": False, "model_max_length": 8192,
        "tokenizer_class": "PreTrainedTokenizerFast"}, indent=2) + "\n")


if __name__ == "__main__":
    main()
