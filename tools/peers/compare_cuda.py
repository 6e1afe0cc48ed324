#!/usr/bin/env python3
"""The peers of the CUDA backend, measured on a GPU in one run: what the device can do, an MoE layer
forward and backward, a training step of an OLMoE, and one of nanoMoE's published model (a single
micro-batch), each plain and compiled.

A figure is the median of passes between CUDA events after warm-up. What fails says why, and the
rest goes on. "check" in --json is of the first pass: the norms of a layer's output and of its
input's gradient, or the loss; variants of the same weights have the same, but for rounding.
Autocast leaves transformers' grouped products in f32; "plain experts" cast their weights.

  compare_cuda.py --parts ceilings,layer --json layer.json
  compare_cuda.py --parts step --only 'autocast.*plain' --ours step="moe bench train ... --json"

--ours names a command for a part, whose last line on standard output is JSON with "seconds" (or
"median_ms"). It runs in turn with each variant, peer, ours, peer, ours; the peer first gives all
memory but its weights back.
"""

import argparse
import contextlib
import gc
import importlib.metadata
import json
import math
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import time

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden")
MOE = dict(width=2048, experts=64, top_k=8, expert_width=1024)
STEP = dict(layers=4, heads=16, vocab=50304, batch=8, context=2048)
NANO = dict(width=384, experts=8, top_k=2, stride=2)
SIZES = {
    "ceilings": dict(side=8192, copied=4 << 30),
    "layer": dict(MOE, tokens=16384),
    "step": dict(MOE, **STEP),
    "nanomoe": dict(NANO, layers=6, heads=6, vocab=50304, batch=12, context=1024),
}
TINY = dict(width=64, experts=8, top_k=2, expert_width=32, tokens=256, side=256, copied=1 << 20)
TINY.update(layers=2, heads=4, vocab=256, batch=2, context=32)


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", default=",".join(SIZES))
    parser.add_argument("--only", metavar="REGEX", default="", help="as 'layer: .*plain'")
    parser.add_argument("--ours", metavar="PART=COMMAND", action="append", default=[])
    parser.add_argument("--against", metavar="REGEX", default="", help="variants beside ours")
    parser.add_argument("--pairs", type=int, default=2, help="turns of the peer and of ours")
    parser.add_argument("--nanomoe", metavar="FOLDER", help="nanoMoE's own checkout (661fbcf)")
    parser.add_argument("--compile-mode", help="torch.compile's")
    parser.add_argument("--limit", type=float, default=60, help="seconds a variant, compiling too")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=10, help="timed passes a turn")
    for name, value in STEP.items():
        parser.add_argument("--" + name, type=int, help=f"of part step; {value}")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--tiny", action="store_true", help=argparse.SUPPRESS)  # on the CPU
    args = parser.parse_args()
    args.parts = args.parts.split(",")
    args.ours = dict(word.partition("=")[::2] for word in args.ours)
    for part in (*args.parts, *args.ours):
        if part not in SIZES:
            parser.error(f"{part} is no part; there are {', '.join(SIZES)}")
    args.device = "cpu" if args.tiny else "cuda"
    return args


def sizes_of(args, part):
    sizes = dict(SIZES[part])
    more = [TINY] if args.tiny else []
    more += [{name: getattr(args, name) for name in STEP}] if part == "step" else []
    for values in more:
        sizes.update({n: v for n, v in values.items() if n in sizes and v is not None})
    return argparse.Namespace(**sizes)


def compiled(args, module, wanted):
    return torch.compile(module, mode=args.compile_mode, dynamic=False) if wanted else module


# A part yields (variant, what it does, build): of one pass its flops, tokens or bytes, and build()
# -> (step, forget), the pass and what drops all memory but the weights.


def ceilings(args, s):
    def product():
        a, b = torch.randn(2, s.side, s.side, device=args.device).to(torch.bfloat16)
        out = torch.empty_like(a)
        return lambda: [torch.mm(a, b, out=out)], None

    def copy():
        a = torch.randint(0, 255, (s.copied,), device=args.device, dtype=torch.uint8)
        out = torch.empty_like(a)
        return lambda: [out.copy_(a)[:8]], None

    yield f"bf16 product {s.side}^3", {"flops": 2 * s.side**3}, product
    yield f"copy of {s.copied >> 20} MiB", {"bytes": 2 * s.copied}, copy


