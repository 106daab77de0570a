#!/usr/bin/env python3
"""Writes tests/goldens/gguf_*: tiny GGUF files, and what transformers computes on their dequantised weights.

gguf_llama has every quantised type, biases on every matrix, q and k (their biases too) in the pairwise order of
llama.cpp's converter, and rope_freqs.weight; gguf_qwen3 (YaRN) and gguf_gemma3 (norms that hold the +1, sliding layers)
are the checkpoints of make_tiny_checkpoint.py.
Types that PyPI's gguf cannot quantise to (K-quants) get random blocks of the right size. Expected files as in
make_goldens.py. Needs: tools/requirements-goldens.txt. Run make_tiny_checkpoint.py before.
"""
import json
import pathlib

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, RopeScalingType
from gguf.quants import dequantize, quantize
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig

from make_goldens import TEXT, round_keys_and_values, write_expectations
from make_tiny_checkpoint import shapes, values

GOLDENS = pathlib.Path(__file__).resolve().parent.parent / "tests" / "goldens"

# Offsets of a K-quant's half-precision scales with their size relative to the standard deviation of its values.
K_SCALES = {"Q4_K": ((0, 1 / 258), (2, 7.5 / 258)), "Q5_K": ((0, 1 / 527), (2, 15.5 / 527)), "Q6_K": ((208, 1 / 1366),)}

LLAMA = dict(
    architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=128, hidden_size=256, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=32, intermediate_size=32, max_position_embeddings=1024,
    rms_norm_eps=1e-5, tie_word_embeddings=False, eos_token_id=2, bos_token_id=1, attention_bias=True, mlp_bias=True,
    rope_parameters=dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                         original_max_position_embeddings=64),
)
# Stored types by part of the name; o and down have rows that are no multiple of 256.
LLAMA_TYPES = [
    {"q_proj": "Q4_K", "k_proj": "Q6_K", "v_proj": "Q8_0", "o_proj": "Q4_1", "gate": "Q5_K", "up": "Q4_K",
     "down": "Q5_0"},
    {"q_proj": "Q5_1", "k_proj": "Q4_0", "v_proj": "Q5_K", "o_proj": "Q8_0", "gate": "F16", "up": "BF16",
     "down": "Q4_0"},
]
SMALL_TYPES = {"q_proj": "Q8_0", "k_proj": "Q5_1", "v_proj": "Q4_1", "o_proj": "Q5_0", "gate": "Q4_0", "up": "Q8_0",
               "down": "Q8_0", "embed_tokens": "Q8_0", "lm_head": "F16"}

NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
GEMMA_NAMES = {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
               "post_feedforward_layernorm": "post_ffw_norm"}


def gguf_name(name, gemma):
    stem, suffix = name.rsplit(".", 1)
    table = {**NAMES, **(GEMMA_NAMES if gemma else {"post_attention_layernorm": "ffn_norm"})}
    if not stem.startswith("model.layers."):
        return f"{table[stem]}.{suffix}"
    layer, part = stem[len("model.layers."):].split(".", 1)
    return f"blk.{layer}.{table[part]}.{suffix}"


