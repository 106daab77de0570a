#!/usr/bin/env python3
"""Measures how fast a checkpoint loads beside how fast its disk reads it. Needs numpy; run where the GPU is.

    tools/bench_load.py FOLDER [--config configs/gpt-oss-20b] [--program build/tailrace_ids] [--device cuda] [--keep]

Writes the shape's checkpoint into FOLDER (13.8 GB for gpt-oss-20b: safetensors shards as published, MXFP4 experts, random
values), measures cold reads of it, then lets the program load it cold and prints its own line with the share of the
disk's rate. "Cold": written through to the disk, then dropped from the page cache, by /proc/sys/vm/drop_caches where
that may be written and by posix_fadvise everywhere; what a virtual disk's host keeps cannot be dropped from here.
"""
import argparse
import json
import mmap
import os
import pathlib
import re
import shutil
import subprocess
import threading
import time

import numpy as np

SHARD_BYTES = 5 << 30
POOL_VALUES = 1 << 25
READ_BYTES = 1 << 30  # of each measurement of the disk
PIECE = 8 << 20


def tensors_of(config):
    """(name, dtype, shape, kind of values) of every tensor of gpt-oss, as published."""
    hidden, experts, rows = config["hidden_size"], config["num_local_experts"], config["intermediate_size"]
    q, kv = (config[key] * config["head_dim"] for key in ("num_attention_heads", "num_key_value_heads"))
    yield "model.embed_tokens.weight", "BF16", (config["vocab_size"], hidden), "normal"
    for layer in range(config["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{p}{norm}.weight", "BF16", (hidden,), "norm"
        for name, width in (("q", q), ("k", kv), ("v", kv)):
            yield f"{p}self_attn.{name}_proj.weight", "BF16", (width, hidden), "normal"
            yield f"{p}self_attn.{name}_proj.bias", "BF16", (width,), "normal"
        yield f"{p}self_attn.o_proj.weight", "BF16", (hidden, q), "normal"
        yield f"{p}self_attn.o_proj.bias", "BF16", (hidden,), "normal"
        yield f"{p}self_attn.sinks", "BF16", (config["num_attention_heads"],), "normal"
        yield f"{p}mlp.router.weight", "BF16", (experts, hidden), "normal"
        yield f"{p}mlp.router.bias", "BF16", (experts,), "normal"
        for name, outputs, inputs in (("gate_up_proj", 2 * rows, hidden), ("down_proj", hidden, rows)):
            e = f"{p}mlp.experts.{name}"
            yield f"{e}_bias", "BF16", (experts, outputs), "normal"
            yield f"{e}_blocks", "U8", (experts, outputs, inputs // 32, 16), "bytes"
            yield f"{e}_scales", "U8", (experts, outputs, inputs // 32), "scales"
    yield "model.norm.weight", "BF16", (hidden,), "norm"
    yield "lm_head.weight", "BF16", (config["vocab_size"], hidden), "normal"


def bf16(values):
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def make_pools(rng):
    values = rng.standard_normal(POOL_VALUES, dtype=np.float32)
    return {"normal": bf16(0.02 * values).view(np.uint8), "norm": bf16(1 + 0.1 * values[: 1 << 16]).view(np.uint8),
            "bytes": rng.integers(0, 256, POOL_VALUES, np.uint8), "scales": rng.integers(116, 122, POOL_VALUES, np.uint8)}


def size_of(dtype, shape):
    return int(np.prod(shape)) * (2 if dtype == "BF16" else 1)


def write_shard(path, tensors, pools, rng):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, dtype, shape, _ in tensors:
        end = at + size_of(dtype, shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb", buffering=0) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, dtype, shape, kind in tensors:
            left, pool = size_of(dtype, shape), pools[kind]
            while left > 0:
                first = int(rng.integers(0, len(pool) // 4)) * 2
                piece = pool[first:first + left]
                file.write(piece)
                left -= len(piece)
        os.fsync(file.fileno())


def write_checkpoint(folder, source):
    config = json.loads((source / "config.json").read_text())
    if config.get("model_type") != "gpt_oss":
        raise SystemExit(f"{source}: only gpt-oss is written")
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    pools = make_pools(rng)
    shards, sizes = [[]], [0]
    for tensor in sorted(tensors_of(config)):
        size = size_of(*tensor[1:3])
        if sizes[-1] + size > SHARD_BYTES:
            shards.append([]), sizes.append(0)
        shards[-1].append(tensor)
        sizes[-1] += size
    weight_map = {}
    for i, tensors in enumerate(shards):
        name = f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
        write_shard(folder / name, tensors, pools, rng)
        weight_map.update({tensor[0]: name for tensor in tensors})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, folder / name)
    return sum(sizes)


def drop_cache(folder):
    for path in folder.glob("*.safetensors"):
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
    try:
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("1\n")
    except OSError:
        pass


def read_rate(path, begin, threads, flags):
    """GB/s of `threads` that read READ_BYTES of the file from `begin` on, in turn, PIECE at a time."""
    end = min(begin + READ_BYTES, os.path.getsize(path) // PIECE * PIECE)

    def work(index):
        fd = os.open(path, os.O_RDONLY | flags)
        buffer = mmap.mmap(-1, PIECE)
        for at in range(begin + index * PIECE, end, threads * PIECE):
            os.preadv(fd, [buffer], at)
        os.close(fd)

    begun = time.perf_counter()
    workers = [threading.Thread(target=work, args=(index,)) for index in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return (end - begin) / (time.perf_counter() - begun) / 1e9


def measure_disk(folder):
    """The best of several cold reads: direct, and through the page cache, of as many threads."""
    path, best = sorted(folder.glob("*.safetensors"))[0], 0.0
    drop_cache(folder)
    for index, (threads, flags) in enumerate(((1, os.O_DIRECT), (4, os.O_DIRECT), (1, 0), (2, 0), (4, 0))):
        begin = index % 2 * READ_BYTES
        if index in (2, 4):
            drop_cache(folder)
        rate = read_rate(path, begin, threads, flags)
        print(f"disk             {threads} thread{'s' if threads > 1 else ''}, "
              f"{'direct' if flags else 'page cache'}: {rate:.2f} GB/s", flush=True)
        best = max(best, rate)
    return best


def load(args, folder):
    command = [args.program, "--model", str(folder), "--device", args.device, "--prompts", "1", "--prompt-len", "64",
               "--output-len", "4", "--max-running-requests", "4", "--stats"]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    line = re.search(r"^loaded +.*?([0-9.]+) GB/s.*$", run.stdout, re.M)
    if run.returncode != 0 or line is None:
        raise SystemExit(f"{' '.join(command)} ended with {run.returncode}:\n{run.stdout}")
    return line


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    root = pathlib.Path(__file__).resolve().parent.parent
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--config", type=pathlib.Path, default=root / "configs" / "gpt-oss-20b")
    parser.add_argument("--program", default=str(root / "build" / "tailrace_ids"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--keep", action="store_true", help="leave the checkpoint where it is")
    args = parser.parse_args()
    begun = time.perf_counter()
    written = write_checkpoint(args.folder, args.config)
    print(f"written          {written / 1e9:.2f} GB in {time.perf_counter() - begun:.1f} s", flush=True)
    disk = measure_disk(args.folder)
    for state in ("cold", "again"):
        if state == "cold":
            drop_cache(args.folder)
        line = load(args, args.folder)
        print(f"{line[0]} ({state}): {100 * float(line[1]) / disk:.0f} % of the disk's {disk:.2f} GB/s", flush=True)
    if not args.keep:
        shutil.rmtree(args.folder)


if __name__ == "__main__":
    main()
