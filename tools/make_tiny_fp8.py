#!/usr/bin/env python3
"""Writes the tiny 8-bit checkpoints of tests/goldens (fp8_*), one per scheme, and what they compute.

Matrices are quantised as their writers do (scale = largest magnitude / 448, values to the nearest E4M3); expected.json and
logits.bin hold what transformers computes in float32 with the products of values and scales, as make_goldens.py does for
the 16-bit checkpoints. Needs: tools/requirements-goldens.txt. Deterministic: a second run writes the same bytes.
"""
import json
import pathlib
import struct

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import make_goldens
import make_tiny_checkpoint as tiny

BLOCK = 128
LINEAR = dict(dynamic=False, num_bits=8, symmetric=True, type="float")
SIZES = dict(head_dim=64, num_attention_heads=2, num_key_value_heads=1, num_hidden_layers=2)

SCHEMES = {
    # Scales by output channel, in bf16; the head is exempt.
    "fp8_channel": dict(
        layout="channel", config=dict(
            hidden_size=128, intermediate_size=160, quantization_config=dict(
                quant_method="compressed-tensors", format="float-quantized", quantization_status="compressed",
                config_groups=dict(group_0=dict(
                    targets=["Linear"], weights=dict(LINEAR, strategy="channel"),
                    input_activations=dict(LINEAR, dynamic=True, strategy="token"))),
                ignore=["lm_head"], kv_cache_scheme=None))),
    # Scales by block; neither rows nor columns are whole blocks. The last layer's down_proj is exempt, by a pattern.
    "fp8_block": dict(
        layout="block", exempt="model.layers.1.mlp.down_proj.weight", config=dict(
            hidden_size=160, intermediate_size=160, tie_word_embeddings=True, quantization_config=dict(
                quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[BLOCK, BLOCK],
                modules_to_not_convert=["lm_head", "model.layers.1.mlp.down_proj"]))),
    # One scale a matrix, described in ModelOpt's own file, with scales of activations and KV that nothing here uses.
    "fp8_tensor": dict(
        layout="tensor", config=dict(hidden_size=96, intermediate_size=128), hf_quant_config=dict(
            producer=dict(name="modelopt"), quantization=dict(
                quant_algo="FP8", kv_cache_quant_algo="FP8", exclude_modules=["lm_head"]))),
}


def quantise(values, layout):
    """(E4M3 values, scales as stored, their product) of a float32 matrix."""
    rows, cols = values.shape
    magnitude = values.abs()
    if layout == "tensor":
        stored = (magnitude.max() / 448).reshape(())
        scales = stored.expand(rows, cols)
    elif layout == "channel":
        stored = (magnitude.amax(1, keepdim=True) / 448).bfloat16()
        scales = stored.float().expand(rows, cols)
    else:
        padded = torch.zeros(-(-rows // BLOCK) * BLOCK, -(-cols // BLOCK) * BLOCK)
        padded[:rows, :cols] = magnitude
        stored = padded.reshape(padded.shape[0] // BLOCK, BLOCK, -1, BLOCK).amax((1, 3)) / 448
        scales = stored.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)[:rows, :cols]
    quantised = (values / scales).clamp(-448, 448).to(torch.float8_e4m3fn)
    return quantised, stored, quantised.float() * scales


TYPES = {torch.float8_e4m3fn: ("F8_E4M3", torch.uint8), torch.bfloat16: ("BF16", torch.int16),
         torch.float32: ("F32", torch.int32)}


def write_safetensors(path, tensors):
    header, blob = {}, b""
    for name, tensor in tensors.items():
        kind, bits = TYPES[tensor.dtype]
        data = tensor.contiguous().reshape(-1).view(bits).numpy().tobytes()
        header[name] = dict(dtype=kind, shape=list(tensor.shape), data_offsets=[len(blob), len(blob) + len(data)])
        blob += data
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + blob)


def main():
    torch.set_num_threads(1)
    make_goldens.round_keys_and_values()
    goldens = pathlib.Path(__file__).resolve().parent.parent / "tests" / "goldens"
    for name, scheme in SCHEMES.items():
        config = {**tiny.COMMON, **tiny.CONFIGS["llama"], "tie_word_embeddings": False, **SIZES, **scheme["config"]}
        folder = goldens / name
        folder.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(sum(name.encode()))
        stored, meant = {}, {}
        suffix = "_scale_inv" if scheme["layout"] == "block" else "_scale"
        for tensor, shape, kind in tiny.shapes(config):
            values = torch.from_numpy(np.ascontiguousarray(tiny.values(rng, config, shape, kind), dtype="<f4"))
            if not tensor.endswith("_proj.weight") or tensor == scheme.get("exempt"):
                stored[tensor] = values.bfloat16()
                meant[tensor] = stored[tensor].float()
                continue
            # Channels differ in size, so that a wrong scale is seen.
            values = values * torch.from_numpy(np.exp2(rng.uniform(-2, 1, (shape[0], 1))).astype("<f4"))
            stored[tensor], stored[tensor + suffix], meant[tensor] = quantise(values, scheme["layout"])
            if "hf_quant_config" in scheme:
                stored[tensor.replace(".weight", ".input_scale")] = torch.tensor(0.05)
                if "k_proj" in tensor or "v_proj" in tensor:
                    stored[tensor.replace(".weight", f".{tensor.split('.')[-2][0]}_scale")] = torch.tensor(0.1)
        write_safetensors(folder / "model.safetensors", stored)
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        if "hf_quant_config" in scheme:
            (folder / "hf_quant_config.json").write_text(json.dumps(scheme["hf_quant_config"], indent=1) + "\n")
        (folder / "generation_config.json").write_text(json.dumps(dict(eos_token_id=[258, 256])) + "\n")
        tiny.write_tokenizer(folder)
        plain = {key: value for key, value in config.items() if key != "quantization_config"}
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**plain), attn_implementation="eager")
        model = model.float().eval()
        missing, unexpected = model.load_state_dict(meant, strict=False)
        assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
        model.tie_weights()
        make_goldens.write_expectations(folder, model, make_goldens.prompts(name, config["vocab_size"],
                                                                            AutoTokenizer.from_pretrained(folder)))
        size = sum(file.stat().st_size for file in folder.iterdir())
        print(f"{name}: {size // 1024} KB")
        assert size < 500_000, name


if __name__ == "__main__":
    main()
