#!/usr/bin/env python3
"""Writes tests/goldens/quants/TYPE.bin: random blocks of each GGUF type, then what PyPI's gguf says they mean.

Layout of a file: 8 blocks in stored form, then 8 * block elements as little-endian float32.
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
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
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
        for offset in offsets:
            scale = (rng.standard_normal(count) * 0.01).astype(np.float16)
            scale[0] = np.float16(6e-8)  # the smallest subnormal
            scale[1] = np.float16(-0.0)
            scale[2] = np.float16(65504)
            blocks[:, offset : offset + 2] = scale.view(np.uint8).reshape(count, 2)
        values = dequantize(blocks, kind).astype("<f4").reshape(-1)
        assert values.size == count * elems and np.isfinite(values).all()
        (out / f"{name}.bin").write_bytes(blocks.tobytes() + values.tobytes())


if __name__ == "__main__":
    main()