class Dispatch(torch.autograd.Function):
    """x [N,D] -> rows in the order of their experts [R,D]. Backward gathers and sums, where that
    of x[token] adds row by row."""

    @staticmethod
    def forward(ctx, x, token, place):
        ctx.save_for_backward(place)
        return x.index_select(0, token)

    @staticmethod
    def backward(ctx, d):
        (place,) = ctx.saved_tensors  # [N,K]
        dx = d.index_select(0, place.flatten()).unflatten(0, place.shape)
        return dx.sum(1, dtype=d.dtype), None, None


class Combine(torch.autograd.Function):
    """The other way round: rows [R,D] -> [N,D]."""

    @staticmethod
    def forward(ctx, rows, token, place):
        ctx.save_for_backward(token)
        y = rows.index_select(0, place.flatten()).unflatten(0, place.shape)
        return y.sum(1, dtype=rows.dtype)

    @staticmethod
    def backward(ctx, dy):
        return dy.index_select(0, ctx.saved_tensors[0]), None, None


def grouped(rows, weights, ends):
    product = getattr(F, "grouped_mm", None) or torch._grouped_mm
    return product(rows, weights.transpose(-2, -1), offs=ends)


def plain_experts(x, chosen, weights, gate_up, down):
    """x [N,D], chosen and weights [N,K], gate_up [E,2F,D], down [E,D,F], computed in bf16. The
    combine weights scale the narrower hidden rows, which changes nothing but rounding."""
    x, weights, gate_up, down = (t.to(torch.bfloat16) for t in (x, weights, gate_up, down))
    experts, order = chosen.flatten().int().sort()
    each = torch.arange(gate_up.shape[0], device=x.device, dtype=torch.int32)
    ends = torch.searchsorted(experts, each, right=True, out_int32=True)
    at = torch.arange(order.numel(), device=x.device)
    place = torch.empty_like(order).scatter_(0, order, at).view_as(chosen)
    token = order // chosen.shape[1]
    gate, up = grouped(Dispatch.apply(x, token, place), gate_up, ends).chunk(2, dim=-1)
    hidden = F.silu(gate) * up * weights.flatten().index_select(0, order)[:, None]
    return Combine.apply(grouped(hidden, down, ends), token, place)


