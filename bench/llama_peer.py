"""llama.cpp through its low-level C interface (PyPI llama-cpp-python): prefill, decode, and several sequences in one
batch. Greedy; the batch arrays are filled outside the measured time."""
import ctypes
import time

import llama_cpp as ll
import numpy as np


class LlamaPeer:
    def __init__(self, path: str, threads: int):
        ll.llama_backend_init()
        # Its log would run through the table; errors still surface as return codes.
        self._silent = ll.llama_log_callback(lambda level, text, data: None)
        ll.llama_log_set(self._silent, ctypes.c_void_p(0))
        self.model = ll.llama_model_load_from_file(path.encode(), ll.llama_model_default_params())
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        self.single = self._context(4096, 1, threads)
        self.many = self._context(8 * 512, 8, threads)
        self.vocab_size = ll.llama_vocab_n_tokens(ll.llama_model_get_vocab(self.model))

    def _context(self, num_tokens: int, num_sequences: int, threads: int):
        params = ll.llama_context_default_params()
        params.n_ctx = num_tokens
        params.n_batch = 2048
        params.n_seq_max = num_sequences
        params.n_threads = params.n_threads_batch = threads
        context = ll.llama_init_from_model(self.model, params)
        if not context:
            raise RuntimeError("llama.cpp cannot make a context")
        return context

    @staticmethod
    def _batch(entries: list[tuple[int, int, int, bool]]):
        """entries: (token, position, sequence, wants logits)."""
        batch = ll.llama_batch_init(len(entries), 0, 1)
        batch.n_tokens = len(entries)
        for i, (token, position, sequence, logits) in enumerate(entries):
            batch.token[i] = token
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = logits
        return batch

    def _forward(self, context, batch) -> None:
        code = ll.llama_decode(context, batch)
        if code != 0:
            raise RuntimeError(f"llama_decode: {code}")

    def _greedy(self, context, index: int) -> int:
        """The likeliest token; numpy's argmax is quicker than llama.cpp's sampler, which copies the logits first."""
        logits = ll.llama_get_logits_ith(context, index)
        return int(np.ctypeslib.as_array(logits, (self.vocab_size,)).argmax())

    def _prompt_batch(self, prompt: list[int], sequence: int = 0):
        last = len(prompt) - 1
        return self._batch([(token, i, sequence, i == last) for i, token in enumerate(prompt)])

    def prefill_rate(self, prompt: list[int]) -> float:
        ll.llama_memory_clear(ll.llama_get_memory(self.single), True)
        batch = self._prompt_batch(prompt)
        begin = time.monotonic()
        self._forward(self.single, batch)
        self._greedy(self.single, -1)
        rate = len(prompt) / (time.monotonic() - begin)
        ll.llama_batch_free(batch)
        return rate

    def decode_rate(self, prompts: list[list[int]], num_tokens: int) -> float:
        """Tokens per second of all sequences together, the prompts not counted."""
        context = self.single if len(prompts) == 1 else self.many
        ll.llama_memory_clear(ll.llama_get_memory(context), True)
        tokens = []
        for sequence, prompt in enumerate(prompts):
            batch = self._prompt_batch(prompt, sequence)
            self._forward(context, batch)
            tokens.append(self._greedy(context, -1))
            ll.llama_batch_free(batch)
        batch = self._batch([(token, len(prompts[i]), i, True) for i, token in enumerate(tokens)])
        begin = time.monotonic()
        for _ in range(num_tokens - 1):
            self._forward(context, batch)
            for i in range(len(prompts)):
                batch.token[i] = self._greedy(context, i)
                batch.pos[i] += 1
        rate = len(prompts) * (num_tokens - 1) / (time.monotonic() - begin)
        ll.llama_batch_free(batch)
        return rate
