"""Small models that see: configurations, processors and tokenizers as published ones have
them, written from the defaults of transformers' classes, without weights.

`MODELS` says for each one what its three configuration files hold; `write` makes a
folder that transformers and vLLM load.
"""
import json
import string
from pathlib import Path

# Heads as wide as vLLM's attention on the CPU takes them.
TEXT = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 512, "max_position_embeddings": 65536}
CLIP = {"model_type": "clip_vision_model", "image_size": 336, "patch_size": 14, "hidden_size": 64,
        "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "projection_dim": 64,
        "vocab_size": 512}
SIGLIP = {"model_type": "siglip_vision_model", "image_size": 384, "patch_size": 14, "hidden_size": 64,
          "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
PIXTRAL = {"model_type": "pixtral", "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2,
           "num_attention_heads": 2, "head_dim": 32}
MEAN = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}


# Chat templates that show images as the published ones do.
LISTS = """{% for message in messages %}{{ message['role'] }}
{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}\
{% if part['type'] == 'image' %}IMAGE{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}\
{% endfor %}{% endif %}
{% endfor %}{% if add_generation_prompt %}assistant
{% endif %}"""
TEXTS = """{{ bos_token }}{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}
{% endfor %}ASSISTANT:"""


def qwen(model_type, architecture, text_type, processor, image, vision=None):
    return {
        "family": "qwen_vl", "marker": "<|image_pad|>",
        "around": ("<|vision_start|>", "<|vision_end|>"),
        "tokens": ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"],
        "config": {
            "architectures": [architecture], "model_type": model_type,
            "text_config": TEXT | {"model_type": text_type, "rope_parameters": {
                "rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 6, 6]}},
            "vision_config": {"depth": 2, "hidden_size": 64, "num_heads": 2, "spatial_merge_size": 2,
                              "temporal_patch_size": 2} | (vision or {}),
        },
        "ids": {"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>",
                "vision_start_token_id": "<|vision_start|>", "vision_end_token_id": "<|vision_end|>"},
        "preprocessor": {"processor_class": processor, "image_processor_type": "Qwen2VLImageProcessor",
                         **MEAN, **image},
        "video": "Qwen3VLVideoProcessor" if "qwen3" in model_type else "Qwen2VLVideoProcessor",
        "processor": {"processor_class": processor},
    }


def llava(vision, select="default", additional=1, crop=336, architecture="Llava", **config):
    # Where the tower has no class token, one more is counted and one taken off again.
    name = {"Llava": "llava", "LlavaNext": "llava_next"}[architecture]
    return {
        "family": name, "marker": "<image>", "tokens": ["<image>"],
        "config": {"architectures": [f"{architecture}ForConditionalGeneration"], "model_type": name,
                   "text_config": TEXT | {"model_type": "llama"}, "vision_config": vision,
                   "vision_feature_select_strategy": select, "vision_feature_layer": -2, **config},
        "ids": {"image_token_index": "<image>"},
        "preprocessor": {"processor_class": f"{architecture}Processor",
                         "image_processor_type": f"{architecture}ImageProcessor",
                         "crop_size": {"height": crop, "width": crop}, "size": {"shortest_edge": crop},
                         **MEAN, **{k: config[k] for k in ("image_grid_pinpoints",) if k in config}},
        "processor": {"processor_class": f"{architecture}Processor", "patch_size": vision["patch_size"],
                      "vision_feature_select_strategy": select, "num_additional_image_tokens": additional},
    }


def pixtral(model_type, architecture, longest, patch, merge):
    return {
        "family": "mistral3" if model_type == "mistral3" else "pixtral",
        "marker": "[IMG]", "tokens": ["[IMG]", "[IMG_BREAK]", "[IMG_END]"],
        "config": {"architectures": [architecture], "model_type": model_type,
                   "text_config": TEXT | {"model_type": "mistral"},
                   "vision_config": PIXTRAL | {"image_size": longest, "patch_size": patch},
                   "vision_feature_layer": -1, "vision_feature_select_strategy": "full",
                   **({"spatial_merge_size": merge} if merge > 1 else {})},
        "ids": {"image_token_index": "[IMG]"},
        "preprocessor": {"processor_class": "PixtralProcessor", "image_processor_type": "PixtralImageProcessor",
                         "size": {"longest_edge": longest}, "patch_size": {"height": patch, "width": patch},
                         **MEAN},
        "processor": {"processor_class": "PixtralProcessor", "patch_size": patch, "spatial_merge_size": merge},
    }


MODELS = {
    "llava-1.5": llava(CLIP),
    "llava-siglip": llava(SIGLIP, select="full", additional=0, crop=384),
    "llava-1.6": llava(CLIP, architecture="LlavaNext",
                       image_grid_pinpoints=[[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]),
    "llava-1.6-wide": llava(CLIP, architecture="LlavaNext",
                            image_grid_pinpoints=[[336 * a, 336 * b] for a in range(1, 7) for b in range(1, 7)
                                                  if a * b <= 6]),
    "qwen2-vl": qwen("qwen2_vl", "Qwen2VLForConditionalGeneration", "qwen2_vl_text", "Qwen2VLProcessor",
                     {"min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14, "merge_size": 2,
                      "temporal_patch_size": 2}, {"embed_dim": 64}),
    "qwen2-vl-default": qwen("qwen2_vl", "Qwen2VLForConditionalGeneration", "qwen2_vl_text",
                             "Qwen2VLProcessor", {}, {"embed_dim": 64}),
    "qwen2.5-vl": qwen("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl_text",
                       "Qwen2_5_VLProcessor",
                       {"size": {"shortest_edge": 3136, "longest_edge": 12845056}, "patch_size": 14,
                        "merge_size": 2, "temporal_patch_size": 2},
                       {"patch_size": 14, "out_hidden_size": 64, "intermediate_size": 64}),
    "qwen3-vl": qwen("qwen3_vl", "Qwen3VLForConditionalGeneration", "qwen3_vl_text", "Qwen3VLProcessor",
                     {"size": {"shortest_edge": 65536, "longest_edge": 16777216}, "patch_size": 16,
                      "merge_size": 2, "temporal_patch_size": 2},
                     {"patch_size": 16, "out_hidden_size": 64, "intermediate_size": 64,
                      "deepstack_visual_indexes": [0]}),
    "llama-3.2-vision": {
        "family": "mllama", "marker": "<|image|>", "tokens": ["<|image|>", "<|python_tag|>"],
        "config": {"architectures": ["MllamaForConditionalGeneration"], "model_type": "mllama",
                   "text_config": {"model_type": "mllama_text_model"},
                   "vision_config": {"model_type": "mllama_vision_model", "image_size": 560}},
        "ids": {"image_token_index": "<|image|>"},
        "preprocessor": {"processor_class": "MllamaProcessor", "image_processor_type": "MllamaImageProcessor",
                         "size": {"height": 560, "width": 560}, "max_image_tiles": 4, **MEAN},
        "processor": {"processor_class": "MllamaProcessor"},
    },
    "pixtral-12b": pixtral("llava", "LlavaForConditionalGeneration", 1024, 16, 1),
    "mistral-small-3.1": pixtral("mistral3", "Mistral3ForConditionalGeneration", 1540, 14, 2),
    "gemma-3": {
        "family": "gemma3", "marker": "<start_of_image>",
        "tokens": ["<start_of_image>", "<end_of_image>", "<image_soft_token>"],
        "config": {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
                   "text_config": TEXT | {"model_type": "gemma3_text"}, "mm_tokens_per_image": 256,
                   "vision_config": SIGLIP | {"image_size": 896}},
        "ids": {"image_token_index": "<image_soft_token>", "boi_token_index": "<start_of_image>",
                "eoi_token_index": "<end_of_image>"},
        "preprocessor": {"processor_class": "Gemma3Processor", "image_processor_type": "Gemma3ImageProcessor",
                         "size": {"height": 896, "width": 896}, **MEAN},
        "processor": {"processor_class": "Gemma3Processor", "image_seq_length": 256},
        "named": {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>",
                  "image_token": "<image_soft_token>"},
    },
}


def tokenizer(model):
    """One token a character, runs of up to four line breaks as one, and the family's own tokens."""
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.models import BPE

    characters = ["<unk>", "<s>", "</s>", *(c for c in string.printable if c not in "\t\r\x0b\x0c")]
    breaks = ["\n" * n for n in (2, 3, 4)]
    vocab = {text: at for at, text in enumerate([*characters, *breaks])}
    merges = [("\n", "\n"), ("\n\n", "\n"), ("\n\n", "\n\n")]
    made = Tokenizer(BPE(vocab, merges, unk_token="<unk>"))
    # The last one is what vLLM's parser of tool calls looks for, which the tests' engine is started with.
    own = ["<unk>", "<s>", "</s>", *model["tokens"], "<|python_tag|>"]
    made.add_special_tokens([AddedToken(t, special=True) for t in dict.fromkeys(own)])
    return made


def write(model, folder: Path):
    """A folder with the model's files; answers the three configurations."""
    folder.mkdir(parents=True)
    made = tokenizer(model)
    made.save(str(folder / "tokenizer.json"))
    config = model["config"] | {key: made.token_to_id(token) for key, token in model["ids"].items()}
    named = model.get("named", {})
    files = {
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>",
                                  "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "</s>",
                                  "extra_special_tokens": named, "clean_up_tokenization_spaces": False},
        "config.json": config, "preprocessor_config.json": model["preprocessor"],
        "processor_config.json": model["processor"],
    }
    around = model.get("around", ("", ""))
    shown = model["marker"].join(around)
    template = TEXTS if model["family"].startswith("llava") else LISTS.replace("IMAGE", shown)
    (folder / "chat_template.jinja").write_text(template)
    if "video" in model:
        files["video_preprocessor_config.json"] = {"video_processor_type": model["video"],
                                                   "processor_class": model["processor"]["processor_class"]}
    for name, values in files.items():
        (folder / name).write_text(json.dumps(values))
    return config, model["preprocessor"], model["processor"]
