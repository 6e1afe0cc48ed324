#!/usr/bin/env python3
"""Adapters and PEFT, in both directions, on tiny random models of transformers: what `moe train
--tune lora+norms` leaves, with rows of tokens, is loaded by PEFT onto the model it started from and
gives the log-probabilities of the tuned model, and what PEFT saves, merged by `moe convert
--adapter`, gives PEFT's. Ten steps of both from the same A and B
on the same text go through the same losses, with and without the norms and rows of tokens. The head
of qwen2 and gpt2 is the embedding.
"""

import argparse
import json
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
# Queries, keys and values are one module there: what three adapters learn here PEFT learns with one
# of three times the rank, whose B has more numbers to move.
STACKED = {"gpt2"}
STEPS, CONTEXT, RATE = 10, 64, 2e-3
LOSS_BOUND = 1e-4  # nats
MOVED = 0.1  # nats by which an adapter must change a prediction on average, or equal scores say nothing of it


def frequent(moe, folder):
    """The three tokens that the steps see most: their rows have the largest gradients."""
    ids = ids_of(moe, folder)[: STEPS * CONTEXT]
    return sorted(torch.bincount(ids).topk(3).indices.tolist())


def ids_of(moe, folder):
    vocabulary = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    with open(moe.train_text, encoding="utf-8") as file:
        text = file.read()
    return vocabulary(text, add_special_tokens=False, return_tensors="pt").input_ids[0]


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
        "lora+norms",
        "--tune-tokens",
        *frequent(moe, folder),
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


def same_losses(moe, folder, tune, tokens=()):
    """The adapter before its first step is in OUT/checkpoint-0; PEFT goes on from there."""
    out = f"{folder}.{tune}.{len(tokens)}.steps"
    words = f"train --tune {tune} --lora-rank 4 --lora-alpha 8 --batch 1 --warmup 0 --schedule constant"
    words += " --weight-decay 0 --shuffle none --dtype f32 --no-report"
    words += f" --steps {STEPS} --context {CONTEXT} --lr {RATE} --save-every {STEPS}"
    of_tokens = ["--tune-tokens", *tokens] if tokens else []
    moe.run(*words.split(), *of_tokens, "--from", folder, "--data", moe.train_text, "--out", out)
    with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as file:
        ours = [json.loads(line)["ce"] for line in file]
    model = peft.PeftModel.from_pretrained(
        base_of(folder), os.path.join(out, "checkpoint-0"), is_trainable=True
    )
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=0)
    of_tokens = [n for n, p in model.named_parameters() if p.requires_grad and "_tokens_" in n]
    assert bool(of_tokens) == bool(tokens), of_tokens
    ids = ids_of(moe, folder)
    theirs = []
    for step in range(STEPS):
        row = ids[step * CONTEXT : (step + 1) * CONTEXT + 1]
        logits = model(input_ids=row[None, :-1], use_cache=False).logits[0]
        loss = torch.nn.functional.cross_entropy(logits, row[1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        theirs.append(loss.item())
    apart = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
    # The losses of the model as it is, so that equal losses say something of the steps.
    moved = abs(ours[-1] - frozen_loss(folder, ids, STEPS - 1))
    print(
        f"{STEPS} losses of {tune}{' with rows of tokens' if tokens else ''}: {apart:.1e} nats apart (allowed {LOSS_BOUND}), the last one moved by"
        f" {moved:.1e}"
    )
    return apart <= LOSS_BOUND and moved > 10 * LOSS_BOUND


def frozen_loss(folder, ids, step):
    row = ids[step * CONTEXT : (step + 1) * CONTEXT + 1]
    with torch.no_grad():
        logits = base_of(folder)(input_ids=row[None, :-1], use_cache=False).logits[0]
    return float(torch.nn.functional.cross_entropy(logits, row[1:]))


def peft_in_ours(moe, family, folder, before):
    adapter, merged = folder + ".peft", folder + ".merged"
    base = base_of(folder)
    tokens = frequent(moe, folder)[::-1]  # in no order
    if not base.config.tie_word_embeddings:
        tokens = {"embed_tokens": tokens, "lm_head": tokens[:2]}
    config = peft.LoraConfig(
        r=4,
        lora_alpha=6,
        use_rslora=True,
        target_modules=TARGETS[family],
        rank_pattern={TARGETS[family][0]: 6},
        task_type="CAUSAL_LM",
        fan_in_fan_out=family == "gpt2",
        trainable_token_indices=tokens,
    )
    model = peft.get_peft_model(base, config)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if "lora_" in name:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
            if "trainable_tokens" in name:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
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
            if family not in STACKED:
                failed += sum(not same_losses(moe, folder, tune) for tune in ("lora", "lora+norms"))
                failed += not same_losses(moe, folder, "lora", frequent(moe, folder))
        failed += not peft_in_ours(moe, family, folder, before)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
