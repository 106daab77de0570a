#!/usr/bin/env python3
"""Writes the tiny Gemma 4 checkpoints of tests/goldens and what transformers computes for them (see make_goldens.py).

Mixtures (6 experts, 2 chosen, beside a dense MLP): gemma4 in bf16, as the original packs experts, with a vision tensor
that nothing reads; gemma4_nvfp4 with experts in NVFP4 as ModelOpt spells it; gemma4_nvfp4_all with all projections so;
gemma4_fp8 with scales by channel, as compressed-tensors' FP8-Dynamic. Dense: gemma4_dense in bf16,
gemma4_dense_nvfp4 as compressed-tensors spells it, gemma4_unified in bf16, of the class that 12B is published as. NVFP4
is written here by its definition: the matrix's scale is its largest magnitude / (6 * 448), a block of 16 has the nearest
E4M3 to its largest magnitude / 6 / that, values go to the nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6. Needs:
tools/requirements-goldens.txt. Deterministic.
"""
import json
import pathlib
import sys

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import make_goldens
import make_tiny_checkpoint as tiny
import make_tiny_fp8

GOLDENS = pathlib.Path(__file__).resolve().parent.parent / "tests" / "goldens"
MAGNITUDES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])

TEXT = dict(
    model_type="gemma4_text", vocab_size=tiny.VOCAB, hidden_size=64, intermediate_size=64, num_hidden_layers=3,
    num_attention_heads=4, num_key_value_heads=2, num_global_key_value_heads=1, head_dim=16, global_head_dim=32,
    attention_k_eq_v=True, sliding_window=24, layer_types=["sliding_attention", "sliding_attention", "full_attention"],
    hidden_activation="gelu_pytorch_tanh", rms_norm_eps=1e-6, max_position_embeddings=2048, tie_word_embeddings=True,
    final_logit_softcapping=30.0, attention_bias=False, bos_token_id=256, eos_token_id=258, pad_token_id=0,
    hidden_size_per_layer_input=0, num_kv_shared_layers=0, use_double_wide_mlp=False, torch_dtype="bfloat16",
    use_bidirectional_attention=None, rope_parameters=dict(
        sliding_attention=dict(rope_type="default", rope_theta=10000.0),
        full_attention=dict(rope_type="proportional", partial_rotary_factor=0.25, rope_theta=1000000.0)),
    enable_moe_block=True, num_experts=6, top_k_experts=2, moe_intermediate_size=32)
