#!/usr/bin/env python3
"""Make a llama with random weights that a real vLLM loads with no network.

    python make_model.py TOKENIZER_DIR OUT_DIR [--layers 32] [--hidden 128] [--seed 0]

TOKENIZER_DIR holds tokenizer.json, tokenizer_config.json and chat_template.jinja;
they are copied as they are, for golden token counts hold for just those files.
The width decides nothing here; the number of layers makes a step slow enough to
be watched.  Needs torch and transformers, which come with vLLM.
"""
import argparse
import os
import shutil
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")


def main():
    ap = argparse.ArgumentParser(description=__doc__,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("tokenizer", type=Path)
    ap.add_argument("out", type=Path)
    ap.add_argument("--layers", type=int, default=32)
    ap.add_argument("--hidden", type=int, default=128)
    ap.add_argument("--heads", type=int, default=4)
    ap.add_argument("--kv-heads", type=int, default=2)
    ap.add_argument("--max-positions", type=int, default=8192)
    ap.add_argument("--seed", type=int, default=0)
    a = ap.parse_args()

    import torch
    import transformers
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(a.tokenizer / "tokenizer.json"))
    special = dict(bos_token_id=tokenizer.token_to_id("<|begin_of_text|>"),
                   eos_token_id=tokenizer.token_to_id("<|eot_id|>"),
                   pad_token_id=tokenizer.token_to_id("<|end_of_text|>"))
    torch.manual_seed(a.seed)
    config = transformers.LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=a.hidden,
        intermediate_size=a.hidden * 2, num_hidden_layers=a.layers,
        num_attention_heads=a.heads, num_key_value_heads=a.kv_heads,
        head_dim=a.hidden // a.heads, max_position_embeddings=a.max_positions,
        rms_norm_eps=1e-5, tie_word_embeddings=False, **special)
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    for name, value in special.items():
        setattr(model.generation_config, name, value)
    a.out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(a.out, safe_serialization=True)
    for file in a.tokenizer.iterdir():
        shutil.copyfile(file, a.out / file.name)


if __name__ == "__main__":
    main()
