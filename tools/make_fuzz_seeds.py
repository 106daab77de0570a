"""Writes the small hand-made seeds of the file-reader fuzzers to tests/fuzz/corpus/. Standard library only."""
import json
import pathlib
import struct

CORPUS = pathlib.Path(__file__).resolve().parents[1] / "tests/fuzz/corpus"
GGUF_TYPES = {"u8": (0, "<B"), "i32": (5, "<i"), "u32": (4, "<I"), "f32": (6, "<f"), "bool": (7, "<?"), "u64": (10, "<Q")}


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def pair(key: str, kind: str, value) -> bytes:
    if kind == "str":
        return string(key) + struct.pack("<I", 8) + string(value)
    if kind == "strs":
        return string(key) + struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(string, value))
    if kind.endswith("[]"):
        code, form = GGUF_TYPES[kind[:-2]]
        return string(key) + struct.pack("<IIQ", 9, code, len(value)) + b"".join(struct.pack(form, v) for v in value)
    code, form = GGUF_TYPES[kind]
    return string(key) + struct.pack("<I", code) + struct.pack(form, value)


def gguf(pairs: list[bytes], tensors: list[tuple[str, list[int], int, int]], version: int = 3) -> bytes:
    """tensors: (name, dims, type, bytes); data is zeros, each tensor aligned to 32."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(pairs)) + b"".join(pairs)
    offset = 0
    for name, dims, kind, size in tensors:
        head += string(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims)
        head += struct.pack("<IQ", kind, offset)
        offset += (size + 31) // 32 * 32
    return head + b"\0" * (-len(head) % 32) + b"\0" * offset


LLAMA = [
    pair("general.architecture", "str", "llama"), pair("llama.block_count", "u32", 1),
    pair("llama.context_length", "u32", 64), pair("llama.embedding_length", "u32", 32),
    pair("llama.feed_forward_length", "u32", 32), pair("llama.attention.head_count", "u32", 2),
    pair("llama.attention.head_count_kv", "u32", 1), pair("llama.attention.layer_norm_rms_epsilon", "f32", 1e-5),
    pair("llama.rope.freq_base", "f32", 10000.0), pair("llama.vocab_size", "u32", 4),
    pair("tokenizer.ggml.model", "str", "gpt2"), pair("tokenizer.ggml.tokens", "strs", ["a", "b", "ab", "<s>"]),
    pair("tokenizer.ggml.merges", "strs", ["a b"]), pair("tokenizer.ggml.token_type", "i32[]", [1, 1, 1, 3]),
]


def safetensors(header: dict, data: bytes, padding: int = 0) -> bytes:
    text = json.dumps(header).encode() + b" " * padding
    return struct.pack("<Q", len(text)) + text + data


SEEDS = {
    "gguf": {
        "empty": gguf([], []),
        "llama": gguf(LLAMA, [("token_embd.weight", [32, 4], 0, 512), ("blk.0.attn_q.weight", [32, 32], 8, 1088),
                              ("output_norm.weight", [32], 0, 128)]),
        "types": gguf([pair("a", "u8", 1), pair("b", "bool", True), pair("c", "u64", 2**63), pair("d", "f32[]", [1.5, -2]),
                       pair("general.alignment", "u32", 32)], [("t", [256, 2], 12, 288), ("u", [32, 1, 2], 2, 36)]),
        "version2": gguf(LLAMA[:2], [("x", [32], 1, 64)], version=2),
    },
    "safetensors": {
        "empty": safetensors({}, b""),
        "two": safetensors({"__metadata__": {"format": "pt"}, "a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
                            "b.weight": {"dtype": "BF16", "shape": [4], "data_offsets": [16, 24]}}, b"\0" * 24, padding=6),
        "scalar": safetensors({"s": {"dtype": "F16", "shape": [], "data_offsets": [0, 2]}}, b"\0\0"),
        "zero": safetensors({"z": {"dtype": "F32", "shape": [0, 5], "data_offsets": [0, 0]}}, b""),
    },
}


def main() -> None:
    for fuzzer, seeds in SEEDS.items():
        folder = CORPUS / fuzzer
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in seeds.items():
            (folder / name).write_bytes(data)


if __name__ == "__main__":
    main()