class PlainLayer(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.top_k = s.top_k
        self.gate = nn.Parameter(0.02 * torch.randn(s.experts, s.width))
        self.gate_up = nn.Parameter(0.02 * torch.randn(s.experts, 2 * s.expert_width, s.width))
        self.down = nn.Parameter(0.02 * torch.randn(s.experts, s.width, s.expert_width))

    def forward(self, x):
        rows = x.flatten(0, 1)
        weights, chosen = F.linear(rows, self.gate).softmax(-1, torch.float32).topk(self.top_k)
        return plain_experts(rows, chosen, weights, self.gate_up, self.down).view_as(x)


def olmoe_config(s, implementation, **more):
    import transformers

    transformers.utils.logging.set_verbosity_error()
    sizes = dict(hidden_size=s.width, intermediate_size=s.expert_width, num_experts=s.experts)
    sizes.update(num_experts_per_tok=s.top_k, norm_topk_prob=False)
    config = transformers.OlmoeConfig(**sizes, **more)
    config._experts_implementation, config._attn_implementation = implementation, "sdpa"
    return config


def transformers_layer(s):
    from transformers.models.olmoe.modeling_olmoe import OlmoeSparseMoeBlock

    same, block = PlainLayer(s), OlmoeSparseMoeBlock(olmoe_config(s, "grouped_mm"))
    with torch.no_grad():
        block.gate.weight.copy_(same.gate)
        block.experts.gate_up_proj.copy_(same.gate_up)
        block.experts.down_proj.copy_(same.down)
    return block


def megablocks_layer(s):
    from megablocks.layers.arguments import Arguments
    from megablocks.layers.dmoe import dMoE

    sizes = dict(hidden_size=s.width, ffn_hidden_size=s.expert_width, moe_num_experts=s.experts)
    sizes.update(moe_top_k=s.top_k, mlp_type="glu", mlp_impl="grouped", activation_fn=F.silu)
    sizes.update(bias=False, return_bias=False, fp16=False, bf16=True)
    return dMoE(Arguments(**sizes, device=torch.device("cuda")))


def layer(args, s):
    def build(make, compile_it):
        with torch.device(args.device):
            moe = make(s).to(torch.bfloat16).train()
            x, dy = torch.randn(2, 1, s.tokens, s.width).to(torch.bfloat16)
        forward, wanted = compiled(args, moe, compile_it), (x.requires_grad_(), *moe.parameters())

        def step():
            y = forward(x)
            y = y[0] if isinstance(y, tuple) else y
            dx = torch.autograd.grad(y, wanted, dy, allow_unused=True)[0]
            if make is megablocks_layer:  # it keeps what its balance loss would need
                sys.modules["megablocks.layers.moe"].clear_load_balancing_loss()
            return [y.detach(), dx]

        return step, None

    flops = 6 * s.tokens * s.width * (3 * s.top_k * s.expert_width + s.experts)
    does = {"flops": flops, "tokens": s.tokens}
    for name, make in (
        ("plain PyTorch, grouped_mm", PlainLayer),
        ("transformers, grouped_mm", transformers_layer),
    ):
        yield name, does, lambda m=make: build(m, False)
        yield name + ", compiled", does, lambda m=make: build(m, True)
    yield "MegaBlocks", does, lambda: build(megablocks_layer, False)


def training(args, s, model, groups, lr, loss_of, autocast):
    optimizer = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    generator = torch.Generator(args.device).manual_seed(1)
    shape, where = (s.batch, s.context + 1), dict(generator=generator, device=args.device)

    def step():
        rows = torch.randint(0, s.vocab, shape, **where)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(args.device, torch.bfloat16, enabled=autocast):
            loss = loss_of(rows[:, :-1].contiguous(), rows[:, 1:].contiguous())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return [loss.detach()]

    def forget():
        optimizer.zero_grad(set_to_none=True)
        optimizer.state.clear()

    return step, forget


def step_does(s, weights):
    """Of a step whose tokens meet so many weights below the head; attention is causal."""
    attention = 6 * s.layers * s.width * (s.context + 1)
    tokens = s.batch * s.context
    return {"flops": tokens * (6 * (weights + s.vocab * s.width) + attention), "tokens": tokens}


def step(args, s):
    def build(pure, implementation, compile_it):
        import transformers
        from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

        def plain(bank, x, chosen, weights):
            return plain_experts(x, chosen, weights, bank.gate_up_proj, bank.down_proj)

        ALL_EXPERTS_FUNCTIONS.register("plain", plain)
        more = dict(vocab_size=s.vocab, num_hidden_layers=s.layers, num_attention_heads=s.heads)
        more.update(num_key_value_heads=s.heads, max_position_embeddings=s.context)
        more.update(pad_token_id=None, eos_token_id=None, use_cache=False)
        more.update(rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
        config = olmoe_config(s, implementation, output_router_logits=True, **more)
        dtype = torch.bfloat16 if pure else torch.float32
        with torch.device(args.device):
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).train()
        forward = compiled(args, model, compile_it)

        def loss_of(ids, targets):
            return forward(input_ids=ids, labels=targets, shift_labels=targets).loss

        return training(args, s, model, model.parameters(), 4e-4, loss_of, autocast=not pure)

    chosen = 3 * s.top_k * s.width * s.expert_width
    does = step_does(s, s.layers * (s.width * (4 * s.width + s.experts) + chosen))
    for dtype in ("pure bf16", "bf16 autocast"):
        for experts in ("transformers", "plain experts"):
            how = (dtype == "pure bf16", "plain" if experts != "transformers" else "grouped_mm")
            yield f"{dtype}, {experts}", does, lambda h=how: build(*h, False)
            yield f"{dtype}, {experts}, compiled", does, lambda h=how: build(*h, True)


def nanomoe_original(args, names):
    """The published configuration (config/train_nano_moe.py of a checkout)."""
    sys.path.insert(0, args.nanomoe)
    import model as original

    names.update(use_aux_loss=True, aux_loss_weight=0.01, train_capacity=1.25, eval_capacity=2.0)
    names.update(use_router_z_loss=True, router_z_loss_weight=0.001, dropout=0.0)
    names.update(use_switch_tfm_init=True, router_use_full_prec=True)
    with contextlib.redirect_stdout(sys.stderr):
        model = original.GPT(original.GPTConfig(**names)).to(args.device)
    return model, lambda forward, ids, targets: forward(ids, targets)[1]


def nanomoe_written(args, names):
    """tools/golden/nanomoe.py made fit for a GPU: sdpa, positions that lie there, and the router in
    f32, as published. Its loop over experts waits for each one's number of rows, and compiling it
    takes minutes: nanoMoE's own program is the better peer."""
    sys.path.insert(0, GOLDEN)
    import nanomoe as written

    class Attention(written.Attention):
        def forward(self, x):
            parts = (p.unflatten(-1, (self.heads, -1)) for p in self.c_attn(x).chunk(3, dim=-1))
            q, k, v = (p.transpose(1, 2) for p in parts)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.c_proj(mixed.transpose(1, 2).flatten(2))

    class Router(written.Router):
        def forward(self, x, capacity, noise):
            with torch.autocast(args.device, enabled=False):
                return written.Router.forward(self, x.float(), capacity, noise)

    model = written.NanoMoE(written.NanoMoEConfig(**names)).to(args.device)
    fit = {written.Attention: Attention, written.Router: Router}
    for part in model.modules():
        part.__class__ = fit.get(type(part), type(part))
    for parameter in (p for p in model.parameters() if p.dim() > 1):
        nn.init.normal_(parameter, std=0.02)
    positions = torch.arange(names["block_size"], device=args.device)
    model.transformer["wpe"].register_forward_pre_hook(lambda *_: (positions,))

    def loss_of(forward, ids, targets):
        ce = F.cross_entropy(forward(ids).flatten(0, 1), targets.flatten())
        last = [moe.router.last for _, moe in model.moe_layers()]
        return ce + sum(0.01 * r["balance"] + 0.001 * r["z"] for r in last)

    return model, loss_of


def nanomoe(args, s):
    def build(compile_it):
        names = dict(n_layer=s.layers, n_head=s.heads, n_embd=s.width, vocab_size=s.vocab)
        names.update(n_exp=s.experts, top_k=s.top_k, stride=s.stride, block_size=s.context)
        make = nanomoe_original if args.nanomoe else nanomoe_written
        model, loss_of = make(args, dict(names, bias=False))
        forward = compiled(args, model.train(), compile_it)
        groups = [
            {"params": [p for p in model.parameters() if p.dim() > 1]},
            {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
        ]
        return training(args, s, model, groups, 6e-4, lambda *a: loss_of(forward, *a), True)

    moe = math.ceil(s.layers / s.stride)
    ffn = 8 * s.width**2 * (s.layers - moe + moe * s.top_k) + moe * s.experts * s.width
    does = step_does(s, 4 * s.layers * s.width**2 + ffn)
    if not args.nanomoe:
        yield "tools/golden/nanomoe.py, bf16 autocast", does, lambda: build(False)
        return
    yield "nanoMoE's own, bf16 autocast", does, lambda: build(False)
    yield "nanoMoE's own, bf16 autocast, compiled", does, lambda: build(True)


class OutOfTime(BaseException):
    """No Exception, which torch.compile would take for one of its own."""


@contextlib.contextmanager
def at_most(seconds):
    def ring(*_):
        raise OutOfTime(f"not done after {seconds:.0f} s")

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, 5)
    try:
        yield time.perf_counter() + seconds
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def timed(args, function, repeats):
    """Seconds of each pass; the CPU waits for none of them."""
    if args.device == "cpu":
        marks = [time.perf_counter()]
        for _ in range(repeats):
            function()
            marks.append(time.perf_counter())
        return [b - a for a, b in zip(marks, marks[1:])]
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    marks[0].record()
    for mark in marks[1:]:
        function()
        mark.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) / 1e3 for a, b in zip(marks, marks[1:])]


