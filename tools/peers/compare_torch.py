#!/usr/bin/env python3
"""moe_cpp as the experts of transformers' models (`set_experts_implementation("moe_cpp")`), and
around them too (`accelerate(model)`), against transformers' own implementations: one model, whose
implementation changes from turn to turn, so that everything else is the same.

  compare_torch.py train [--dtype f32|bf16|bf16-pure]     whole training steps of an OLMoE
  compare_torch.py generate --shape olmoe|qwen3           a prompt of 512 and decoding, in bf16

Prints the median of each and what the fastest of the others takes over each of ours. MOE_LIBRARY names
libmoe.so, PYTHONPATH the package, where they are not installed.
"""

import argparse
import copy
import json
import os
import statistics
import sys
import time

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

# batched_mm copies an expert's weights for every row: some 13 GB a step of training, 34 GB for a
# prompt of 512. It takes part in decoding alone.
OTHERS = {"train": ("grouped_mm", "eager"), "generate": ("grouped_mm", "eager", "batched_mm")}
OURS = ("moe_cpp", "accelerate")


def training(args):
    """step(implementation) -> {"step": seconds}."""
    sys.argv = [sys.argv[0], "--dtype", args.dtype, "--threads", str(args.threads), *args.rest]
    import moe_cpp.transformers
    import transformers_train

    model, step = transformers_train.build(transformers_train.arguments())

    def run(implementation):
        if implementation == "accelerate":
            moe_cpp.transformers.accelerate(model)
        else:
            model.set_experts_implementation(implementation)
        begin = time.perf_counter()
        step()
        took = time.perf_counter() - begin
        moe_cpp.transformers.restore(model)
        return {"step": took}

    return run


def generating(args):
    import moe_cpp.transformers
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(args.threads)
    torch.set_default_dtype(torch.bfloat16)
    torch.manual_seed(1)
    shape = dict(
        vocab_size=1024,
        hidden_size=2048,
        num_hidden_layers=4,
        num_attention_heads=16,
        max_position_embeddings=4096,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        num_experts_per_tok=8,
    )
    if args.shape == "olmoe":
        config = transformers.OlmoeConfig(
            intermediate_size=1024, num_key_value_heads=16, num_experts=64, **shape
        )
    else:
        config = transformers.Qwen3MoeConfig(
            intermediate_size=768,
            moe_intermediate_size=768,
            num_key_value_heads=4,
            head_dim=128,
            num_experts=128,
            **shape,
        )
    own = transformers.AutoModelForCausalLM.from_config(config).eval()
    prompt = torch.randint(0, 1024, (1, args.prompt))

    # Another model of the same tensors, so that what is laid out for it stays so between turns.
    accelerated = copy.deepcopy(own, {id(p): p for p in own.parameters()})
    moe_cpp.transformers.accelerate(accelerated)

    @torch.no_grad()
    def run(implementation):
        reads = "grouped_mm" if implementation == "batched_mm" else implementation
        model = accelerated if implementation == "accelerate" else own
        if model is own:
            own.set_experts_implementation(reads)
        begin = time.perf_counter()
        out = model(input_ids=prompt, use_cache=True)
        took = {} if reads != implementation else {"prompt": time.perf_counter() - begin}
        if model is own:
            own.set_experts_implementation(implementation)
        begin = time.perf_counter()
        for _ in range(args.tokens):
            out = model(
                input_ids=out.logits[:, -1:].argmax(-1),
                past_key_values=out.past_key_values,
                use_cache=True,
            )
        took["decode"] = (time.perf_counter() - begin) / args.tokens
        return took

    return run


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("train", "generate"))
    parser.add_argument("--dtype", choices=("f32", "bf16", "bf16-pure"), default="f32")
    parser.add_argument("--shape", choices=("olmoe", "qwen3"), default="olmoe")
    for name, value in (("rounds", 7), ("threads", 2), ("prompt", 512), ("tokens", 16)):
        parser.add_argument("--" + name, type=int, default=value)
    args, args.rest = parser.parse_known_args()

    import moe_cpp.transformers  # noqa: F401

    run = training(args) if args.what == "train" else generating(args)
    ours, others = OURS, OTHERS[args.what]
    times = {}
    for turn in range(-1, args.rounds):  # the first is not counted: weights are packed in it
        for name in (*ours, *others) if turn % 2 else (*reversed(others), *reversed(ours)):
            for part, seconds in run(name).items():
                if turn >= 0:
                    times.setdefault(part, {}).setdefault(name, []).append(seconds)
    for part, by_name in times.items():
        medians = {name: 1e3 * statistics.median(all_) for name, all_ in by_name.items()}
        fastest = min((n for n in others if n in medians), key=medians.get)
        about = {
            "part": part,
            "ms": {name: round(ms, 2) for name, ms in medians.items()},
            "fastest_other": fastest,
        }
        for name in ours:
            ratios = sorted(
                other / own for own, other in zip(by_name[name], by_name[fastest], strict=True)
            )
            quarter = len(ratios) // 4
            about[name] = {
                "ratio": round(statistics.median(ratios), 3),
                "quartiles": [round(ratios[quarter], 3), round(ratios[-1 - quarter], 3)],
            }
        print(json.dumps(about), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