def pairwise(array, head):
    """What llama.cpp's converter does to q and k: row s * half + i of a head becomes row 2 i + s."""
    return array.reshape(-1, 2, head // 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def unpairwise(array, head):
    return array.reshape(-1, head // 2, 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def stored(rng, array, kind):
    """The stored rows of `array` in a type; for K-quants, of random values of the same size."""
    if kind.name not in K_SCALES:
        return quantize(np.ascontiguousarray(array, dtype=np.float32), kind)
    elems, size = GGML_QUANT_SIZES[kind]
    rows, blocks = array.shape[0], array.shape[1] // elems
    data = rng.integers(0, 256, (rows * blocks, size), dtype=np.uint8)
    for offset, relative in K_SCALES[kind.name]:
        scale = (array.std() * relative * rng.uniform(0.8, 1.2, rows * blocks)).astype(np.float16)
        data[:, offset:offset + 2] = scale.view(np.uint8).reshape(-1, 2)
    return data.reshape(rows, blocks * size)


def kind_of(name, types):
    """The stored type of a tensor; vectors stay F32."""
    part = next((part for part in types if f".{part}" in f".{name}" and "norm" not in name), None)
    return GGMLQuantizationType[types[part]] if part else GGMLQuantizationType.F32


def write_tensors(writer, config, tensors, types_of, rng):
    """Adds every tensor; returns what they mean, as a state dict for transformers."""
    gemma, head = config["model_type"] == "gemma3_text", config["head_dim"]
    meaning = {}
    for name, array in tensors.items():
        kind = kind_of(name, types_of(name)) if array.ndim == 2 else GGMLQuantizationType.F32
        permuted = config["model_type"] == "llama" and ("q_proj" in name or "k_proj" in name)
        source = pairwise(array, head) if permuted else array
        if gemma and "norm" in name:
            source = source + np.float32(1)
        data = source.astype(np.float32) if kind == GGMLQuantizationType.F32 else stored(rng, source, kind)
        writer.add_tensor(gguf_name(name, gemma), data, raw_dtype=kind)
        value = data if kind == GGMLQuantizationType.F32 else dequantize(data, kind)
        if gemma and "norm" in name:
            value = value - np.float32(1)
        meaning[name] = torch.from_numpy(np.array(unpairwise(value, head) if permuted else value, dtype=np.float32))
    return meaning


def write_metadata(writer, config):
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    rope = config.get("rope_parameters") or {}
    writer.add_rope_freq_base(rope.get("rope_theta") or config["rope_theta"])
    writer.add_rope_dimension_count(config["head_dim"])
    if rope.get("rope_type") == "yarn":
        writer.add_rope_scaling_type(RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if config["model_type"] == "gemma3_text":
        writer.add_sliding_window(config["sliding_window"])
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(config["rope_scaling"]["factor"])


def llama3_divisors(config):
    """rope_freqs.weight: the plain frequencies over the scaled ones."""
    rope, half = config["rope_parameters"], config["head_dim"] // 2
    turns = rope["original_max_position_embeddings"] / (2 * np.pi) * rope["rope_theta"] ** (-np.arange(half) / half)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / rope["factor"] + smooth)).astype(np.float32)


def prompts(name, vocab):
    rng = np.random.default_rng(2000 + sum(name.encode()))
    return [[byte % vocab for byte in TEXT[:99].encode()], rng.integers(0, vocab, 45).tolist()]


def main():
    torch.set_num_threads(1)
    round_keys_and_values()
    small = {name: json.loads((GOLDENS / name / "config.json").read_text()) for name in ("qwen3", "gemma3")}
    for name, config in {"llama": LLAMA, **small}.items():
        rng = np.random.default_rng(3000 + sum(name.encode()))
        folder = GOLDENS / f"gguf_{name}"
        folder.mkdir(exist_ok=True)
        writer = GGUFWriter(folder / "model.gguf", name)
        write_metadata(writer, config)
        if name == "llama":
            tensors = {key: values(rng, config, shape, kind).astype(np.float32) for key, shape, kind in shapes(config)}
            ends = {"embed_tokens": "Q8_0", "lm_head": "Q6_K"}
            types_of = lambda key: LLAMA_TYPES[int(key.split(".")[2])] if ".layers." in key else ends  # noqa: E731
            writer.add_tensor("rope_freqs.weight", llama3_divisors(config))
            model = AutoModelForCausalLM.from_config(LlamaConfig(**config), attn_implementation="eager")
        else:
            stored_tensors = load_file(GOLDENS / name / "model.safetensors")
            tensors = {key: value.float().numpy() for key, value in stored_tensors.items()}
            types_of = lambda key: SMALL_TYPES  # noqa: E731
            model = AutoModelForCausalLM.from_pretrained(GOLDENS / name, attn_implementation="eager")
        meaning = write_tensors(writer, config, tensors, types_of, rng)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        model = model.to(torch.float32).eval()
        missing, unexpected = model.load_state_dict(meaning, strict=False)
        assert not unexpected and all(key == "lm_head.weight" for key in missing), (missing, unexpected)
        write_expectations(folder, model, prompts(name, config["vocab_size"]))
        size = (folder / "model.gguf").stat().st_size
        print(f"{folder.name}: {size // 1024} KB")
        assert size < 300_000


if __name__ == "__main__":
    main()
