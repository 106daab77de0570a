#!/usr/bin/env python3
"""Writes the tiny gpt-oss checkpoints of tests/goldens and what transformers computes for them (see make_goldens.py).

gpt_oss: experts in MXFP4 (blocks and scales), 8 of which 2 are chosen; gpt_oss_bf16: experts in bf16, x from the left,
as transformers keeps them; gguf_gpt_oss: the first as GGUF, as llama.cpp's converter names and orders it, matrices in
BF16, vectors in F32. MXFP4 is written here by its OCP definition: the scale is the power of two below the largest
magnitude over 4, values go to the nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6. Needs: tools/requirements-goldens.txt.
Deterministic: a second run writes the same bytes.
"""
import json
import pathlib

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, RopeScalingType
from gguf.quants import dequantize
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import make_goldens
import make_tiny_checkpoint as tiny
import make_tiny_fp8
import make_tiny_gguf

GOLDENS = pathlib.Path(__file__).resolve().parent.parent / "tests" / "goldens"
MAGNITUDES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])

CONFIG = dict(
    architectures=["GptOssForCausalLM"], model_type="gpt_oss", vocab_size=tiny.VOCAB, hidden_size=64,
    num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=16, intermediate_size=32,
    num_local_experts=8, num_experts_per_tok=2, sliding_window=24, attention_bias=True, hidden_act="silu",
    swiglu_limit=1.5, rms_norm_eps=1e-5, max_position_embeddings=2048, tie_word_embeddings=False,
    torch_dtype="bfloat16", bos_token_id=None, eos_token_id=258, rope_theta=10000.0,
    rope_scaling=dict(rope_type="yarn", factor=8.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
                      original_max_position_embeddings=256),
    layer_types=["sliding_attention", "full_attention"] * 2,
)
QUANTIZATION = dict(quant_method="mxfp4", modules_to_not_convert=[
    "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"])


def mxfp4(values):
    """(nibbles [.., cols], scales [.., cols / 32], their meaning) of a float array."""
    blocks = values.reshape(*values.shape[:-1], -1, 32).astype(np.float64)
    exponent = np.floor(np.log2(np.abs(blocks).max(-1, keepdims=True) / 4))
    nearest = np.abs(np.abs(blocks / 2.0**exponent)[..., None] - MAGNITUDES).argmin(-1)
    nibbles = (nearest + np.where(blocks < 0, 8, 0)).astype(np.uint8)
    meaning = np.where(nibbles < 8, 1, -1) * MAGNITUDES[nibbles % 8] * 2.0**exponent
    scales = (exponent[..., 0] + 127).astype(np.uint8)
    return nibbles.reshape(values.shape), scales, meaning.reshape(values.shape).astype(np.float32)


