#!/usr/bin/env python3
"""Gives a bundled configuration a real vocabulary, so that grammars can be measured on a model with dummy weights.

    bench/dummy_vocabulary.py configs/llama-3-8b VOCAB.gguf DIR

DIR gets the configuration with tokenizer.json made of the byte-level BPE in VOCAB.gguf, whose size replaces vocab_size.
Such files are in the source package of llama-cpp-python: vendor/llama.cpp/models/ggml-vocab-llama-bpe.gguf (128256
tokens), ggml-vocab-qwen35.gguf (248320). Needs: pip install gguf==0.19.0.
"""
import json
import pathlib
import shutil
import sys

from gguf import GGUFReader

# How text is cut into words before pairs are joined; masks do not depend on it.
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
NORMAL, CONTROL = 1, 3


def main(config_dir: pathlib.Path, vocab: pathlib.Path, out: pathlib.Path) -> None:
    fields = GGUFReader(vocab).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    kinds = fields["tokenizer.ggml.token_type"].contents()
    shutil.copytree(config_dir, out, dirs_exist_ok=True)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    added = [{"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": kind == CONTROL} for i, (token, kind) in enumerate(zip(tokens, kinds)) if kind != NORMAL]
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": WORDS}, "behavior": "Isolated", "invert": False}, byte_level]},
        "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": True,
                  "vocab": {token: i for i, (token, kind) in enumerate(zip(tokens, kinds)) if kind == NORMAL},
                  "merges": fields["tokenizer.ggml.merges"].contents()}}
    (out / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False))
    config = json.loads((config_dir / "config.json").read_text())
    config.get("text_config", config)["vocab_size"] = len(tokens)
    (out / "config.json").write_text(json.dumps(config, indent=1))
    settings = json.loads((config_dir / "tokenizer_config.json").read_text())
    special = [entry["content"] for entry in added if entry["special"]]
    settings["eos_token"] = next(name for name in special if "end" in name or "eot" in name)
    settings.pop("pad_token", None)
    (out / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))


if __name__ == "__main__":
    main(*map(pathlib.Path, sys.argv[1:4]))
