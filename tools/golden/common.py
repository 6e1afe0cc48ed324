"""What the golden scripts share: the ten AdamW steps, the losses' bookkeeping, the margins and the
two files of a golden.

A golden is NAME.safetensors (initial weights under the names of the model folder, "ids" and
"targets" [steps,B,T] int32, "logits" of step 0 [B,T,V], "grad.<weight name>" of step 0 before
clipping, f32) and NAME.json: recipe, seed, config (Hugging Face key names), hyper (optimizer,
losses), steps (one object each: loss, ce, balance, z, grad_norm before clipping, their values per
MoE layer, dropped pairs, and margin, the smallest gap between the router's k+1 best logits),
routing of step 0 (experts and kept [N][k], counts [E]) and final_norm (each weight's L2 norm after
the last step). Weights are drawn in f32 and every run is computed in f64, so that the files hold
the mathematics and not one machine's rounding. One tensor's final_norm is loose in f32: the key
part of a c_attn.bias has gradient 0 in exact arithmetic.
"""

import json
import math
import os
import tempfile

import numpy as np
import torch
from safetensors.torch import load_file, save_file

MIN_MARGIN_FIRST = 1e-3  # of step 0: its gradients are compared tensor by tensor
MIN_MARGIN_LATER = 2e-4  # of the other steps: their losses are compared within 1e-4
# The smallest gradient at step 0 that is not 0 in exact arithmetic. AdamW's first step is g / (|g|
# + eps): beside a gradient that rounding makes another one it is another step, and the run is no
# longer this one.
MIN_GRADIENT = 1e-7
EXACT_ZERO = 1e-12


class MarginTooSmall(Exception):
    """A draw whose choice of experts rounding could change; the caller takes the next seed."""


def single_thread():
    """One thread and deterministic kernels, so that the same machine gives the same file."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)


def number(x):
    """A float as JSON holds it here: nine significant digits, which name every f32 uniquely."""
    return float(f"{float(x.detach() if isinstance(x, torch.Tensor) else x):.9g}")


def choice_margin(logits, k):
    """Smallest gap between neighbours among the first k+1 sorted logits of any row; logits [N,E]."""
    top = logits.detach().topk(min(k + 1, logits.shape[-1]), dim=-1).values
    return float((top[:, :-1] - top[:, 1:]).min())


def draw_tokens(seed, steps, batch, context, vocab):
    """Token ids and next-token targets, both [steps,B,T] int32, from a chain whose next token is
    mostly a function of the last."""
    rng = np.random.default_rng(seed)
    follow = rng.permutation(vocab)
    rows = np.empty((steps, batch, context + 1), dtype=np.int32)
    rows[..., 0] = rng.integers(0, vocab, size=(steps, batch))
    for t in range(context):
        jump = rng.random((steps, batch)) < 0.4
        rows[..., t + 1] = np.where(
            jump, rng.integers(0, vocab, size=(steps, batch)), follow[rows[..., t]]
        )
    return torch.from_numpy(rows[..., :-1].copy()), torch.from_numpy(rows[..., 1:].copy())


def run_steps(model, hyper, ids, targets, losses, decayed):
    """hyper["steps"] AdamW steps at a constant rate.

    losses(step, ids, targets) gives loss, ce, balance, z (scalars), balance_per_layer, z_per_layer,
    logits, margin and routing; decayed(name, parameter) says which parameters weight decay moves.
    Returns the step records and step 0's logits, gradients, routing.
    """
    groups = {True: [], False: []}
    for name, parameter in model.named_parameters():
        groups[bool(decayed(name, parameter))].append(parameter)
    optimizer = torch.optim.AdamW(
        [
            {"params": groups[True], "weight_decay": hyper["weight_decay"]},
            {"params": groups[False], "weight_decay": 0.0},
        ],
        lr=hyper["lr"],
        betas=(hyper["beta1"], hyper["beta2"]),
        eps=hyper["eps"],
        foreach=False,
    )
    records, first = [], {}
    for step in range(hyper["steps"]):
        out = losses(step, ids[step].long(), targets[step].long())
        floor = MIN_MARGIN_FIRST if step == 0 else MIN_MARGIN_LATER
        if out["margin"] < floor:
            raise MarginTooSmall(f"step {step}: k-th margin {out['margin']:.2e} under {floor:.0e}")
        optimizer.zero_grad(set_to_none=False)
        out["loss"].backward()
        if step == 0:
            first = {
                "logits": out["logits"].detach().clone(),
                "routing": out["routing"],
                "grads": {n: p.grad.detach().clone() for n, p in model.named_parameters()},
            }
            assert_conditioned(first["grads"])
        norm = torch.nn.utils.clip_grad_norm_(
            list(model.parameters()), hyper["clip"], foreach=False
        )
        records.append(
            {
                "loss": number(out["loss"]),
                "ce": number(out["ce"]),
                "balance": number(out["balance"]),
                "z": number(out["z"]),
                "grad_norm": number(norm),
                "balance_per_layer": [number(x) for x in out["balance_per_layer"]],
                "z_per_layer": [number(x) for x in out["z_per_layer"]],
                "dropped": sum(
                    1
                    for layer in out["routing"]
                    for row in layer["kept"]
                    for kept in row
                    if not kept
                ),
                "margin": number(out["margin"]),
            }
        )
        optimizer.step()
    if not all(math.isfinite(r["loss"]) for r in records):
        raise AssertionError("a golden run diverged")
    return records, first


def assert_conditioned(grads):
    for name, grad in grads.items():
        size = grad.abs().double()
        size = size[size > EXACT_ZERO]
        if size.numel() and float(size.min()) < MIN_GRADIENT:
            raise MarginTooSmall(f"{name} has a gradient of {float(size.min()):.1e} at step 0")


def assert_useful(grads, routing):
    """A golden in which a tensor has no gradient, or an expert no token, would prove nothing about
    it."""
    for name, grad in grads.items():
        if float(grad.double().norm()) == 0.0:
            raise MarginTooSmall(f"{name} has no gradient at step 0")
    for layer in routing:
        if min(layer["counts"]) == 0:
            raise MarginTooSmall(f"layer {layer['layer']} leaves an expert without a token")


def write(folder, name, tensors, meta):
    """Writes NAME.safetensors and NAME.json; float tensors are stored as f32."""
    stored = {}
    for key, value in tensors.items():
        stored[key] = (value if value.dtype == torch.int32 else value.float()).contiguous().clone()
    save_file(stored, os.path.join(folder, name + ".safetensors"))
    with open(os.path.join(folder, name + ".json"), "w", encoding="utf-8") as out:
        out.write(dump(meta))


def dump(value):
    """JSON with one key of the outer object a line, short lists unbroken: small, and a diff that
    can be read."""
    lines = []
    for key, item in value.items():
        if isinstance(item, list) and item and isinstance(item[0], dict):
            inner = ",\n    ".join(json.dumps(x) for x in item)
            lines.append(f"  {json.dumps(key)}: [\n    {inner}\n  ]")
        else:
            lines.append(f"  {json.dumps(key)}: {json.dumps(item)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def until_drawn(make, first_seed, tries=400):
    """Calls make(seed) with one seed after another until a draw has the margins asked for."""
    for seed in range(first_seed, first_seed + tries):
        try:
            return make(seed)
        except MarginTooSmall:
            continue
    raise AssertionError(
        f"no seed in {first_seed}..{first_seed + tries - 1} has the margins asked for"
    )


def _worst_tensor(fresh, kept):
    """Largest relative norm-wise difference of two tensor dictionaries, with the tensor's name."""
    worst, where = 0.0, ""
    for name, want in kept.items():
        got = fresh[name]
        if got.dtype != want.dtype or got.shape != want.shape:
            return (
                math.inf,
                f"{name} {tuple(got.shape)} {got.dtype}, committed {tuple(want.shape)} {want.dtype}",
            )
        if want.dtype == torch.int32:
            error = 0.0 if torch.equal(got, want) else math.inf
        else:
            error = float(
                (got.double() - want.double()).norm() / max(float(want.double().norm()), 1e-30)
            )
        if not error <= worst:
            worst, where = error, name
    return worst, where