DENSE = {**TEXT, "enable_moe_block": False, "num_experts": None, "top_k_experts": None, "moe_intermediate_size": None,
         "num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2}
UNIFIED = {key: value for key, value in DENSE.items() if "moe" not in key and "experts" not in key
           and key != "hidden_size_per_layer_input"} | dict(model_type="gemma4_unified_text")

BITS8 = dict(num_bits=8, type="float", symmetric=True)
MODELOPT = dict(quant_method="modelopt", quant_algo="NVFP4", producer=dict(name="modelopt"))
NOT_EXPERTS = ["lm_head", "model.language_model.layers.*.self_attn*", "model.language_model.layers.*.mlp.*",
               "model.language_model.layers.*.router*", "model.vision_tower*"]
# Seeds are those with which no token is within rounding of other experts or other keys (bf16).
VARIANTS = {
    "gemma4": dict(seed=8, text=TEXT, scheme=None, prefix="model.language_model."),
    "gemma4_nvfp4": dict(seed=1, text=TEXT, scheme="modelopt", experts_only=True, prefix="model.language_model.",
                         quantization=dict(MODELOPT, ignore=NOT_EXPERTS)),
    "gemma4_nvfp4_all": dict(seed=9, text=TEXT, scheme="modelopt", prefix="language_model.model.",
                             experts="moe.experts", quantization=dict(
                                 MODELOPT, ignore=["lm_head", "*router*", "model.vision_tower*"])),
    "gemma4_fp8": dict(seed=1, text=TEXT, scheme="fp8", prefix="model.language_model.", quantization=dict(
        quant_method="compressed-tensors", format="float-quantized", quantization_status="compressed",
        ignore=["lm_head", "re:.*router.*", "re:.*vision.*"], kv_cache_scheme=None,
        config_groups=dict(group_0=dict(
            targets=["Linear"], weights=dict(BITS8, dynamic=False, strategy="channel"),
            input_activations=dict(BITS8, dynamic=True, strategy="token"))))),
    "gemma4_dense": dict(seed=3, text=DENSE, scheme=None, prefix="model."),
    "gemma4_dense_nvfp4": dict(
        seed=1, text=DENSE, scheme="compressed", prefix="model.language_model.", quantization=dict(
        quant_method="compressed-tensors", format="nvfp4-pack-quantized", quantization_status="compressed",
        ignore=["lm_head", "re:.*vision.*"], kv_cache_scheme=None, config_groups=dict(group_0=dict(
            targets=["Linear"], weights=dict(num_bits=4, type="float", symmetric=True, strategy="tensor_group",
                                             group_size=16))))),
    "gemma4_unified": dict(seed=3, text=UNIFIED, scheme=None, prefix="model.language_model."),
}


def is_expert(name):
    return ".experts." in name


def nvfp4(values):
    """(bytes [rows, cols / 2], E4M3 scales [rows, cols / 16], scale of the matrix, meaning) of a float32 matrix."""
    blocks = values.reshape(values.shape[0], -1, 16)
    scale = values.abs().max() / (6 * 448)
    stored = (blocks.abs().amax(-1) / 6 / scale).clamp(max=448).to(torch.float8_e4m3fn)
    unit = (stored.float() * scale).clamp(min=1e-30)[..., None]
    nearest = ((blocks.abs() / unit)[..., None] - MAGNITUDES).abs().argmin(-1)
    codes = (nearest + torch.where(blocks < 0, 8, 0)).to(torch.uint8).reshape(values.shape)
    meaning = torch.where(blocks < 0, -1.0, 1.0) * MAGNITUDES[nearest] * unit
    return codes[:, ::2] | codes[:, 1::2] << 4, stored, scale, meaning.reshape(values.shape)


def tensors_of(text, rng):
    """Name within the language model -> float32 values; experts one by one."""
    hidden, heads = text["hidden_size"], text["num_attention_heads"]

    def normal(*shape, size=1.0):
        return torch.from_numpy((rng.standard_normal(shape) * size).astype(np.float32))

    def norm(width):
        return 1 + normal(width, size=0.1)

    def mlp(prefix, rows):
        # The matrices of experts differ in size, so that a wrong scale is seen.
        size = float(np.exp2(rng.uniform(-1, 1)))
        return {prefix + "gate_proj.weight": normal(rows, hidden, size=1.5 * hidden**-0.5),
                prefix + "up_proj.weight": normal(rows, hidden, size=size * hidden**-0.5),
                prefix + "down_proj.weight": normal(hidden, rows, size=rows**-0.5 / size)}

    out = {"embed_tokens.weight": normal(text["vocab_size"], hidden, size=0.12)}
    for layer, kind in enumerate(text["layer_types"]):
        p, full = f"layers.{layer}.", kind == "full_attention"
        dim = text["global_head_dim" if full else "head_dim"]
        kv = text["num_global_key_value_heads" if full else "num_key_value_heads"]
        for name in ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                     "post_feedforward_layernorm"):
            out[f"{p}{name}.weight"] = norm(hidden)
        out[p + "layer_scalar"] = torch.tensor([0.6 + 0.1 * layer])
        # Scores are not scaled by the width of a head: the norms' weights make them spread by a few units.
        out[p + "self_attn.q_norm.weight"] = norm(dim) * 1.2 * dim**-0.25
        out[p + "self_attn.k_norm.weight"] = norm(dim) * 1.2 * dim**-0.25
        out[p + "self_attn.q_proj.weight"] = normal(heads * dim, hidden, size=hidden**-0.5)
        out[p + "self_attn.k_proj.weight"] = normal(kv * dim, hidden, size=hidden**-0.5)
        if not full:
            out[p + "self_attn.v_proj.weight"] = normal(kv * dim, hidden, size=hidden**-0.5)
        out[p + "self_attn.o_proj.weight"] = normal(hidden, heads * dim, size=(heads * dim)**-0.5)
        out.update(mlp(p + "mlp.", text["intermediate_size"]))
        if not text.get("enable_moe_block"):
            continue
        for name in ("pre_feedforward_layernorm_2", "post_feedforward_layernorm_1", "post_feedforward_layernorm_2"):
            out[f"{p}{name}.weight"] = norm(hidden)
        out[p + "router.proj.weight"] = normal(text["num_experts"], hidden, size=2.0)
        out[p + "router.scale"] = norm(hidden)
        out[p + "router.per_expert_scale"] = 1 + normal(text["num_experts"], size=0.3)
        for e in range(text["num_experts"]):
            out.update(mlp(f"{p}experts.{e}.", text["moe_intermediate_size"]))
    out["norm.weight"] = 4 * norm(hidden)  # logits that spread by several units
    return out


