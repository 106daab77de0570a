"""A tiny Qwen3-shaped checkpoint whose greedy answer to the message NAME is script NAME, token by token.

Every projection into the residual stream is zero and embeddings are one-hot, so the next token depends on the last
alone. The chat template ends the prompt with the token <|s:NAME|> when the last message is NAME, whose successor is the
script's first step. No step may come twice in one checkpoint, but the last of a script: that one then never ends."""

import json
import pathlib
import struct

import numpy as np

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, INNER = 1024, 2, 4, 2, 64, 128

# Conversations as Qwen3's template writes them, in short.
QWEN_TEMPLATE = """\
{%- for tool in tools or [] %}{{ tool | tojson }}{% endfor %}
{%- for m in messages %}<|im_start|>{{ m.role }}
{%- if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}
{%- for call in m.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>{% endfor %}<|im_start|>assistant
{%- if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"""
PLAIN_TAGS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]


def byte_letters() -> dict[int, str]:
    """GPT-2's printable stand-ins for bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


def write_tokenizer(folder: pathlib.Path, scripts: dict[str, list[str]], tags: list[str]) -> dict[str, int]:
    """Returns the ids of all steps, tags and triggers; tags are special tokens, but for those of Qwen."""
    letters = byte_letters()
    spell = lambda text: "".join(letters[byte] for byte in text.encode())
    vocab = {letter: byte for byte, letter in letters.items()}
    for step in [step for steps in scripts.values() for step in steps if step not in tags]:
        vocab.setdefault(spell(step), len(vocab))
    added = ["<|im_start|>", "<|im_end|>", *(f"<|s:{name}|>" for name in scripts), *tags]
    ids = {text: len(vocab) + i for i, text in enumerate(added)}
    level = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=False, use_regex=True)
    tokenizer = dict(
        version="1.0",
        truncation=None,
        padding=None,
        normalizer=None,
        pre_tokenizer=level,
        post_processor=None,
        decoder=level,
        added_tokens=[
            dict(
                id=ids[text],
                content=text,
                single_word=False,
                lstrip=False,
                rstrip=False,
                normalized=False,
                special=text not in PLAIN_TAGS,
            )
            for text in added
        ],
        model=dict(
            type="BPE",
            dropout=None,
            unk_token=None,
            continuing_subword_prefix=None,
            end_of_word_suffix=None,
            fuse_unk=False,
            byte_fallback=False,
            ignore_merges=False,
            vocab=vocab,
            merges=[],
        ),
    )
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return {step: vocab[spell(step)] for steps in scripts.values() for step in steps if step not in tags} | ids


def write_weights(folder: pathlib.Path, vocab: int, successor: dict[int, int], eos: int) -> None:
    assert vocab <= HIDDEN
    embed, head = np.zeros((vocab, HIDDEN), np.float32), np.zeros((vocab, HIDDEN), np.float32)
    for token in range(vocab):
        embed[token, token] = 1
        head[successor.get(token, eos), token] = 1
    tensors = {
        "model.embed_tokens.weight": embed,
        "lm_head.weight": head,
        "model.norm.weight": np.ones(HIDDEN, np.float32),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}{name}.weight"] = np.ones(HIDDEN, np.float32)
        for name in ("q_norm", "k_norm"):
            tensors[f"{prefix}self_attn.{name}.weight"] = np.ones(HEAD_DIM, np.float32)
        shapes = {
            "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
            "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
            "mlp.gate_proj": (INNER, HIDDEN),
            "mlp.up_proj": (INNER, HIDDEN),
            "mlp.down_proj": (HIDDEN, INNER),
        }
        tensors |= {f"{prefix}{name}.weight": np.zeros(shape, np.float32) for name, shape in shapes.items()}
    header, data = {}, b""
    for name, values in tensors.items():
        raw = (values.view(np.uint32) >> 16).astype("<u2").tobytes()  # 0 and 1 are exact in BF16
        header[name] = dict(dtype="BF16", shape=list(values.shape), data_offsets=[len(data), len(data) + len(raw)])
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_checkpoint(
    folder: pathlib.Path, scripts: dict[str, list[str]], template: str, tags: list[str], triggers: bool = True
) -> None:
    """`template` writes the conversation; the trigger is put after it, unless the template is to stay as it is."""
    folder.mkdir()
    ids = write_tokenizer(folder, scripts, tags)
    eos = ids["<|im_end|>"]
    successor: dict[int, int] = {}
    for name, steps in scripts.items():
        path = [ids[f"<|s:{name}|>"], *(ids[step] for step in steps)]
        if steps[-1] not in steps[:-1]:
            path.append(eos)
        for token, following in zip(path, path[1:]):
            assert successor.setdefault(token, following) == following, f"a step of {name} has two successors"
    vocab = max(ids.values()) + 1
    write_weights(folder, vocab, successor, eos)
    trigger = "".join(f"{{% if messages[-1].content == '{name}' %}}<|s:{name}|>{{% endif %}}" for name in scripts)
    if triggers:
        template += trigger
    config = dict(
        architectures=["Qwen3ForCausalLM"],
        model_type="qwen3",
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        intermediate_size=INNER,
        vocab_size=vocab,
        max_position_embeddings=32768,
        rms_norm_eps=1e-6,
        rope_theta=10000.0,
        rope_scaling=None,
        hidden_act="silu",
        attention_bias=False,
        tie_word_embeddings=False,
        use_sliding_window=False,
        sliding_window=None,
        torch_dtype="bfloat16",
        bos_token_id=None,
        eos_token_id=eos,
    )
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps(dict(eos_token_id=[eos], temperature=0.0)))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(dict(bos_token="<|im_start|>", eos_token="<|im_end|>", chat_template=template))
    )
