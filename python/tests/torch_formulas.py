"""What torch_recipes_test.py compares with: random cases of every recipe, and a layer in float64.

The routing is worked by the oracle of the golden cases (tools/golden/routing_formulas.py), whose
gradients are autograd's over the papers' formulas; the experts are a few lines of torch here. The
two meet at the combine weights: a layer's output is linear in them, so the gradient that the oracle
asks for is known beforehand.
"""

from __future__ import annotations

import copy
import importlib
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")


def _golden(name: str) -> Any:
    """A module of tools/golden, which import one another by their bare names."""
    folder = str(Path(__file__).resolve().parents[2] / "tools" / "golden")
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(name)


FORMULAS = _golden("routing_formulas")
TABLE = _golden("routing_rows")

KINK = 1e-5  # nearer to where a derivative jumps, f32 may fall on the other side
FLOOR = 1e-2  # a tensor of smaller numbers is compared with this
LOSSES = ("balance", "z", "device", "communication", "importance", "load")
# A router's tensors as its module calls them, and as the oracle does.
ROUTER = {
    "weight": "weight",
    "up_weight": "up_weight",
    "bias": "logit_bias",
    "noise_weight": "noise_weight",
    "scale": "scale",
    "e_score_correction_bias": "bias",
    "threshold": "threshold",
}
ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda v: torch.nn.functional.gelu(v, approximate="tanh"),
    "relu": torch.relu,
}


def error(got: Any, want: Any) -> float:
    """Largest difference, of the largest magnitude wanted."""
    got, want = torch.as_tensor(got).double(), torch.as_tensor(want, dtype=torch.float64)
    if got.shape != want.shape:
        return float("inf")
    if want.numel() == 0:
        return 0.0
    found = float((got - want).abs().max() / want.abs().max().clamp(min=FLOOR))
    return found if found == found else float("inf")


# ---- cases ------------------------------------------------------------------------------------


@dataclass
class Case:
    """Options of a layer and how it is called; its numbers are drawn by those who call it."""

    recipe: str
    experts: int
    top_k: int
    lengths: list[int]  # of the sequences
    training: bool
    seed: int  # 0: nothing is drawn
    options: dict[str, Any] = field(default_factory=dict)
    spec: dict[str, Any] = field(default_factory=dict)
    step_counts: list[int] | None = None

    @property
    def tokens(self) -> int:
        return sum(self.lengths)

    @property
    def losses(self) -> set[str]:
        """That the recipe has, in training or not; none where no logits are."""
        if self.recipe == "hash":
            return set()
        return {n for n in self.train_spec["losses"] if n in LOSSES} | {"z"}

    @property
    def train_spec(self) -> dict[str, Any]:
        return complete(self.recipe, self.options, self.top_k, None)


def complete(recipe: str, options: dict[str, Any], k: int, mode: str | None) -> dict[str, Any]:
    """The recipe's stages with all their parameters; mode: of evaluation."""
    given = {"top_k": k, "expert_groups": 1, "groups_kept": 1, **copy.deepcopy(options)}
    if "routed_scaling_factor" in given:
        given["routed_scale"] = given["routed_scaling_factor"]
    if "stages" in given:
        given["stages"] = FORMULAS.complete_spec(given["stages"])
    stages = TABLE.stages_of(recipe, {**given, "eval": mode})
    spec: dict[str, Any] = FORMULAS.complete_spec(stages)
    return spec


def evaluations(recipe: str, train: dict[str, Any]) -> list[str | None]:
    """Ways of evaluation; None: not said, which is the first of the others."""
    if train["select"]["type"] == "expert_choice":
        if train["weigh"]["type"] == "token_softmax":
            return [None, "as-trained"]
        return [None, "threshold", "as-trained"]
    return [None, "dropless"] + (["as-trained"] if recipe in TABLE.HAS_CAPACITY else [])


