#!/usr/bin/env python3
"""Writes the tiny Qwen3.5 / 3.6 checkpoints of tests/goldens and what transformers computes for them (see make_goldens.py).

Mixtures (4 experts, 2 chosen, beside a shared one), two layers of linear attention around a full one: qwen3_5_moe in bf16,
as the original packs experts, with vision and MTP tensors that nothing reads; qwen3_5_moe_fp8 with scales by block, as the
official FP8 repository; qwen3_5_moe_nvfp4 as ModelOpt's mixed precision: projections in FP8 with one scale each, experts,
shared expert and head in NVFP4. qwen3_5 is dense, in bf16, with smaller heads. The longest prompt passes the 64 tokens
that the chunked form takes at a time. Seeds are such that no token of the prompts is within 0.015 of another choice of
experts. Needs: tools/requirements-goldens.txt. Deterministic: a second run writes the same bytes.
"""
import json
import pathlib

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import make_goldens
import make_tiny_checkpoint as tiny
import make_tiny_fp8
import make_tiny_gemma4

GOLDENS = pathlib.Path(__file__).resolve().parent.parent / "tests" / "goldens"

TEXT = dict(
    model_type="qwen3_5_moe_text", vocab_size=tiny.VOCAB, hidden_size=64, num_hidden_layers=3, num_attention_heads=2,
    num_key_value_heads=1, head_dim=64, hidden_act="silu", rms_norm_eps=1e-6, max_position_embeddings=2048,
    tie_word_embeddings=False, attention_bias=False, torch_dtype="bfloat16", eos_token_id=258, full_attention_interval=2,
    rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.25, mrope_interleaved=True,
                         mrope_section=[3, 3, 2]),
    linear_conv_kernel_dim=4, linear_key_head_dim=128, linear_value_head_dim=128, linear_num_key_heads=1,
    linear_num_value_heads=2, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
    shared_expert_intermediate_size=64)
DENSE = {key: value for key, value in TEXT.items() if "expert" not in key and key != "full_attention_interval"}
DENSE.update(model_type="qwen3_5_text", intermediate_size=96, linear_key_head_dim=32, linear_value_head_dim=32,
             linear_num_key_heads=2, linear_num_value_heads=4, num_hidden_layers=4,
             layer_types=["linear_attention"] * 2 + ["full_attention", "linear_attention"])
del DENSE["moe_intermediate_size"]

NOT_FP8 = ["lm_head", "model.visual", "mlp.gate", "mlp.shared_expert_gate", "linear_attn.in_proj_a",
           "linear_attn.in_proj_b", "linear_attn.conv1d"]
VARIANTS = {
    "qwen3_5_moe": dict(text=TEXT, scheme=None, seed=33),
    "qwen3_5_moe_fp8": dict(text=TEXT, scheme="block", seed=8, quantization=dict(
        quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[128, 128],
        modules_to_not_convert=NOT_FP8)),
    "qwen3_5_moe_nvfp4": dict(text=TEXT, scheme="mixed", seed=22),
    "qwen3_5": dict(text=DENSE, scheme=None, seed=1),
}


