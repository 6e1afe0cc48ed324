#!/usr/bin/env python3
"""Loads a folder that `moe train --recipe nanomoe` wrote into nanoMoE's model
(tools/golden/nanomoe.py), strictly, and compares log-probabilities with `moe score`'s, which routes
without dropping."""

import argparse
import json
import os
import sys

from safetensors.torch import load_file

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden"))
import nanomoe  # noqa: E402
import scores  # noqa: E402


def config_of(config, state):
    """Sizes from the tensors, which cannot be wrong; heads and top-k, which no tensor shows, from
    config.json."""
    layers = 1 + max(int(name.split(".")[2]) for name in state if name.startswith("transformer.h."))
    moe = sorted(
        {int(name.split(".")[2]) for name in state if name.endswith("mlp.router.w_g.weight")}
    )
    stride = moe[1] - moe[0] if len(moe) > 1 else layers
    experts = state[f"transformer.h.{moe[0]}.mlp.router.w_g.weight"].shape[0]
    return nanomoe.NanoMoEConfig(
        vocab_size=state["transformer.wte.weight"].shape[0],
        block_size=state["transformer.wpe.weight"].shape[0],
        n_layer=layers,
        n_head=config["num_attention_heads"],
        n_embd=state["transformer.wte.weight"].shape[1],
        bias="transformer.ln_f.bias" in state,
        n_exp=experts,
        top_k=config["num_experts_per_tok"],
        stride=stride,
        use_noisy_top_k=f"transformer.h.{moe[0]}.mlp.router.w_noise.weight" in state,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="model folder")
    parser.add_argument(
        "logprobs", help="what `moe score MODEL --text FILE --window W --per-token --json` printed"
    )
    parser.add_argument("--window", type=int, required=True)
    args = parser.parse_args()
    with open(os.path.join(args.model, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    state = load_file(os.path.join(args.model, "model.safetensors"))
    # The head is the embedding; a safetensors file holds a shared tensor once, nanoMoE's state dict
    # names it twice.
    state.setdefault("lm_head.weight", state["transformer.wte.weight"])
    model = nanomoe.NanoMoE(config_of(config, state))
    model.load_state_dict({name: value.float() for name, value in state.items()}, strict=True)
    model.eval()
    return scores.compare(
        "nanoMoE's model", lambda ids: model(ids, dropless=True), args.logprobs, args.window
    )


if __name__ == "__main__":
    sys.exit(main())
