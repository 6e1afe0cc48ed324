#!/usr/bin/env python3
"""Preference pairs against a plain loop of PyTorch and transformers, on a tiny random llama: ten DPO
losses and margins, of adapters in PEFT from the same A and B and of the whole model. The loop forms
the loss from log-probabilities as it stands in the paper (arXiv 2305.18290, equation 7), a text at a
time and with no padding.
"""

import argparse
import copy
import json
import os
import sys

import peft
import torch
import transformers

import architectures

STEPS, BATCH, CONTEXT, BETA = 10, 2, 64, 0.1
RATES = {"lora": 5e-4, "all": 5e-5}
BOUND = 1e-4  # nats, of a loss and of a margin
MOVED = 1e-2  # by which the last loss must differ from the first, or equal losses say nothing of steps


def write_pairs(path):
    """Pairs of strings; each step reads two, in order, and all come twice."""
    pairs = [
        {
            "prompt": f"The router of layer {n} sends a token to",
            "chosen": f" expert {n * 7 % 5}, which takes it.",
            "rejected": f" nobody{'!' * (n % 3 + 1)}",
        }
        for n in range(STEPS * BATCH // 2)
    ]
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(pair) + "\n" for pair in pairs)
    return pairs


def log_prob(model, vocabulary, prompt, reply):
    """The sum over the tokens of the reply, whose end is one; a byte is a token of this
    vocabulary."""
    ids = vocabulary(prompt + reply, add_special_tokens=False).input_ids
    ids = torch.tensor([*ids, model.config.eos_token_id])
    begin = len(vocabulary(prompt, add_special_tokens=False).input_ids)
    logits = model(input_ids=ids[None, :-1], use_cache=False).logits[0]
    scores = torch.log_softmax(logits.float(), dim=-1)
    return scores.gather(1, ids[1:, None])[begin - 1 :, 0].sum()


def difference(model, vocabulary, pair):
    return log_prob(model, vocabulary, pair["prompt"], pair["chosen"]) - log_prob(
        model, vocabulary, pair["prompt"], pair["rejected"]
    )


def losses_of(model, reference, vocabulary, pairs, rate):
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=rate, betas=(0.9, 0.95), eps=1e-8, weight_decay=0)
    losses, margins = [], []
    for step in range(STEPS):
        batch = [pairs[(step * BATCH + b) % len(pairs)] for b in range(BATCH)]
        with torch.no_grad():
            held = torch.stack([difference(reference, vocabulary, pair) for pair in batch])
        margin = BETA * (
            torch.stack([difference(model, vocabulary, pair) for pair in batch]) - held
        )
        loss = -torch.nn.functional.logsigmoid(margin).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        margins.append(margin.mean().item())
    return losses, margins


def base_of(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, local_files_only=True, attn_implementation="eager"
    )


def check(moe, folder, tune, data, pairs):
    out = f"{folder}.dpo-{tune}"
    words = f"train --tune {tune} --batch {BATCH} --warmup 0 --schedule constant --weight-decay 0"
    words += f" --shuffle none --dtype f32 --no-report --steps {STEPS} --context {CONTEXT}"
    words += f" --lr {RATES[tune]} --dpo-beta {BETA} --save-every {STEPS}"
    words += " --lora-rank 4 --lora-alpha 8" if tune == "lora" else ""
    moe.run(*words.split(), "--from", folder, "--data", data, "--out", out)
    with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as file:
        ours = [json.loads(line) for line in file]
    reference, model = base_of(folder), base_of(folder)
    if tune == "lora":
        start = os.path.join(out, "checkpoint-0")
        model = peft.PeftModel.from_pretrained(copy.deepcopy(model), start, is_trainable=True)
    vocabulary = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    losses, margins = losses_of(model, reference, vocabulary, pairs, RATES[tune])
    apart = [
        max(abs(line[key] - theirs) for line, theirs in zip(ours, figures, strict=True))
        for key, figures in (("dpo", losses), ("margin", margins))
    ]
    moved = abs(losses[-1] - losses[0])
    print(
        f"--tune {tune}: {STEPS} losses {apart[0]:.1e} apart, margins {apart[1]:.1e} (allowed"
        f" {BOUND}); the loss goes from {losses[0]:.4f} to {losses[-1]:.4f}"
    )
    return max(apart) <= BOUND and moved > MOVED


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    architectures.add_arguments(parser)
    args = parser.parse_args()
    moe = architectures.Moe(args)
    folder = os.path.join(moe.work, "llama-pairs")
    architectures.write("llama", folder, args.tokenizer, "f32", None)
    data = os.path.join(moe.work, "pairs.jsonl")
    pairs = write_pairs(data)
    return 0 if all([check(moe, folder, tune, data, pairs) for tune in RATES]) else 1


if __name__ == "__main__":
    sys.exit(main())