def tensors_of(config, rng):
    """Name -> float32 values; experts as [experts, rows, cols]."""
    hidden, experts, rows = config["hidden_size"], config["num_local_experts"], config["intermediate_size"]
    q, kv = (config[key] * config["head_dim"] for key in ("num_attention_heads", "num_key_value_heads"))
    normal = lambda *shape, size=1.0: (rng.standard_normal(shape) * size).astype(np.float32)  # noqa: E731
    unit = hidden**-0.5
    out = {"model.embed_tokens.weight": normal(config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        out[p + "input_layernorm.weight"] = 1 + normal(hidden, size=0.1)
        for name, width in (("q", q), ("k", kv), ("v", kv)):
            out[f"{p}self_attn.{name}_proj.weight"] = normal(width, hidden, size=unit * (1.0 if name == "v" else 1.5))
            out[f"{p}self_attn.{name}_proj.bias"] = normal(width, size=0.3)
        out[p + "self_attn.o_proj.weight"] = normal(hidden, q, size=1.5 * q**-0.5)
        out[p + "self_attn.o_proj.bias"] = normal(hidden, size=0.3)
        out[p + "self_attn.sinks"] = normal(config["num_attention_heads"], size=1.0) + 1
        out[p + "post_attention_layernorm.weight"] = 1 + normal(hidden, size=0.1)
        out[p + "mlp.router.weight"] = normal(experts, hidden, size=2 * unit)
        out[p + "mlp.router.bias"] = normal(experts, size=0.5)
        out[p + "mlp.experts.gate_up_proj"] = normal(experts, 2 * rows, hidden, size=1.5 * unit)
        out[p + "mlp.experts.gate_up_proj_bias"] = normal(experts, 2 * rows, size=0.5)
        out[p + "mlp.experts.down_proj"] = normal(experts, hidden, rows, size=0.7 * rows**-0.5)
        out[p + "mlp.experts.down_proj_bias"] = normal(experts, hidden, size=0.2)
    out["model.norm.weight"] = 1 + normal(hidden, size=0.1)
    out["lm_head.weight"] = normal(config["vocab_size"], hidden, size=4 * unit)
    return out


def is_expert_matrix(name):
    return name.endswith(("gate_up_proj", "experts.down_proj"))


def write_model(folder, config, meant, prompts):
    """What transformers computes of the meant values; its expert matrices have x on the left."""
    plain = {key: value for key, value in config.items() if key != "quantization_config"}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**plain), attn_implementation="eager").float().eval()
    state = {name: torch.from_numpy(np.ascontiguousarray(value.swapaxes(1, 2) if is_expert_matrix(name) else value))
             for name, value in meant.items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and not missing, (missing, unexpected)
    make_goldens.write_expectations(folder, model, prompts)
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{folder.name}: {size // 1024} KB")
    assert size < 500_000


def write_hf(name, config, with_mxfp4):
    folder = GOLDENS / name
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(sum(name.encode()))
    stored, meant = {}, {}
    for key, values in tensors_of(config, rng).items():
        if with_mxfp4 and is_expert_matrix(key):
            nibbles, scales, meant[key] = mxfp4(values)
            blocks = (nibbles[..., ::2] | nibbles[..., 1::2] << 4).reshape(*scales.shape, 16)
            stored[key + "_blocks"], stored[key + "_scales"] = torch.from_numpy(blocks), torch.from_numpy(scales)
            continue
        sixteen = torch.from_numpy(values).bfloat16()
        meant[key] = sixteen.float().numpy()
        stored[key] = sixteen.transpose(1, 2).contiguous() if is_expert_matrix(key) else sixteen
    make_tiny_fp8.write_safetensors(folder / "model.safetensors", stored)
    document = {**config, **(dict(quantization_config=QUANTIZATION) if with_mxfp4 else {})}
    (folder / "config.json").write_text(json.dumps(document, indent=1) + "\n")
    (folder / "generation_config.json").write_text(json.dumps(dict(eos_token_id=[258, 256])) + "\n")
    tiny.write_tokenizer(folder)
    prompts = make_goldens.prompts(name, tiny.VOCAB, AutoTokenizer.from_pretrained(folder))
    write_model(folder, config, meant, prompts)
    return meant, prompts


NAMES = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.router": "ffn_gate_inp",
}
TOP_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def ggml_blocks(values):
    """[experts, rows, cols] as stored blocks of 17 bytes: values i and i + 16 of a block share a byte."""
    nibbles, scales, _ = mxfp4(values)
    halves = nibbles.reshape(*scales.shape, 2, 16)
    packed = np.concatenate([scales[..., None], halves[..., 0, :] | halves[..., 1, :] << 4], -1)
    blocks = packed.reshape(*values.shape[:-1], -1)
    assert (dequantize(blocks, GGMLQuantizationType.MXFP4) == values).all()  # meant values stay as they are
    return blocks


def gguf_tensors(meant):
    """(name, array, type): rows of gate and up apart, experts in MXFP4."""
    for key, value in meant.items():
        if not key.startswith("model.layers."):
            stem, suffix = key.rsplit(".", 1)
            yield f"{TOP_NAMES[stem]}.{suffix}", value
            continue
        layer, part = key[len("model.layers."):].split(".", 1)
        prefix = f"blk.{layer}."
        if part == "self_attn.sinks":
            yield prefix + "attn_sinks.weight", value
        elif part.startswith("mlp.experts."):
            suffix = "bias" if part.endswith("_bias") else "weight"
            if "gate_up" in part:
                yield f"{prefix}ffn_gate_exps.{suffix}", value[:, ::2]
                yield f"{prefix}ffn_up_exps.{suffix}", value[:, 1::2]
            else:
                yield f"{prefix}ffn_down_exps.{suffix}", value
        else:
            stem, suffix = part.rsplit(".", 1)
            yield f"{prefix}{NAMES[stem]}.{suffix}", value


def write_gguf(config, meant, prompts):
    folder = GOLDENS / "gguf_gpt_oss"
    folder.mkdir(exist_ok=True)
    writer = GGUFWriter(folder / "model.gguf", "gpt-oss")
    make_tiny_gguf.write_metadata(writer, {**config, "rope_scaling": None, "rope_parameters": None})
    writer.add_sliding_window(config["sliding_window"])
    writer.add_expert_count(config["num_local_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(config["intermediate_size"])
    writer.add_rope_scaling_type(RopeScalingType.YARN)
    writer.add_rope_scaling_factor(config["rope_scaling"]["factor"])
    writer.add_rope_scaling_orig_ctx_len(config["rope_scaling"]["original_max_position_embeddings"])
    for name, value in gguf_tensors(meant):
        if name.endswith("_exps.weight"):
            writer.add_tensor(name, ggml_blocks(np.ascontiguousarray(value)), raw_dtype=GGMLQuantizationType.MXFP4)
        elif value.ndim == 2 and name.endswith(".weight"):
            data = tiny.bfloat16(value).view(np.uint8)
            writer.add_tensor(name, data, raw_dtype=GGMLQuantizationType.BF16)
        else:
            writer.add_tensor(name, np.ascontiguousarray(value, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    write_model(folder, config, meant, prompts)


def main():
    torch.set_num_threads(1)
    make_goldens.round_keys_and_values()
    make_tiny_fp8.TYPES[torch.uint8] = ("U8", torch.uint8)
    write_hf("gpt_oss_bf16", {**CONFIG, "num_hidden_layers": 2, "num_local_experts": 4,
                              "layer_types": CONFIG["layer_types"][:2]}, with_mxfp4=False)
    # GGUF has no key for the clamp of the activation: it is the published one.
    config = {**CONFIG, "swiglu_limit": 7.0}
    write_gguf(config, *write_hf("gpt_oss", config, with_mxfp4=True))


if __name__ == "__main__":
    main()
