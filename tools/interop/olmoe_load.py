#!/usr/bin/env python3
"""Loads a folder that `moe train` wrote as olmoe with transformers, f32, and compares
log-probabilities with `moe score`'s."""

import argparse
import sys

import torch
import transformers
from transformers import AutoModelForCausalLM

import scores


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="model folder")
    parser.add_argument(
        "logprobs", help="what `moe score MODEL --text FILE --window W --per-token --json` printed"
    )
    parser.add_argument("--window", type=int, required=True)
    args = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    model, info = AutoModelForCausalLM.from_pretrained(
        args.model, dtype=torch.float32, output_loading_info=True, local_files_only=True
    )
    if model.config.model_type != "olmoe":
        raise SystemExit(f"{args.model}: model_type is {model.config.model_type}, expected olmoe")
    wrong = {kind: sorted(names)[:4] for kind, names in info.items() if names}
    if wrong:
        raise SystemExit(f"{args.model}: transformers did not take every tensor: {wrong}")
    model.eval()
    return scores.compare(
        "transformers " + transformers.__version__,
        lambda ids: model(ids, use_cache=False).logits,
        args.logprobs,
        args.window,
    )


if __name__ == "__main__":
    sys.exit(main())
