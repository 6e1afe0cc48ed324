#!/usr/bin/env python3
"""Adapters and PEFT, in both directions, on tiny random models of transformers: what `moe train
--tune lora` leaves is loaded by PEFT onto the model it started from and gives the log-probabilities
of the tuned model, and what PEFT saves, merged by `moe convert --adapter`, gives PEFT's.
"""

import argparse
import os
import sys

import peft
import torch
import transformers

import architectures
import delta_reference
import scores

# What PEFT adapts in each family: all matrices of its blocks, by the last word of their names.
TARGETS = {
    "llama": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    "qwen2": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    "gpt2": ["c_attn", "c_proj", "c_fc"],
    # Rows of these lie otherwise in the file than here. Its experts are no modules that PEFT could
    # adapt, so there is no way back.
    "deepseek_v3": ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"],
    "qwen3_next": ["in_proj_qkvz", "in_proj_ba", "out_proj", "q_proj", "k_proj", "v_proj", "o_proj"],
}
ONE_WAY = {"deepseek_v3", "qwen3_next"}
MOVED = 0.1  # nats by which an adapter must change a prediction on average, or equal scores say nothing of it


def logprobs(path):
    return scores.read(path, architectures.WINDOW)[1]


def base_of(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, local_files_only=True, attn_implementation="eager"
    )


def compare(name, model, before, after):
    moved = float((logprobs(after) - logprobs(before)).abs().mean())
    model.eval()
    if delta_reference.takes(model.get_base_model()):
        delta_reference.compute_in_double(model.get_base_model())
    equal = (
        scores.compare(
            name, lambda ids: model(ids, use_cache=False).logits, after, architectures.WINDOW
        )
        == 0
    )
    print(f"{name}: the adapter moves a prediction by {moved:.2f} nats (at least {MOVED})")
    return equal and moved >= MOVED


def ours_in_peft(moe, folder, before):
    out = folder + ".tuned"
    moe.run(
        "train",
        "--from",
        folder,
        "--data",
        moe.train_text,
        "--out",
        out,
        "--tune",
        "lora",
        "--lora-rank",
        4,
        "--lora-alpha",
        8,
        "--context",
        64,
        "--batch",
        4,
        "--steps",
        20,
        "--warmup",
        0,
        "--lr",
        1e-2,
        "--dtype",
        "f32",
        "--no-report",
    )
    model = peft.PeftModel.from_pretrained(base_of(folder), out)
    return compare("ours in peft " + peft.__version__, model, before, moe.score(out))


def peft_in_ours(moe, family, folder, before):
    adapter, merged = folder + ".peft", folder + ".merged"
    config = peft.LoraConfig(
        r=4,
        lora_alpha=6,
        use_rslora=True,
        target_modules=TARGETS[family],
        rank_pattern={TARGETS[family][0]: 6},
        task_type="CAUSAL_LM",
        fan_in_fan_out=family == "gpt2",
    )
    model = peft.get_peft_model(base_of(folder), config)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if "lora_" in name:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    model.save_pretrained(adapter)
    moe.run("convert", folder, merged, "--adapter", adapter)
    return compare("peft's merged here", model, before, moe.score(merged))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    architectures.add_arguments(parser)
    args = parser.parse_args()
    moe = architectures.Moe(args)
    failed = 0
    for family in TARGETS:
        print(f"{family}:", flush=True)
        folder = os.path.join(moe.work, family)
        architectures.write(family, folder, args.tokenizer, "f32", None)
        before = moe.score(folder)
        if family not in ONE_WAY:
            failed += not ours_in_peft(moe, folder, before)
        failed += not peft_in_ours(moe, family, folder, before)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