def free(args):
    gc.collect()
    if args.device == "cuda":
        torch.cuda.empty_cache()


def our_seconds(command, limit):
    done = subprocess.run(shlex.split(command), stdout=subprocess.PIPE, text=True, timeout=limit)
    if done.returncode:
        raise RuntimeError(f"ours ended with status {done.returncode}")
    said = json.loads(done.stdout.strip().splitlines()[-1])
    return said["seconds"] if "seconds" in said else said["median_ms"] / 1e3


def take_turns(args, does, build, command, row):
    """Fills row, as far as it gets."""
    step, turns, ours = None, [], []
    for _ in range(args.pairs if command else 1):
        with at_most(args.limit) as end:
            if not step:
                torch.manual_seed(1)
                step, forget = build()
                row["check"] = [float(t.float().norm()) for t in step()]
            one = statistics.median(timed(args, step, args.warmup))
            affordable = int(0.8 * (end - time.perf_counter()) / one)
            turns.append(timed(args, step, max(3, min(args.repeats, affordable))))
        row["turns"] = [statistics.median(turn) for turn in turns]
        row["seconds"] = statistics.median(s for turn in turns for s in turn)
        row.update({f"{what}_per_second": n / row["seconds"] for what, n in does.items()})
        if args.device == "cuda":
            row["peak_bytes"] = torch.cuda.max_memory_allocated()
        if command:
            if forget:
                forget()
            free(args)
            ours.append(our_seconds(command, args.limit))
            ratios = [peer / our for peer, our in zip(row["turns"], ours)]
            row.update(ours_turns=list(ours), ours_seconds=statistics.median(ours))
            row.update(times_faster=statistics.median(ratios), times_faster_worst=min(ratios))


