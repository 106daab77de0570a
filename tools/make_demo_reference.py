"""Writes llama.cpp's answers on the demo model's file to tests/goldens/demo/, for the real-weights tests.

Run by a developer, rarely: .venv-bench/bin/python tools/make_demo_reference.py   (`make bench-cpu` fills that environment)
Needs: llama-cpp-python and numpy (tools/requirements-bench.txt), models/demo (tools/fetch_demo_model.sh).

logits.bin, little-endian, for NUM_TOKENS fixed tokens of prose.txt (no BOS):
  char magic[4] = "TRLG"; u32 version = 1; u32 num_tokens; u32 top; u32 vocab_size
  i32 tokens[num_tokens]
  then per position i (the distribution that follows tokens[0..i]):
    i32 ids[top]       the most likely tokens, best first
    f32 logprobs[top]  natural-log probabilities over the whole vocabulary
    f32 rest_logprob   log of the probability of all other tokens together
Mean KL(llama || ours) over positions: sum_top exp(lp) * (lp - lq) + exp(rest) * (rest - rest_q), where lq are our
log-probabilities of the same ids and rest_q is the log of our remaining mass. Top-1 agreement: our argmax == ids[0].

prose.txt was fixed before anything was compared and stays as it is. Quantised activations amplify rounding, so that close calls
on it fall either way: llama.cpp agrees with its own stored logits on 94.9 % of the most likely tokens with flash attention on,
and on 94.0 % token by token.

tokens.json: {"model": file name, "cases": [{"text": string, "ids": [int]}]}: llama.cpp's ids of each text, taken as plain
text (no BOS, special-token text not parsed).
"""
import json
import pathlib
import struct

import llama_cpp
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[1]
MODEL = ROOT / "models/demo/SmolLM2-135M-Instruct.Q4_1.gguf"
GOLDENS = ROOT / "tests/goldens/demo"
NUM_TOKENS, TOP = 512, 128

TEXTS = [
    "", " ", "  ", "   a", "a   ", "\n", "\n\n\n", " \n \n", "\t\tx\t", "\r\n\r\n", "\u00a0\u2003\u3000x", "\u200b\ufeff",
    "Hello, world!", "hello HELLO Hello hElLo", "don't won't I'll we've they're I'D SHE'S", "'s 't 're 've 'm 'll 'd",
    "1", "12", "123", "1234", "3.14159", "1,000,000", "0x1F", "1e-5", "2026-11-30T12:34:56Z", "v1.2.3-rc4", "٣٤٥ ५६७",
    "price: $4.99 (€4,50 or £4)", "50% off!!!", "a+b=c; x**2 != y//3", "user@example.org https://example.org/a?b=c&d=%20#e",
    "Grüße aus Köln, naïve façade, smörgåsbord", "cafe\u0301 e\u0301 n\u0303", "Ångström \u212b \ufb01", "ÀÉÎÕÜ ßẞ ıİ",
    "Привет, мир! Ещё раз: ёлка", "Γειά σου Κόσμε", "שלום עולם", "مرحبا بالعالم", "नमस्ते दुनिया", "สวัสดีชาวโลก",
    "你好，世界。今天天气很好！", "こんにちは世界、カタカナも", "안녕하세요 세계", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟙𝟚𝟛 𐍈",
    "😀", "🎉🎉 party", "👩‍👩‍👧‍👦 family", "🇩🇪🇫🇷 flags", "👍🏽 tone", "☃️ ❤️", "a😀b世c",
    "def f(x):\n    return x ** 2\n\nprint(f(3))\n", "int main(void) {\n\tprintf(\"%d\\n\", 1);\n\treturn 0;\n}\n",
    "SELECT * FROM t WHERE a >= 10 AND b LIKE '%x_y%';", "{\"key\": [1, 2.5, null, true], \"s\": \"\\u00e9\\n\"}",
    "<div class=\"a-b\"><p>text</p></div><!-- c -->", "#include <vector>\n// comment\n/* block */",
    "for i in $(seq 1 10); do echo \"$i\" | tee -a log.txt; done", "C:\\Users\\me\\file.txt /usr/local/bin ~/.config",
    "<|im_start|>user\nhi<|im_end|>", "<|endoftext|>", "<|im_", "|im_end|>", "[INST] <s> </s> <pad>",
    "snake_case camelCase PascalCase kebab-case SCREAMING_CASE", "supercalifragilisticexpialidocious antidisestablishmentarianism",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "ababababababababababab", "...........", "---------- ========== ______",
    "!?!?!?", "“quoted” ‘single’ «guillemets» — dash – en … ellipsis", "x² + y³ ≈ ∑ᵢ √2 ± ∞ ∂∇", "\u0000\u0001\u001b[31m\u007f",
    "line one\nline two\n\n  indented line three\n\ttabbed four   trailing   \nend",
]


def remaining_logprob(logprobs: np.ndarray, ids: np.ndarray) -> float:
    rest = np.delete(logprobs, ids)
    peak = rest.max()
    return float(peak + np.log(np.exp(rest - peak).sum()))


def write_logits(model: llama_cpp.Llama, tokens: list[int]) -> None:
    model.reset()
    model.eval(tokens)
    with open(GOLDENS / "logits.bin", "wb") as file:
        file.write(b"TRLG" + struct.pack("<4I", 1, len(tokens), TOP, model.n_vocab()))
        file.write(np.asarray(tokens, "<i4").tobytes())
        for logits in np.asarray(model.scores[: len(tokens)], np.float64):
            peak = logits.max()
            logprobs = logits - (peak + np.log(np.exp(logits - peak).sum()))
            ids = np.argsort(-logprobs, kind="stable")[:TOP]
            file.write(ids.astype("<i4").tobytes() + logprobs[ids].astype("<f4").tobytes())
            file.write(struct.pack("<f", remaining_logprob(logprobs, ids)))


def main() -> None:
    model = llama_cpp.Llama(str(MODEL), n_ctx=1024, n_threads=2, n_threads_batch=2, logits_all=True, verbose=False)
    prose = (GOLDENS / "prose.txt").read_text(encoding="utf-8")

    def encode(text: str) -> list[int]:
        return model.tokenize(text.encode(), add_bos=False, special=False)

    tokens = encode(prose)
    assert len(tokens) >= NUM_TOKENS, f"prose.txt has {len(tokens)} tokens, {NUM_TOKENS} are needed"
    write_logits(model, tokens[:NUM_TOKENS])
    texts = [*TEXTS, "\n".join(TEXTS), prose]
    cases = [{"text": text, "ids": encode(text)} for text in texts]
    lines = ",\n".join(json.dumps(case, ensure_ascii=True) for case in cases)
    (GOLDENS / "tokens.json").write_text(f'{{"model": "{MODEL.name}", "cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
