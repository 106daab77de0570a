#!/usr/bin/env python3
"""Writes the tiny random checkpoints of tests/goldens: one folder per architecture, bf16 weights, below 400 KB each.

Sizes are the smallest that still exercise everything: grouped queries (a group of 7 for Qwen2), head sizes that are not
hidden / heads, biases, QK norms, sliding and full layers, three kinds of rope scaling whose original context is short
enough to matter within 100 tokens. Each folder can be served: it has a byte-level tokenizer and a chat template.
Needs: tools/requirements-goldens.txt. Deterministic: a second run writes the same bytes. Then run make_goldens.py.
"""
import json
import pathlib
import struct

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

VOCAB = 320
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]  # ids 256, 257, 258; the rest of the rows are unused ids
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

COMMON = dict(
    vocab_size=VOCAB, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
    intermediate_size=96, rms_norm_eps=1e-5, max_position_embeddings=2048, hidden_act="silu", torch_dtype="bfloat16",
    bos_token_id=None, eos_token_id=258, tie_word_embeddings=False,
)

CONFIGS = {
    # Llama 3.1's rope scaling, head and embedding apart, heads of 64.
    "llama3": dict(
        architectures=["LlamaForCausalLM"], model_type="llama", num_attention_heads=2, num_key_value_heads=1,
        head_dim=64, num_hidden_layers=2, rope_theta=500000.0,
        rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                          original_max_position_embeddings=64),
    ),
    "llama": dict(
        architectures=["LlamaForCausalLM"], model_type="llama", head_dim=32, tie_word_embeddings=True,
        rope_theta=10000.0,
    ),
    # Biases on q, k and v; seven query heads share one KV head; widths that are no multiple of 32.
    "qwen2": dict(
        architectures=["Qwen2ForCausalLM"], model_type="qwen2", hidden_size=112, num_attention_heads=7,
        num_key_value_heads=1, num_hidden_layers=2, intermediate_size=80, rope_theta=1000000.0, rms_norm_eps=1e-6,
        use_sliding_window=False, tie_word_embeddings=True,
    ),
    # YaRN by the newer spelling, so that its frequencies and its attention factor are checked against transformers.
    "qwen3": dict(
        architectures=["Qwen3ForCausalLM"], model_type="qwen3", head_dim=32, rms_norm_eps=1e-6,
        max_position_embeddings=128,
        rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=32),
    ),
    "mistral": dict(
        architectures=["MistralForCausalLM"], model_type="mistral", head_dim=32, sliding_window=24, rope_theta=10000.0,
    ),
    # Five sliding layers, then a full one; linear rope scaling on the full one; four norms a layer.
    "gemma3": dict(
        architectures=["Gemma3ForCausalLM"], model_type="gemma3_text", head_dim=16, num_hidden_layers=6,
        num_key_value_heads=1, intermediate_size=64, hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=16,
        sliding_window=32, sliding_window_pattern=6, rope_theta=1000000.0, rope_local_base_freq=10000.0,
        rope_scaling=dict(rope_type="linear", factor=8.0), rms_norm_eps=1e-6, tie_word_embeddings=True,
    ),
}


def shapes(config):
    """(name, shape, kind) of every tensor, in file order."""
    hidden, wide = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim") or hidden // config["num_attention_heads"]
    q_rows, kv_rows = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden), "embed"
    gemma = config["model_type"] == "gemma3_text"
    norms = ["input_layernorm", "post_attention_layernorm"]
    if gemma:
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for norm in norms:
            yield prefix + norm + ".weight", (hidden,), "norm"
        for name, rows in (("q", q_rows), ("k", kv_rows), ("v", kv_rows)):
            yield f"{prefix}self_attn.{name}_proj.weight", (rows, hidden), name
            if config["model_type"] == "qwen2" or config.get("attention_bias"):
                yield f"{prefix}self_attn.{name}_proj.bias", (rows,), "bias"
        if gemma or config["model_type"] == "qwen3":
            yield prefix + "self_attn.q_norm.weight", (head,), "norm"
            yield prefix + "self_attn.k_norm.weight", (head,), "norm"
        yield prefix + "self_attn.o_proj.weight", (hidden, q_rows), "o"
        if config.get("attention_bias"):
            yield prefix + "self_attn.o_proj.bias", (hidden,), "bias"
        for name, rows, cols in (("gate", wide, hidden), ("up", wide, hidden), ("down", hidden, wide)):
            yield f"{prefix}mlp.{name}_proj.weight", (rows, cols), "linear"
            if config.get("mlp_bias"):
                yield f"{prefix}mlp.{name}_proj.bias", (rows,), "bias"
    yield "model.norm.weight", (hidden,), "final_norm"
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (config["vocab_size"], hidden), "head"


def values(rng, config, shape, kind):
    """Random values of a size that lets attention matter: scores spread by units, outputs as large as the residual.

    A tied embedding is small beside what the layers add, else every token would predict itself; the final norm makes up
    for it in the logits.
    """
    unit = shape[-1] ** -0.5
    normal = rng.standard_normal(shape)
    tied, gemma = config["tie_word_embeddings"], config["model_type"] == "gemma3_text"
    smaller = (8.0 if gemma else 4.0) if tied else 1.0  # Gemma multiplies embeddings by sqrt(hidden) = 8
    if kind in ("norm", "final_norm"):
        mean = smaller if kind == "final_norm" else 1.0
        return normal * 0.1 + mean - (1.0 if gemma else 0.0)
    return normal * {"bias": 0.3, "embed": unit * 4 / smaller if tied else 1.0, "head": unit * 4, "q": unit * 1.5,
                     "k": unit * 1.5, "v": unit, "o": unit * 1.5, "linear": unit}[kind]


def bfloat16(array):
    bits = np.ascontiguousarray(array, dtype="<f4").view("<u4").astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def write_safetensors(path, tensors):
    header, blob = {}, b""
    for name, array in tensors.items():
        data = bfloat16(array).tobytes()
        header[name] = dict(dtype="BF16", shape=list(array.shape), data_offsets=[len(blob), len(blob) + len(data)])
        blob += data
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + blob)


def write_tokenizer(folder):
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    printable = {**{b: chr(b) for b in [*range(33, 127), *range(161, 173), *range(174, 256)]}}
    rest = [b for b in range(256) if b not in printable]
    printable.update({b: chr(256 + i) for i, b in enumerate(rest)})
    assert set(printable.values()) == set(alphabet)
    tokenizer = Tokenizer(models.BPE(vocab={printable[b]: b for b in range(256)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIALS])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = dict(tokenizer_class="PreTrainedTokenizerFast", eos_token="<|im_end|>", pad_token="<|endoftext|>",
                  clean_up_tokenization_spaces=False, chat_template=CHAT_TEMPLATE)
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")


def main():
    goldens = pathlib.Path(__file__).resolve().parent.parent / "tests" / "goldens"
    for name, changes in CONFIGS.items():
        config = {**COMMON, **changes}
        folder = goldens / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        (folder / "generation_config.json").write_text(json.dumps(dict(eos_token_id=[258, 256])) + "\n")
        rng = np.random.default_rng(sum(name.encode()))
        write_safetensors(folder / "model.safetensors",
                          {tensor: values(rng, config, shape, kind) for tensor, shape, kind in shapes(config)})
        write_tokenizer(folder)
        size = sum(file.stat().st_size for file in folder.iterdir())
        print(f"{name}: {size // 1024} KB")
        assert size < 400_000, name


if __name__ == "__main__":
    main()