def measure(args, part, variant, does, build, command):
    row = {"part": part, "variant": variant}
    if args.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    try:
        take_turns(args, does, build, command, row)
    except (Exception, OutOfTime) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        row["failed"] = f"{type(error).__name__}: {' '.join(lines[:2])[:300]}"
    return row


def line(row, peak):
    columns = (
        ("seconds", 1e-3, "{:9.3f} ms"),
        ("flops_per_second", 1e12, "{:7.1f} TFLOP/s"),
        ("flops_per_second", peak or math.inf, "{:4.0%} of the product" if peak else ""),
        ("bytes_per_second", 1e9, "{:7.0f} GB/s"),
        ("tokens_per_second", 1, "{:11,.0f} tokens/s"),
        ("peak_bytes", 1e9, "{:5.1f} GB"),
        ("ours_seconds", 1e-3, "ours {:9.3f} ms"),
        ("times_faster", 1, "{:.2f} times faster"),
        ("times_faster_worst", 1, "(worst {:.2f})"),
    )
    words = [f"{row['part']:9} {row['variant']:44}"]
    words += [shown.format(row[key] / unit) for key, unit, shown in columns if key in row]
    return "  ".join(words + (["failed: " + row["failed"]] if "failed" in row else []))


def main():
    args = arguments()
    if args.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("PyTorch finds no GPU")
    torch.set_float32_matmul_precision("high")  # TF32 where a peer stays in f32, as nanoMoE has it
    about = {"device": torch.cuda.get_device_name() if args.device == "cuda" else "cpu"}
    about.update({name: importlib.metadata.version(name) for name in ("torch", "transformers")})
    about.update(compile_mode=args.compile_mode or "default", ours=args.ours)
    print(json.dumps(about), flush=True)
    rows, peak = [], None
    makers = {"ceilings": ceilings, "layer": layer, "step": step, "nanomoe": nanomoe}
    for part in args.parts:
        for variant, does, build in makers[part](args, sizes_of(args, part)):
            name = f"{part}: {variant}"
            if not re.search(args.only, name):
                continue
            command = args.ours.get(part) if re.search(args.against, name) else None
            rows.append(measure(args, part, variant, does, build, command))
            if part == "ceilings" and "flops" in does:
                peak = rows[-1].get("flops_per_second")
            print(line(rows[-1], peak), flush=True)
            if args.json:
                with open(args.json, "w", encoding="utf-8") as file:
                    json.dump({"about": about, "rows": rows}, file, indent=1)
            torch._dynamo.reset()
            free(args)  # raises where the device is lost to an error, and so ends the run
    return 0


if __name__ == "__main__":
    sys.exit(main())
