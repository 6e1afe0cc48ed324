#!/usr/bin/env python3
"""llama.cpp through llama-cpp-python: loads one GGUF, then for each line on standard input reads a
prompt of random tokens and decodes some more, and prints one JSON object with the seconds of both.
Its own defaults: mapped, with the weights repacked as its build for this machine does, flash
attention as it chooses."""

import argparse
import json
import random
import sys
import time

import llama_cpp as ll

LOG = ll.llama_log_callback(lambda level, text, data: None)


class Runner:
    def __init__(self, args):
        ll.llama_log_set(LOG, None)
        ll.llama_backend_init()
        start = time.perf_counter()
        self.model = ll.llama_load_model_from_file(
            args.model.encode(), ll.llama_model_default_params()
        )
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {args.model}")
        params = ll.llama_context_default_params()
        params.n_ctx = args.prompt + args.tokens + 8
        # A long prompt is read in pieces: what a piece takes of memory grows with its square.
        params.n_batch = max(args.prompt, 512)
        params.n_ubatch = min(params.n_batch, 2048)
        params.n_threads = params.n_threads_batch = args.threads
        self.context = ll.llama_new_context_with_model(self.model, params)
        self.load_seconds = time.perf_counter() - start
        self.args = args
        self.vocab = ll.llama_vocab_n_tokens(ll.llama_model_get_vocab(self.model))
        self.random = random.Random(1)

    def _decode(self, ids):
        tokens = (ll.llama_token * len(ids))(*ids)  # the batch is a view of it
        if ll.llama_decode(self.context, ll.llama_batch_get_one(tokens, len(ids))) != 0:
            raise SystemExit("llama_decode failed")
        return ll.llama_get_logits_ith(self.context, -1)

    def run(self, prompt, tokens):
        ll.llama_memory_clear(ll.llama_get_memory(self.context), True)
        ids = [self.random.randrange(self.vocab) for _ in range(prompt + tokens)]
        start = time.perf_counter()
        self._decode(ids[:prompt])
        middle = time.perf_counter()
        for i in ids[prompt:]:
            self._decode([i])
        return {"prompt_seconds": middle - start, "decode_seconds": time.perf_counter() - middle}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    for name, value in (("threads", 2), ("prompt", 512), ("tokens", 64)):
        parser.add_argument("--" + name, type=int, default=value)
    args = parser.parse_args()
    runner = Runner(args)
    runner.run(args.prompt, 4)
    print(
        json.dumps(
            {
                "peer": f"llama-cpp-python {ll.__version__}",
                "load_seconds": runner.load_seconds,
                "system": ll.llama_print_system_info().decode().strip(),
            }
        ),
        flush=True,
    )
    for _ in sys.stdin:
        print(json.dumps(runner.run(args.prompt, args.tokens)), flush=True)


if __name__ == "__main__":
    main()