def draw_case(recipe: str, index: int, kind: str) -> Case:
    rng = random.Random(f"{recipe}/{index}/{kind}")
    experts, groups, kept = rng.randint(4, 12), 1, 1
    if recipe in TABLE.GROUPED:
        groups = rng.randint(1, 4)
        experts = groups * rng.randint(-(-4 // groups) if groups < 3 else 2, 12 // groups)
        kept = rng.randint(1, groups)
    least = 2 if recipe in TABLE.RENORMALISED else 1
    most = kept * (experts // groups)
    k = TABLE.FIXED_K.get(recipe) or rng.randint(least, max(least, min(6, most)))
    case = Case(
        recipe=recipe,
        experts=experts,
        top_k=k,
        lengths=draw_lengths(rng),
        training=rng.random() < 0.6,
        seed=0,
    )
    case.options = draw_options(rng, case, groups, kept)
    if case.training:
        case.seed = rng.choice([0, rng.randint(1, 10**9)])
        case.spec = case.train_spec
    else:
        mode = rng.choice(evaluations(recipe, case.train_spec))
        if mode is not None:
            case.options["eval"] = mode
        case.spec = complete(
            recipe, case.options, k, mode or evaluations(recipe, case.train_spec)[1]
        )
    shares = case.spec["losses"].get("balance", {}).get("shares", "own")
    if shares != "own" and rng.random() < 0.6:
        case.step_counts = [rng.randint(0, 30) for _ in range(experts)]
        case.step_counts[0] += 1
    return case


def draw_lengths(rng: random.Random) -> list[int]:
    sequences = rng.randint(1, 3)
    if rng.random() < 0.4:
        return [rng.randint(3, 24 // sequences)] * sequences
    tokens = rng.randint(max(3, sequences), 24)
    cuts = sorted(rng.sample(range(1, tokens), sequences - 1))
    return [b - a for a, b in zip([0, *cuts], [*cuts, tokens], strict=True)]


def draw_options(rng: random.Random, case: Case, groups: int, kept: int) -> dict[str, Any]:
    recipe = case.recipe
    options: dict[str, Any] = {}
    if recipe == "custom":
        options["stages"] = draw_stages(rng, case)
        if options["stages"]["select"]["type"] == "expert_choice":
            options["capacity_factor"] = options["stages"]["select"]["factor"]
        return options
    if recipe in TABLE.GROUPED:
        options.update(expert_groups=groups, groups_kept=kept)
        if rng.random() < 0.5:
            options["routed_scaling_factor"] = rng.choice([1.0, 2.5, 16.0])
    if recipe in TABLE.HAS_CAPACITY | TABLE.EXPERTS_CHOOSE and rng.random() < 0.6:
        options["capacity_factor"] = rng.choice([0.5, 1.0, 1.25, 1.5, 2.0])
    if recipe in TABLE.OPEN_NORM and case.top_k > 1 and rng.random() < 0.4:
        options["norm_topk_prob"] = True
    if recipe in TABLE.HAS_BALANCE and rng.random() < 0.3:
        options["balance_over"] = rng.choice(list(TABLE.OVER))
    return options


def draw_stages(rng: random.Random, case: Case) -> dict[str, Any]:
    """What a file of stages can say and no recipe does."""
    k, experts = case.top_k, case.experts
    scope = rng.choice(["micro_batch", "sequence", {"group": rng.randint(2, 8)}])
    if rng.random() < 0.25:
        stages = {"score": rng.choice(["softmax", "sigmoid"]), "losses": {}}
        stages["select"] = {"type": "expert_choice", "factor": 1.5, "scope": scope}
        return stages
    score = rng.choice(["softmax", "sigmoid"])
    renormalise = rng.choice(["never", "before_drop", "after_drop"]) if k > 1 else "never"
    second: Any = "all"
    if k == 2:
        second = rng.choice(
            [{"type": "threshold", "least": 0.5, "relative": True}, {"type": "random", "full": 0.3}]
        )
    devices = rng.choice([d for d in range(2, experts + 1) if experts % d == 0])
    shares = rng.choice(["own", "running", "step"])
    noise: Any = rng.choice(["none", {"type": "jitter", "eps": 0.05}, {"type": "learned"}])
    select = {"type": "top_k", **rng.choice([{}, {"bias": {"rate": 0.001}}])}
    learned = {}
    if noise == {"type": "learned"}:
        learned = {"z_of_clean": rng.random() < 0.7, "load": "bias" not in select}
    return {
        "noise": noise,
        "logits": {"type": "linear", "bias": rng.random() < 0.5},
        "score": score,
        "select": select,
        "weigh": {
            "type": "scores",
            "renormalise": renormalise,
            "scale": 1.0 if renormalise == "after_drop" else 2.5,
        },
        "second": second,
        "capacity": {
            "type": "buffer",
            "factor": rng.choice([0.5, 0.75, 1.25]),
            "count_choices": rng.random() < 0.5,
            "rounding": rng.choice(["floor", "floor_to_even", "round", "ceil"]),
            "minimum": rng.randint(0, 3),
            "at_most_tokens": rng.random() < 0.5,
            "scope": scope,
            "skipped_take_room": second != "all" and rng.random() < 0.5,
            "order": rng.choice(
                ["choice_major", "token_major", "by_weight", "batch_priority", "random"]
            ),
        },
        "losses": {
            "balance": {
                "counts": rng.choice(["first_choice", "all_choices"]),
                "probs": "normalised_scores",
                "shares": shares,
                "scope": scope if shares == "own" else "micro_batch",
            },
            rng.choice(["device", "communication"]): {
                "devices": devices,
                "at_most": rng.randint(1, min(k, devices)),
                "scope": scope,
            },
            "importance": True,
            **learned,
        },
    }


# ---- numbers ----------------------------------------------------------------------------------


def normal(generator: Any, shape: Any, spread: float = 1.0) -> Any:
    return spread * torch.randn(shape, generator=generator)


def fill_router(router: Any, generator: Any) -> dict[str, Any]:
    """Random parameters and buffers, in place, by the oracle's names."""
    numbers = {}
    for name, tensor in [*router.named_parameters(), *router.named_buffers()]:
        spread = 1.5 / tensor.shape[-1] ** 0.5 if tensor.dim() == 2 else 0.3
        with torch.no_grad():
            tensor.copy_(draw_vector(name, tensor.shape, generator, spread))
        numbers[ROUTER[name]] = tensor.detach()
    return numbers


def draw_vector(name: str, shape: Any, generator: Any, spread: float = 0.3) -> Any:
    if name == "threshold":  # of scores
        return 0.05 + 0.5 * torch.rand(shape, generator=generator)
    return normal(generator, shape, spread)


def check_kinks(values: Any, what: str) -> None:
    """values [N, ...]: pre-activations whose derivative jumps at 0."""
    near = (values.abs() < KINK).reshape(values.shape[0], -1).any(1)
    if near.any():
        raise FORMULAS.NearTie(torch.nonzero(near).flatten().tolist(), what)


def has_loss(case: Case, name: str) -> bool:
    """Evaluation does not have all losses of training; what it has not is 0 there."""
    return name == "z" or name in case.spec["losses"]


def oracle_of(
    case: Case,
    numbers: dict[str, Any],
    dweights: list[list[float]] | None = None,
    coef: dict[str, float] | None = None,
) -> dict[str, Any]:
    """The oracle's reply, with its gradients where the last two are given. numbers: ids, logits,
    or x and the router's; dweights: ragged, as the choices are; coef: of the losses."""
    given = {name: tensor.tolist() for name, tensor in numbers.items()}
    given["sequences"] = list(case.lengths)
    if case.step_counts is not None:
        given["step_counts"] = case.step_counts
    if case.seed != 0:
        given.update(draw=True, seed=case.seed)
    if dweights is not None and case.recipe != "hash":
        coef = {name: c for name, c in (coef or {}).items() if has_loss(case, name)}
        given.update(dweights=dweights, coef=coef)
    reply: dict[str, Any] = FORMULAS.answer(case.spec, given, case.top_k, case.experts)
    return reply


def settle(compute: Callable[[], Any], redraw: Callable[[list[int]], None]) -> Any:
    """What compute() gives once no token is near to where f32 may decide otherwise."""
    for _attempt in range(60):
        try:
            return compute()
        except FORMULAS.NearTie as tie:
            redraw(sorted(tie.tokens))
    raise AssertionError("the case does not settle")


# ---- experts ----------------------------------------------------------------------------------


def expert_outputs(x: Any, banks: dict[str, Any], activation: str, gated: bool) -> Any:
    """[N,D] of tokens through every expert: [N,E,D]."""
    act = ACTIVATIONS[activation]
    up = "gate_up_proj" if gated else "up_proj"
    hidden = torch.einsum("nd,efd->nef", x, banks[up])
    if up + "_bias" in banks:
        hidden = hidden + banks[up + "_bias"]
    gate, rest = hidden.chunk(2, dim=-1) if gated else (hidden, None)
    if activation == "relu":
        check_kinks(gate.detach(), "kinks of relu")
    hidden = act(gate) if rest is None else act(gate) * rest
    out = torch.einsum("nef,edf->ned", hidden, banks["down_proj"])
    return out + banks["down_proj_bias"] if "down_proj_bias" in banks else out


@dataclass
class Layer:
    """A module's experts in float64."""

    x: Any  # [N,D]
    params: dict[str, Any]  # by their names in the module
    outputs: Any  # [N,E,D]
    shared: Any  # [N,D], or 0

    @classmethod
    def of(cls, module: Any, x: Any, activation: str, gated: bool) -> Layer:
        x64 = x.double().requires_grad_()
        params = {
            name: p.detach().double().requires_grad_()
            for name, p in module.named_parameters()
            if not name.startswith("router.")
        }

        def bank(prefix: str) -> dict[str, Any]:
            return {n.removeprefix(prefix): p for n, p in params.items() if n.startswith(prefix)}

        shared = 0
        if module.shared_experts is not None:
            shared = expert_outputs(x64, bank("shared_experts."), activation, gated)[:, 0]
            if module.shared_expert_gate is not None:
                shared = torch.sigmoid(x64 @ params["shared_expert_gate.weight"].T) * shared
        outputs = expert_outputs(x64, bank("experts."), activation, gated)
        return cls(x64, params, outputs, shared)

    def dweights(self, dy: Any, rows: list[list[int]]) -> list[list[float]]:
        """The gradient of the combine weights of the experts in `rows`."""
        dense = torch.einsum("nd,ned->ne", dy.double(), self.outputs.detach()).tolist()
        return [[dense[n][e] for e in row] for n, row in enumerate(rows)]

    def run(self, reply: Any, dy: Any) -> tuple[Any, dict[str, Any]]:
        """y, and the gradients of x and of params, the routing's part of x among them."""
        weights = torch.zeros(self.outputs.shape[:2], dtype=torch.float64)
        for n, (row, ws) in enumerate(zip(reply["experts"], reply["weights"], strict=True)):
            for e, w in zip(row, ws, strict=True):
                weights[n, e] += w
        y = torch.einsum("ne,ned->nd", weights, self.outputs) + self.shared
        leaves = {"x": self.x, **self.params}
        grads = torch.autograd.grad((y * dy.double()).sum(), list(leaves.values()))
        out = dict(zip(leaves, grads, strict=True))
        if "dx" in reply:
            out["x"] = out["x"] + torch.tensor(reply["dx"], dtype=torch.float64)
        return y.detach(), out
