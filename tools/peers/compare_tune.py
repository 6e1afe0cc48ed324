#!/usr/bin/env python3
"""`moe train --tune lora` against PEFT on transformers, in turn within one run: the same model,
rank, rows and threads, bf16, AdamW.

Ours reads --model as it is, a GGUF file with quantised weights, say; the peer gets --folder, the
same model in bf16 as transformers reads it (moe convert MODEL FOLDER --dtype bf16). Of a model with
fused experts PEFT adapts attention by modules and experts by parameters (target_parameters).
Each pair runs ours and then the peer, the next pair the other way round; a run's figure is the
median of its steps but the first two. Prints every pair and ours / peer in tokens a second: the
median over pairs and the worst. Run it on a quiet machine.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
FUSED = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
LEFT_OUT = 2  # steps, while caches fill


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", default="build/release/moe")
    parser.add_argument("--model", required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--data", required=True)
    for name, value in (
        ("context", 512),
        ("batch", 1),
        ("rank", 8),
        ("steps", 8),
        ("threads", 2),
        ("pairs", 3),
    ):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--dtype", choices=("bf16", "f32"), default="bf16")
    parser.add_argument("--recompute", action="store_true", help="of the peer: checkpointing")
    parser.add_argument("--as-peer", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def peer(args):
    """One run of the peer: a JSON line."""
    import peft
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        args.folder,
        dtype={"bf16": torch.bfloat16, "f32": torch.float32}[args.dtype],
        local_files_only=True,
        attn_implementation="sdpa",
    )
    fused = any(name.endswith(FUSED[0]) for name, _ in model.named_parameters())
    config = peft.LoraConfig(
        r=args.rank,
        lora_alpha=2 * args.rank,
        target_modules=list(MODULES[:4] if fused else MODULES),
        target_parameters=list(FUSED) if fused else None,
        task_type="CAUSAL_LM",
    )
    model = peft.get_peft_model(model, config)
    if args.recompute:
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=2e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    vocabulary = transformers.AutoTokenizer.from_pretrained(args.folder, local_files_only=True)
    with open(args.data, encoding="utf-8") as file:
        text = file.read(16 * args.steps * args.batch * args.context)
    ids = vocabulary(text, return_tensors="pt").input_ids[0]
    rows = args.batch * args.context
    seconds = []
    for step in range(args.steps):
        window = ids[step * rows : (step + 1) * rows].view(args.batch, args.context)
        start = time.perf_counter()
        model(input_ids=window, labels=window, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - start)
    print(
        json.dumps(
            {
                "tokens_per_second": rows / statistics.median(seconds[LEFT_OUT:]),
                "trained": sum(p.numel() for p in trained),
                "resident": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            }
        )
    )


def peer_run(args):
    command = [sys.executable, os.path.abspath(__file__), "--as-peer", *sys.argv[1:]]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise SystemExit(f"the peer ended with status {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def our_run(args, folder):
    out = os.path.join(folder, "out")
    shutil.rmtree(out, ignore_errors=True)
    command = [args.bin, "train", "--from", args.model, "--tune", "lora", "--data", args.data]
    command += ["--out", out, "--no-report", "--lr", "2e-4", "--dtype", args.dtype]
    for name in ("context", "batch", "steps", "threads"):
        command += ["--" + name, str(getattr(args, name))]
    command += ["--lora-rank", str(args.rank), "--lora-alpha", str(2 * args.rank)]
    command += ["--recompute"] if args.recompute else []
    # Of this process's children the largest so far: the peer's own are its.
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, errors = process.communicate()
    if process.returncode:
        raise SystemExit(errors.decode())
    with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as file:
        steps = [json.loads(line) for line in file]
    return {
        "tokens_per_second": statistics.median(s["tokens_per_second"] for s in steps[LEFT_OUT:]),
        "flops_per_second": statistics.median(s["flops_per_second"] for s in steps[LEFT_OUT:]),
    }


def main():
    args = arguments()
    if args.as_peer:
        peer(args)
        return
    print(f"load before the run: {os.getloadavg()[0]:.2f}", flush=True)
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        for pair in range(args.pairs):
            runs = [lambda: ("ours", our_run(args, folder)), lambda: ("peer", peer_run(args))]
            done = dict(run() for run in (runs if pair % 2 == 0 else runs[::-1]))
            ours, theirs = (done[name]["tokens_per_second"] for name in ("ours", "peer"))
            ratios.append(ours / theirs)
            print(
                f"pair {pair + 1}: ours {ours:.0f} tokens/s"
                f" ({done['ours']['flops_per_second'] / 1e9:.0f} GFLOP/s), PEFT {theirs:.0f},"
                f" ours / PEFT {ratios[-1]:.2f};"
                f" PEFT trains {done['peer']['trained']:,} numbers"
                f" in {done['peer']['resident'] / 1e6:.0f} MB",
                flush=True,
            )
    print(f"ours / PEFT: median {statistics.median(ratios):.2f}, worst {min(ratios):.2f}")


if __name__ == "__main__":
    main()