def _worst_json(fresh, kept, path=""):
    """Largest relative difference of two JSON values; anything but a float must be equal. A margin
    is what two logits leave of each other, and carries their rounding: it is measured by them, as
    numbers of about 1."""
    if isinstance(kept, float) and isinstance(fresh, (int, float)) and not isinstance(fresh, bool):
        scale = max(abs(kept), abs(fresh), 1.0 if path.endswith(".margin") else 1e-3)
        return abs(fresh - kept) / scale, path
    if type(fresh) is not type(kept):
        return math.inf, path
    if isinstance(kept, dict):
        if list(fresh) != list(kept):
            return math.inf, path + " (keys)"
        pairs = [
            _worst_json(fresh[k], v, f"{path}.{k}") for k, v in kept.items() if k != "made_with"
        ]
    elif isinstance(kept, list):
        if len(fresh) != len(kept):
            return math.inf, path + " (length)"
        pairs = [_worst_json(f, v, f"{path}[{i}]") for i, (f, v) in enumerate(zip(fresh, kept))]
    else:
        return (0.0 if fresh == kept else math.inf), path
    return max(pairs, key=lambda p: p[0], default=(0.0, path))


def compare_files(fresh, kept):
    """(largest relative difference, where) between a file made now and the committed one."""
    if not os.path.exists(kept):
        return math.inf, "not committed"
    if not os.path.exists(fresh):
        return math.inf, "no longer made"
    if kept.endswith(".safetensors"):
        a, b = load_file(fresh), load_file(kept)
        if set(a) != set(b):
            return math.inf, "tensor names " + ", ".join(sorted(set(a) ^ set(b))[:4])
        return _worst_tensor(a, b)
    with open(fresh, encoding="utf-8") as a, open(kept, encoding="utf-8") as b:
        return _worst_json(json.load(a), json.load(b))


def temporary_folder():
    return tempfile.TemporaryDirectory(prefix="moe-golden-")
