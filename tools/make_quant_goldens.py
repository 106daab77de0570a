#!/usr/bin/env python3
"""Writes tests/goldens/quants/TYPE.bin: random blocks of each GGUF type, then what PyPI's gguf says they mean.

Layout of a file: 8 blocks in stored form, then 8 * block elements as little-endian float32. MXFP4_pair.bin is what
Hugging Face keeps in two tensors: 16 rows of 64 values, [32 bytes of nibbles | 2 scales] each, then the values by the
OCP definition.
Needs: pip install gguf==0.19.0 (numpy comes with it). Deterministic: a second run writes the same bytes.
"""
import pathlib

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

BLOCKS = 8
# Byte offsets of the half-precision scales within a block; all else may be any bits.
SCALES = {
    "F16": [0], "BF16": [], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "MXFP4": [],
}


def main():
    out = pathlib.Path(__file__).resolve().parent.parent / "tests" / "goldens" / "quants"
    out.mkdir(parents=True, exist_ok=True)
    for name, offsets in SCALES.items():
        kind = GGMLQuantizationType[name]
        elems, size = GGML_QUANT_SIZES[kind]
        count = BLOCKS if elems > 1 else 256
        rng = np.random.default_rng(sum(name.encode()))
        blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
        if name == "BF16":  # any finite number
            exponent = blocks[:, 1] & 0x7F
            blocks[:, 1] = (blocks[:, 1] & 0x80) | np.minimum(exponent, 0x7E)
        if name == "MXFP4":  # the least, the next, the largest that keeps 6 * 2^(e - 127) finite, then any
            blocks[:, 0] = [0, 1, 2, 252, *rng.integers(100, 140, count - 4)]
        for offset in offsets:
            scale = (rng.standard_normal(count) * 0.01).astype(np.float16)
            scale[0] = np.float16(6e-8)  # the smallest subnormal
            scale[1] = np.float16(-0.0)
            scale[2] = np.float16(65504)
            blocks[:, offset : offset + 2] = scale.view(np.uint8).reshape(count, 2)
        values = dequantize(blocks, kind).astype("<f4").reshape(-1)
        assert values.size == count * elems and np.isfinite(values).all()
        (out / f"{name}.bin").write_bytes(blocks.tobytes() + values.tobytes())
    write_pair(out)


def write_pair(out):
    rng = np.random.default_rng(44)
    nibbles, scales = rng.integers(0, 16, (16, 64), dtype=np.uint8), rng.integers(90, 150, (16, 2), dtype=np.uint8)
    magnitude = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    values = np.where(nibbles < 8, 1, -1) * magnitude[nibbles % 8] * 2.0 ** (scales.repeat(32, 1).astype(int) - 127)
    stored = np.concatenate([nibbles[:, ::2] | nibbles[:, 1::2] << 4, scales], 1)
    (out / "MXFP4_pair.bin").write_bytes(stored.tobytes() + values.astype("<f4").tobytes())


if __name__ == "__main__":
    main()
