#!/usr/bin/env python3
"""Writes expected.json and logits.bin beside the tiny checkpoints of tests/goldens: what transformers computes.

float32 arithmetic on the bf16 weights, eager attention, no cache; keys and values are rounded to bfloat16 before
attention reads them, as the KV cache stores them, so that tests can ask for far more than bfloat16's precision.
Per prompt: its token ids, the positions whose logits are kept (logits.bin holds them as little-endian float32,
[prompts][positions][vocab]), the greedy continuation of 16 tokens, and the logit margin of each of those over the
runner-up. Needs: tools/requirements-goldens.txt.
"""
import importlib
import json
import pathlib
import sys

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

CONTINUATION = 16
TEXT = ("The reservoir above the mill kept the wheel turning all summer; what ran off below it, "
        "they called the tailrace.")
# Around the window of 24 (Mistral) and 32 (Gemma 3), around blocks of 16 and 64.
POSITIONS = [0, 1, 15, 16, 23, 24, 31, 32, 33, 63, 64]


def round_keys_and_values():
    for family in ("llama", "mistral", "qwen2", "qwen3", "gemma3", "gemma4", "gemma4_unified",
                   "gpt_oss", "qwen3_5", "qwen3_5_moe"):
        module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
        eager = module.eager_attention_forward

        def rounded(layer, query, key, value, *args, eager=eager, **kwargs):
            return eager(layer, query, key.bfloat16().float(), value.bfloat16().float(), *args, **kwargs)

        module.eager_attention_forward = rounded


def prompts(name, vocab, tokenizer):
    rng = np.random.default_rng(1000 + sum(name.encode()))
    return [tokenizer(TEXT[:99], add_special_tokens=False).input_ids, rng.integers(0, vocab, 40).tolist(),
            rng.integers(0, vocab, 73).tolist()]


@torch.no_grad()
def expectation(model, ids):
    logits = model(torch.tensor([ids]), use_cache=False).logits[0].numpy()
    positions = [p for p in POSITIONS if p < len(ids) - 1] + [len(ids) - 1]
    tokens, margins = [], []
    context = list(ids)
    for _ in range(CONTINUATION):
        last = model(torch.tensor([context]), use_cache=False).logits[0, -1].numpy()
        best, second = np.sort(last)[::-1][:2]
        context.append(int(last.argmax()))
        tokens.append(context[-1])
        margins.append(round(float(best - second), 6))
    return dict(ids=ids, positions=positions, greedy=tokens, margins=margins), logits[positions]


def write_expectations(folder, model, prompt_ids):
    results = [expectation(model, ids) for ids in prompt_ids]
    document = dict(vocab=model.config.vocab_size, prompts=[result for result, _ in results])
    (folder / "expected.json").write_text(json.dumps(document, separators=(",", ":")) + "\n")
    kept = np.concatenate([logits for _, logits in results]).astype("<f4")
    (folder / "logits.bin").write_bytes(kept.tobytes())
    margins = np.array([result["margins"] for result, _ in results])
    print(f"{folder.name}: logits std {kept.std():.2f}, least margin {margins.min():.4f}, "
          f"median {np.median(margins):.3f}, distinct tokens {len({t for r, _ in results for t in r['greedy']})}")


def main():
    goldens = pathlib.Path(__file__).resolve().parent.parent / "tests" / "goldens"
    torch.set_num_threads(1)
    round_keys_and_values()
    for folder in sorted(path.parent for path in goldens.glob("*/config.json")):
        if len(sys.argv) > 1 and folder.name not in sys.argv[1:]:
            continue
        # Written with their checkpoints by make_tiny_*.py.
        if folder.name.startswith(("fp8_", "gpt_oss", "gemma4", "qwen3_5")):
            continue
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        tokenizer = AutoTokenizer.from_pretrained(folder)
        write_expectations(folder, model, prompts(folder.name, model.config.vocab_size, tokenizer))


if __name__ == "__main__":
    main()
