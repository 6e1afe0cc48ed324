"""llama.cpp as an oracle: logits, perplexity, greedy tokens and its own quantiser, through
llama-cpp-python (pinned in tools/requirements-llama.txt)."""

import ctypes
import math

import gguf
import llama_cpp
import numpy as np

FILE_TYPES = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q8_0": 7,
    "q5_0": 8,
    "q5_1": 9,
    "q2_k": 10,
    "q3_k_s": 11,
    "q3_k_m": 12,
    "q3_k_l": 13,
    "q4_k_s": 14,
    "q4_k_m": 15,
    "q5_k_s": 16,
    "q5_k_m": 17,
    "q6_k": 18,
    "iq2_xxs": 19,
    "iq2_xs": 20,
    "iq3_xs": 22,
    "iq3_xxs": 23,
    "iq1_s": 24,
    "iq4_nl": 25,
    "iq3_s": 26,
    "iq3_m": 27,
    "iq2_s": 28,
    "iq2_m": 29,
    "iq4_xs": 30,
    "iq1_m": 31,
    "bf16": 32,
    "tq1_0": 36,
    "tq2_0": 37,
    "mxfp4_moe": 38,
}


class Engine:
    def __init__(self, path, context, threads=2, batch=512, adapter=None):
        self.path = str(path)
        self.llama = llama_cpp.Llama(
            model_path=self.path,
            n_ctx=context,
            n_batch=batch,
            n_threads=threads,
            n_threads_batch=threads,
            logits_all=True,
            lora_path=adapter,
            verbose=False,
        )

    def tokenize(self, text):
        """Ids of a text (bytes) in one piece, no token added."""
        return self.llama.tokenize(text, add_bos=False, special=False)

    def logits(self, ids):
        """[n, V] f32; a view until the next call."""
        self.llama.reset()
        self.llama.eval(list(ids))
        return self.llama.scores[: len(ids)]

    def cross_entropy(self, ids):
        """Mean over the n - 1 predictions of a window."""
        logits, total = self.logits(ids), 0.0
        for begin in range(0, len(ids) - 1, 128):
            rows = logits[begin : min(begin + 128, len(ids) - 1)].astype(np.float64)
            top = rows.max(axis=1)
            targets = np.asarray(ids[begin + 1 : begin + 1 + len(rows)])
            total += float(
                (
                    top
                    + np.log(np.exp(rows - top[:, None]).sum(axis=1))
                    - rows[np.arange(len(rows)), targets]
                ).sum()
            )
        return total / (len(ids) - 1)

    def perplexity(self, windows):
        """exp of the mean over windows of their cross-entropies."""
        return math.exp(sum(self.cross_entropy(window) for window in windows) / len(windows))

    def next_logits(self, ids):
        """[V] after the last of the ids."""
        return np.array(self.logits(ids)[-1], dtype=np.float64)

    def extend(self, token):
        """[V] after one more token."""
        self.llama.eval([int(token)])
        return np.array(self.llama.scores[self.llama.n_tokens - 1], dtype=np.float64)

    def close(self):
        self.llama.close()


def read_imatrix(path):
    """{tensor: mean squares, one matrix after another}, as llama-quantize makes them of a file."""
    tensors = {t.name: np.array(t.data) for t in gguf.GGUFReader(path).tensors}
    means = {}
    for name, squares in tensors.items():
        if not name.endswith(".in_sum2"):
            continue
        tensor = name.removesuffix(".in_sum2")
        counts = tensors[f"{tensor}.counts"].reshape(-1, 1)
        rows = squares.reshape(len(counts), -1)
        # a matrix that met nothing weighs all columns alike
        means[tensor] = np.where(counts > 0, rows / np.maximum(counts, 1), 1).astype(np.float32)
    return means


def quantise(source, target, name, threads=2, imatrix=None):
    """llama.cpp's own quantiser."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.nthread, params.ftype = threads, FILE_TYPES[name]
    if imatrix:
        means = {key: np.ascontiguousarray(x) for key, x in read_imatrix(imatrix).items()}
        # the last one ends the list
        entries = (llama_cpp.llama_model_imatrix_data * (len(means) + 1))()
        for entry, (key, x) in zip(entries, means.items()):
            entry.name, entry.size = key.encode(), x.size
            entry.data = x.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        params.imatrix = entries
    if (
        llama_cpp.llama_model_quantize(
            str(source).encode(), str(target).encode(), ctypes.byref(params)
        )
        != 0
    ):
        raise SystemExit(f"llama.cpp could not quantise {source} to {name}")
