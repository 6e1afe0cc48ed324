#!/usr/bin/env python3
"""The peer of `moe bench train`: transformers' OLMoE, or with --dense its Llama, one whole training
step at a time, driven from outside.

A line on stdin asks for one step (zero gradients, forward, backward, clip 1.0, fused AdamW with f32
masters unless --dtype bf16-pure); the answer is one JSON line {"ms": t}. After warm-up it prints
{"ready": ...}; it ends with its input. Between steps it computes nothing, so that another program
can be timed in turn with it (compare_train.py).
"""

import argparse
import contextlib
import json
import os
import sys
import time

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (
        ("layers", 6),
        ("width", 384),
        ("heads", 6),
        ("kv-heads", 0),
        ("experts", 8),
        ("top-k", 2),
        ("expert-width", 1024),
        ("vocab", 256),
        ("context", 256),
        ("batch", 8),
        ("threads", 2),
        ("warmup", 2),
        ("seed", 1),
    ):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument(
        "--dtype",
        choices=("f32", "bf16", "bf16-pure"),
        default="f32",
        help="bf16: autocast over f32 weights",
    )
    # batched_mm copies the expert's weights for every row: 13 GB at the default shape, so it is not
    # offered.
    parser.add_argument(
        "--experts-implementation", choices=("grouped_mm", "eager"), default="grouped_mm"
    )
    parser.add_argument(
        "--dense",
        action="store_true",
        help="a Llama whose FFN is as wide as the chosen experts together",
    )
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    return parser.parse_args()


def build(args):
    """The model in training mode, its optimizer, and step() -> loss."""
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    shape = dict(
        vocab_size=args.vocab,
        hidden_size=args.width,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        num_key_value_heads=args.kv_heads or args.heads,
        max_position_embeddings=args.context,
        pad_token_id=None,
        eos_token_id=None,
        use_cache=False,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    if args.dense:
        config = transformers.LlamaConfig(
            intermediate_size=args.top_k * args.expert_width, tie_word_embeddings=False, **shape
        )
    else:
        config = transformers.OlmoeConfig(
            intermediate_size=args.expert_width,
            num_experts=args.experts,
            num_experts_per_tok=args.top_k,
            norm_topk_prob=False,
            output_router_logits=True,
            **shape,
        )
        config._experts_implementation = args.experts_implementation
    config._attn_implementation = "sdpa"
    model = transformers.AutoModelForCausalLM.from_config(config).train()
    if args.dtype == "bf16-pure":
        model.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=4e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True
    )
    forward = torch.compile(model) if args.compile else model
    generator = torch.Generator().manual_seed(args.seed)

    def step():
        rows = torch.randint(0, args.vocab, (args.batch, args.context + 1), generator=generator)
        autocast = (
            torch.autocast("cpu", torch.bfloat16)
            if args.dtype == "bf16"
            else contextlib.nullcontext()
        )
        optimizer.zero_grad(set_to_none=True)
        with autocast:
            targets = rows[:, 1:].contiguous()
            loss = forward(
                input_ids=rows[:, :-1].contiguous(), labels=targets, shift_labels=targets
            ).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return model, step


def main():
    args = arguments()
    model, step = build(args)
    for _ in range(args.warmup):
        step()
    about = {
        "ready": "transformers " + model.config.model_type,
        "dtype": args.dtype,
        "compile": args.compile,
        "threads": args.threads,
        "parameters": sum(p.numel() for p in model.parameters()),
    }
    if not args.dense:
        about["experts_implementation"] = args.experts_implementation
    print(json.dumps(about), flush=True)
    for _ in sys.stdin:
        begin = time.perf_counter()
        loss = step()
        print(
            json.dumps(
                {"ms": round(1e3 * (time.perf_counter() - begin), 2), "loss": round(loss, 6)}
            ),
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
