#!/usr/bin/env python3
"""transformers in bf16 on the CPU, the same protocol as llama_peer.py: loads a model folder, then
for each line on standard input reads a prompt of random tokens and decodes some more."""

import argparse
import json
import sys
import time

import torch
import transformers
from transformers import AutoModelForCausalLM


class Runner:
    def __init__(self, args):
        torch.set_num_threads(args.threads)
        start = time.perf_counter()
        self.model = AutoModelForCausalLM.from_pretrained(
            args.model, dtype=torch.bfloat16, experts_implementation=args.experts_implementation
        )
        self.model.eval()
        self.load_seconds = time.perf_counter() - start
        self.generator = torch.Generator().manual_seed(1)

    @torch.inference_mode()
    def run(self, prompt, tokens):
        ids = torch.randint(
            self.model.config.vocab_size, (1, prompt + tokens), generator=self.generator
        )
        start = time.perf_counter()
        out = self.model(ids[:, :prompt], use_cache=True, logits_to_keep=1)
        middle = time.perf_counter()
        for i in range(prompt, prompt + tokens):
            out = self.model(
                ids[:, i : i + 1],
                past_key_values=out.past_key_values,
                use_cache=True,
                logits_to_keep=1,
            )
        return {"prompt_seconds": middle - start, "decode_seconds": time.perf_counter() - middle}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    for name, value in (("threads", 2), ("prompt", 512), ("tokens", 64)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument(
        "--experts-implementation", choices=("grouped_mm", "eager"), default="grouped_mm"
    )
    args = parser.parse_args()
    runner = Runner(args)
    runner.run(args.prompt, 4)
    print(
        json.dumps(
            {
                "peer": f"transformers {transformers.__version__}, torch {torch.__version__}",
                "load_seconds": runner.load_seconds,
            }
        ),
        flush=True,
    )
    for _ in sys.stdin:
        print(json.dumps(runner.run(args.prompt, args.tokens)), flush=True)


if __name__ == "__main__":
    main()