def tensors_of(text, rng):
    """Name within the language model -> float32 values; experts one by one."""
    hidden, dim = text["hidden_size"], text["head_dim"]
    unit = hidden**-0.5

    def normal(*shape, size=1.0):
        return torch.from_numpy((rng.standard_normal(shape) * size).astype(np.float32))

    def mlp(prefix, rows):
        size = float(np.exp2(rng.uniform(-1, 1)))  # matrices differ, so that a wrong scale is seen
        return {prefix + "gate_proj.weight": normal(rows, hidden, size=1.5 * unit),
                prefix + "up_proj.weight": normal(rows, hidden, size=size * unit),
                prefix + "down_proj.weight": normal(hidden, rows, size=rows**-0.5 / size)}

    def attention(p):
        q_rows, kv_rows = text["num_attention_heads"] * dim, text["num_key_value_heads"] * dim
        return {p + "q_proj.weight": normal(2 * q_rows, hidden, size=1.5 * unit),
                p + "k_proj.weight": normal(kv_rows, hidden, size=1.5 * unit),
                p + "v_proj.weight": normal(kv_rows, hidden, size=unit),
                p + "q_norm.weight": normal(dim, size=0.1), p + "k_norm.weight": normal(dim, size=0.1),
                p + "o_proj.weight": normal(hidden, q_rows, size=2 * q_rows**-0.5)}

    def linear_attention(p):
        v_heads, v_dim = text["linear_num_value_heads"], text["linear_value_head_dim"]
        values = v_heads * v_dim
        channels = 2 * text["linear_num_key_heads"] * text["linear_key_head_dim"] + values
        return {p + "in_proj_qkv.weight": normal(channels, hidden, size=1.5 * unit),
                p + "in_proj_z.weight": normal(values, hidden, size=1.5 * unit),
                p + "in_proj_b.weight": normal(v_heads, hidden, size=unit),
                p + "in_proj_a.weight": normal(v_heads, hidden, size=unit),
                p + "conv1d.weight": normal(channels, 1, text["linear_conv_kernel_dim"], size=0.6),
                # Heads that remember some tokens, and some hundred.
                p + "A_log": torch.linspace(-4, 0, v_heads), p + "dt_bias": normal(v_heads),
                p + "norm.weight": 1 + normal(v_dim, size=0.1),
                p + "out_proj.weight": normal(hidden, values, size=2 * values**-0.5)}

    out = {"embed_tokens.weight": normal(text["vocab_size"], hidden)}
    for layer in range(text["num_hidden_layers"]):
        p = f"layers.{layer}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            out[f"{p}{name}.weight"] = normal(hidden, size=0.1)
        full = text["layer_types"][layer] == "full_attention" if "layer_types" in text else layer % 2 == 1
        out.update(attention(p + "self_attn.") if full else linear_attention(p + "linear_attn."))
        if "num_experts" not in text:
            out.update(mlp(p + "mlp.", text["intermediate_size"]))
            continue
        out[p + "mlp.gate.weight"] = normal(text["num_experts"], hidden, size=0.5)
        for e in range(text["num_experts"]):
            out.update(mlp(f"{p}mlp.experts.{e}.", text["moe_intermediate_size"]))
        out.update(mlp(p + "mlp.shared_expert.", text["shared_expert_intermediate_size"]))
        out[p + "mlp.shared_expert_gate.weight"] = normal(1, hidden, size=unit)
    out["norm.weight"] = normal(hidden, size=0.1)
    out["lm_head.weight"] = normal(text["vocab_size"], hidden, size=4 * unit)
    return out


def scheme_of(name, scheme):
    """How a variant stores a tensor: None, "block", "tensor" or "nvfp4"."""
    if scheme is None or name.endswith(("in_proj_a.weight", "in_proj_b.weight")):
        return None
    if scheme == "mixed" and (".mlp.experts." in name or ".mlp.shared_expert." in name or name == "lm_head.weight"):
        return "nvfp4"
    if name.endswith(("_proj.weight", "in_proj_qkv.weight", "in_proj_z.weight")):
        return "tensor" if scheme == "mixed" else "block"
    return None


def store(name, values, scheme):
    """{suffix: tensor as stored}, meaning."""
    if scheme is None:
        fp32 = name.endswith("A_log") or name.endswith("linear_attn.norm.weight")  # as the originals keep them
        kept = values if fp32 else values.bfloat16()
        return {"": kept}, kept.float()
    if scheme == "nvfp4":
        codes, blocks, scale, meaning = make_tiny_gemma4.nvfp4(values)
        return {"": codes, "_scale": blocks, "_scale_2": scale}, meaning
    stored, scales, meaning = make_tiny_fp8.quantise(values, scheme)
    return {"": stored, "_scale_inv" if scheme == "block" else "_scale": scales}, meaning