def store(name, values, variant):
    """{suffix: tensor as stored}, meaning."""
    scheme = variant["scheme"]
    quantised = name.endswith("_proj.weight") and (is_expert(name) or not variant.get("experts_only"))
    if scheme is None or not quantised:
        sixteen = values.bfloat16()
        return {"": sixteen}, sixteen.float()
    if scheme == "fp8":
        stored, scales, meaning = make_tiny_fp8.quantise(values, "channel")
        return {"": stored, "_scale": scales}, meaning
    codes, blocks, scale, meaning = nvfp4(values)
    if scheme == "compressed":
        return {"_packed": codes, "_scale": blocks, "_global_scale": (1 / scale).reshape(1)}, \
            meaning / scale * (1 / (1 / scale))
    return {"": codes, "_scale": blocks, "_scale_2": scale}, meaning


def packed_experts(tensors, text):
    """The experts of each layer as two tensors; all others unchanged."""
    out = {name: value for name, value in tensors.items() if not is_expert(name)}
    for layer in range(len(text["layer_types"]) if text.get("enable_moe_block") else 0):
        p = f"layers.{layer}.experts."
        every = [{part: tensors[f"{p}{e}.{part}_proj.weight"] for part in ("gate", "up", "down")}
                 for e in range(text["num_experts"])]
        out[p + "gate_up_proj"] = torch.stack([torch.cat([e["gate"], e["up"]]) for e in every])
        out[p + "down_proj"] = torch.stack([e["down"] for e in every])
    return out


def write_variant(name, variant):
    text = variant["text"]
    folder = GOLDENS / name
    folder.mkdir(parents=True, exist_ok=True)
    stored, meant = {}, {}
    for tensor, values in tensors_of(text, np.random.default_rng(sum(name.encode()) + variant["seed"])).items():
        parts, meant[tensor] = store(tensor, values, variant)
        stored.update({tensor + suffix: value for suffix, value in parts.items()})
    if variant["scheme"] is None:
        stored = packed_experts(stored, text)
    experts = variant.get("experts", "experts")
    stored = {variant["prefix"] + key.replace(".experts.", f".{experts}."): value for key, value in stored.items()}
    conditional, unified = variant["prefix"] != "model.", text is UNIFIED
    if conditional:
        eyes = "vision_embedder.patch_dense" if unified else "vision_tower.patch_embedder"
        for part in [eyes, "embed_vision.embedding_projection"] + ["embed_audio.embedding_projection"] * unified:
            stored[f"model.{part}.weight"] = torch.zeros(4, 4).bfloat16()
    make_tiny_fp8.write_safetensors(folder / "model.safetensors", stored)
    kind, family = ("Gemma4Unified", "gemma4_unified") if unified else ("Gemma4", "gemma4")
    document = dict(architectures=[kind + "ForConditionalGeneration"], model_type=family, text_config=text,
                    vision_config=dict(model_type=family + "_vision"), image_token_id=4, tie_word_embeddings=True)
    if not conditional:
        document = dict(text, architectures=["Gemma4ForCausalLM"])
    if "quantization" in variant:
        document["quantization_config"] = variant["quantization"]
    (folder / "config.json").write_text(json.dumps(document, indent=1) + "\n")
    generation = dict(eos_token_id=[258, 257], suppress_tokens=[5, 6])
    (folder / "generation_config.json").write_text(json.dumps(generation) + "\n")
    tiny.write_tokenizer(folder)

    config = AutoConfig.for_model(**text)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    state = {"model." + key: value for key, value in packed_experts(meant, text).items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    prompts = make_goldens.prompts(name, tiny.VOCAB, AutoTokenizer.from_pretrained(folder))
    make_goldens.write_expectations(folder, model, prompts)
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{name}: {size // 1024} KB")
    assert size < 500_000, name


def main():
    torch.set_num_threads(1)
    make_goldens.round_keys_and_values()
    make_tiny_fp8.TYPES[torch.uint8] = ("U8", torch.uint8)
    for name, variant in VARIANTS.items():
        if len(sys.argv) < 2 or name in sys.argv[1:]:
            write_variant(name, variant)


if __name__ == "__main__":
    main()