def packed_experts(tensors, text):
    """The experts of each layer as two tensors; all others unchanged."""
    out = {name: value for name, value in tensors.items() if ".experts." not in name}
    for layer in range(text["num_hidden_layers"] if "num_experts" in text else 0):
        p = f"layers.{layer}.mlp.experts."
        every = [{part: tensors[f"{p}{e}.{part}_proj.weight"] for part in ("gate", "up", "down")}
                 for e in range(text["num_experts"])]
        out[p + "gate_up_proj"] = torch.stack([torch.cat([e["gate"], e["up"]]) for e in every])
        out[p + "down_proj"] = torch.stack([e["down"] for e in every])
    return out


def full_name(name):
    return name if name.startswith("lm_head") else "model.language_model." + name


def mixed_precision(stored):
    algos = {torch.uint8: dict(quant_algo="W4A16_NVFP4", group_size=16), torch.float8_e4m3fn: dict(quant_algo="FP8")}
    layers = {full_name(name)[:-len(".weight")]: algos[value.dtype] for name, value in stored.items()
              if name.endswith(".weight") and value.dtype in algos}
    return dict(quant_method="modelopt", quant_algo="MIXED_PRECISION", kv_cache_scheme=None, quantized_layers=layers,
                producer=dict(name="modelopt"))


def write_variant(name, variant):
    text, scheme = variant["text"], variant["scheme"]
    folder = GOLDENS / name
    folder.mkdir(parents=True, exist_ok=True)
    stored, meant = {}, {}
    for tensor, values in tensors_of(text, np.random.default_rng(variant["seed"])).items():
        how = scheme_of(tensor, scheme)
        parts, meant[tensor] = store(tensor, values, how)
        stored.update({tensor + suffix: value for suffix, value in parts.items()})
        if scheme == "mixed" and how == "tensor":
            stored[tensor.replace(".weight", ".input_scale")] = torch.tensor(0.05)
    quantization = variant.get("quantization") or (mixed_precision(stored) if scheme else None)
    if scheme is None:
        stored = packed_experts(stored, text)
    stored = {full_name(key): value for key, value in stored.items()}
    stored["model.visual.patch_embed.proj.weight"] = torch.zeros(4, 4).bfloat16()
    stored["mtp.fc.weight"] = torch.zeros(4, 4).bfloat16()
    make_tiny_fp8.write_safetensors(folder / "model.safetensors", stored)
    moe = "num_experts" in text
    document = dict(
        architectures=["Qwen3_5MoeForConditionalGeneration" if moe else "Qwen3_5ForConditionalGeneration"],
        model_type="qwen3_5_moe" if moe else "qwen3_5", text_config=text, tie_word_embeddings=False, image_token_id=4,
        vision_config=dict(model_type="qwen3_5_moe_vision" if moe else "qwen3_5_vision"))
    if quantization:
        document["quantization_config"] = quantization
    (folder / "config.json").write_text(json.dumps(document, indent=1) + "\n")
    (folder / "generation_config.json").write_text(json.dumps(dict(eos_token_id=[258, 256])) + "\n")
    tiny.write_tokenizer(folder)

    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**text), attn_implementation="eager").float().eval()
    state = {key if key.startswith("lm_head") else "model." + key: value
             for key, value in packed_experts(meant, text).items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and not missing, (missing, unexpected)
    prompts = make_goldens.prompts(name, tiny.VOCAB, AutoTokenizer.from_pretrained(folder))
    make_goldens.write_expectations(folder, model, prompts)
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{name}: {size // 1024} KB")
    assert size < 720_000, name


def main():
    torch.set_num_threads(1)
    make_goldens.round_keys_and_values()
    make_tiny_fp8.TYPES[torch.uint8] = ("U8", torch.uint8)
    for name, variant in VARIANTS.items():
        write_variant(name, variant)


if __name__ == "__main__":
    main()
