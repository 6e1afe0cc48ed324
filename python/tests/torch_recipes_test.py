"""Every recipe of moe_cpp.torch against its formulas in float64: outputs, losses and gradients.

A hundred random layers of each recipe, and a hundred routings of logits, in training and in each
way of evaluation: with and without shared experts, their gate, biases and gates, of every
activation, over one to three sequences, with a coefficient on every loss. What a recipe draws in
training is drawn in about half of those cases, by the oracle's transcription of the engine's random
numbers; the others draw nothing.

Not covered: near ties, which f32 may decide otherwise (such tokens are drawn again; exact ties are
tools/golden/recipes_check.py's); bf16; seeds out of torch's generator; `recorded` choices; what
end_step() does to buffers; learned noise given to `route`, which draws none on logits, so the load
loss of its routing is one of counts, without a gradient.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import torch_formulas as oracle
from torch_formulas import Case, Layer, error

import moe_cpp as moe
import moe_cpp.torch as moe_torch

CASES = 100
TOLERANCE = 2e-5
RECIPES = [recipe["name"] for recipe in moe.recipes() if recipe["experts"] > 0]
OF_LOGITS = [name for name in RECIPES if name != "hash"]


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_every_recipe_has_formulas() -> None:
    assert set(RECIPES) == set(oracle.TABLE.ROWS)


def generator_of(recipe: str, index: int) -> Any:
    return torch.Generator().manual_seed(1000 * RECIPES.index(recipe) + index)


def seed_of(case: Case) -> Any:
    """Empty, which draws nothing, where the case's is 0."""
    return torch.tensor([case.seed] if case.seed != 0 else [], dtype=torch.int64)


def compare_routing(
    case: Case, routing: moe_torch.Routing, want: dict[str, Any], seen: Counter[str]
) -> dict[str, float]:
    """Choices must be equal; errors of the weights and losses."""
    chosen = routing.experts >= 0  # where experts choose there are gaps between

    def ragged(tensor: Any) -> list[list[Any]]:
        return [t[c].tolist() for t, c in zip(tensor.detach(), chosen, strict=True)]

    assert ragged(routing.experts) == want["experts"]
    assert ragged(routing.kept) == want["kept"]
    assert routing.counts.tolist() == want["counts"]
    assert not routing.kept[~chosen].any()
    assert not routing.weights[~routing.kept].any()
    assert set(routing.losses) == case.losses
    seen["drops"] += want["dropped"] > 0
    seen["draws"] += case.seed != 0
    seen["training" if case.training else "evaluation"] += 1
    found = {"weights": error(sum(ragged(routing.weights), []), sum(want["weights"], []))}
    for name, value in routing.losses.items():
        assert value.shape == ()
        wanted = want[name] if oracle.has_loss(case, name) else 0.0
        found[f"loss {name}"] = error(value.detach(), wanted)
    return found


def coefficients(case: Case, rng: random.Random) -> dict[str, float]:
    return {name: rng.uniform(0.02, 1.0) for name in sorted(case.losses)}


def total_of(y: Any, dy: Any, losses: dict[str, Any], coef: dict[str, float]) -> Any:
    return sum((coef[name] * losses[name] for name in coef), start=(y * dy).sum())


def gradient(leaf: Any) -> Any:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad


class LayerCase:
    """A layer with its input and all that is random about it."""

    def __init__(self, recipe: str, index: int) -> None:
        self.case = case = oracle.draw_case(recipe, index, "layer")
        rng = random.Random(f"{recipe}/{index}/numbers")
        self.generator = generator_of(recipe, index)
        self.activation = rng.choice(list(oracle.ACTIVATIONS))
        self.gated = rng.random() < 0.7
        shared = rng.choice([None, 0, 1, 2])
        self.width = rng.randint(8, 24)
        self.module = moe_torch.MoE(
            self.width,
            rng.randint(8, 24),
            case.experts,
            None if recipe in oracle.TABLE.FIXED_K else case.top_k,
            recipe,
            activation=self.activation,
            gated=self.gated,
            bias=rng.random() < 0.5,
            shared_experts=shared,
            shared_gate=rng.choice([None, True, False]),
            **case.options,
        ).train(case.training)
        self.numbers = oracle.fill_router(self.module.router, self.generator)
        for name, p in self.module.named_parameters():
            if not name.startswith("router."):
                spread = 0.3 if name.endswith("bias") else p.shape[-1] ** -0.5
                with torch.no_grad():
                    p.copy_(oracle.normal(self.generator, p.shape, spread))
        self.x = oracle.normal(self.generator, (case.tokens, self.width))
        self.dy = oracle.normal(self.generator, (case.tokens, self.width))
        self.coef = coefficients(case, rng)
        self.ids = None
        if recipe == "hash":
            self.ids = torch.tensor([rng.randint(0, 50256) for _ in range(case.tokens)])
        # One sequence needs no bounds, and those of one length are dimensions of x.
        self.as_batch = len(set(case.lengths)) == 1 and rng.random() < 0.7
        self.layer, self.rows = oracle.settle(self.chosen, self.redraw)

    def redraw(self, tokens: list[int]) -> None:
        self.x[tokens] = oracle.normal(self.generator, (len(tokens), self.width))

    def inputs(self) -> dict[str, Any]:
        return {"ids": self.ids} if self.ids is not None else {"x": self.x, **self.numbers}

    def chosen(self) -> tuple[Layer, list[list[int]]]:
        """The experts in float64 and, alone, what the oracle chooses of them."""
        if self.case.spec["logits"]["type"] == "analytic":
            for name in ("weight", "up_weight"):
                oracle.check_kinks(self.x.double() @ self.numbers[name].double().T, "logits of 0")
        layer = Layer.of(self.module, self.x, self.activation, self.gated)
        return layer, oracle.oracle_of(self.case, self.inputs())["experts"]

    def call(self) -> tuple[Any, Any]:
        """The module's output and the gradient of x, both [N,D]; those of params lie with them."""
        case, x = self.case, self.x.clone().requires_grad_()
        more: dict[str, Any] = {"seed": seed_of(case)}
        shaped, ids = x, self.ids
        if self.as_batch:
            shaped = x.reshape(len(case.lengths), -1, self.width)
            ids = None if ids is None else ids.reshape(shaped.shape[:-1])
        elif len(case.lengths) > 1:
            more["bounds"] = torch.tensor([0, *itertools.accumulate(case.lengths)])
        if case.step_counts is not None:
            more["step_counts"] = torch.tensor(case.step_counts)
        y = self.module(shaped, ids=ids, **more)
        assert y.shape == shaped.shape
        flat = y.reshape(x.shape)
        total_of(flat, self.dy, self.module.losses, self.coef).backward()
        return flat.detach(), x.grad

    def errors(self, seen: Counter[str]) -> dict[str, float]:
        case, module = self.case, self.module
        dweights = self.layer.dweights(self.dy, self.rows)
        want = oracle.oracle_of(case, self.inputs(), dweights, self.coef)
        y, dx = self.call()
        found = compare_routing(case, module.routing, want, seen)
        y64, grads = self.layer.run(want, self.dy)
        found["y"], found["grad x"] = error(y, y64), error(dx, grads.pop("x"))
        for part, of_it in oracle.ROUTER.items():
            if f"d{of_it}" in want:
                grads[f"router.{part}"] = want[f"d{of_it}"]
        for name, p in module.named_parameters():
            if name == "router.noise_weight" and not case.training:
                grads[name] = torch.zeros_like(p)
            found[f"grad {name}"] = error(gradient(p), grads[name])
        return found


class LogitsCase:
    """Logits and all that is random about their routing."""

    def __init__(self, recipe: str, index: int) -> None:
        self.case = oracle.draw_case(recipe, index, "logits")
        rng = random.Random(f"{recipe}/{index}/numbers of logits")
        self.generator = generator_of(recipe, CASES + index)
        self.logits = self.draw(self.case.tokens)
        self.coef = coefficients(self.case, rng)
        # Vectors of the recipes that have them.
        spec = self.case.spec
        there = {
            "bias": bool(self.case.train_spec["select"].get("bias")) and rng.random() < 0.8,
            "scale": spec["weigh"]["type"] in oracle.FORMULAS.SCALED and rng.random() < 0.8,
            "threshold": spec["select"]["type"] == "threshold",
        }
        self.vectors = {
            name: oracle.draw_vector(name, (self.case.experts,), self.generator)
            for name, is_there in there.items()
            if is_there
        }
        self.rows = oracle.settle(
            lambda: oracle.oracle_of(self.case, self.inputs())["experts"], self.redraw
        )

    def inputs(self) -> dict[str, Any]:
        return {"logits": self.logits, **self.vectors}

    def draw(self, tokens: int) -> Any:
        return oracle.normal(self.generator, (tokens, self.case.experts), 1.5)

    def redraw(self, tokens: list[int]) -> None:
        self.logits[tokens] = self.draw(len(tokens))

    def errors(self, seen: Counter[str]) -> dict[str, float]:
        case = self.case
        leaves = {"logits": self.logits.clone().requires_grad_()}
        vectors = {name: v.clone() for name, v in self.vectors.items()}
        if "scale" in vectors:
            leaves["scale"] = vectors["scale"].requires_grad_()
        routing = moe_torch.route(
            leaves["logits"],
            case.recipe,
            None if case.recipe in oracle.TABLE.FIXED_K else case.top_k,
            selection_bias=vectors.get("bias"),
            scale=vectors.get("scale"),
            threshold=vectors.get("threshold"),
            sequences=case.lengths if len(case.lengths) > 1 else None,
            step_counts=None if case.step_counts is None else torch.tensor(case.step_counts),
            training=case.training,
            seed=seed_of(case),
            **case.options,
        )
        dweights = oracle.normal(self.generator, routing.weights.shape)
        ragged = [dw[c].tolist() for dw, c in zip(dweights, routing.experts >= 0, strict=True)]
        want = oracle.oracle_of(case, self.inputs(), ragged, self.coef)
        found = compare_routing(case, routing, want, seen)
        total_of(routing.weights, dweights, routing.losses, self.coef).backward()
        for name, leaf in leaves.items():
            found[f"grad {name}"] = error(gradient(leaf), want["d" + name])
        return found


def compare_all(kind: type[LayerCase] | type[LogitsCase], recipe: str) -> None:
    wrong = []
    seen = Counter[str]()
    for index in range(CASES):
        drawn = kind(recipe, index)
        for name, value in drawn.errors(seen).items():
            if not value <= TOLERANCE:
                wrong.append(f"{name} differs by {value:.1e} in case {index}: {drawn.case}")
    assert not wrong, "\n".join(wrong)
    # The cases have met what they are there for.
    assert seen["training"] > CASES // 4
    assert seen["evaluation"] > CASES // 4
    assert seen["draws"] > CASES // 10
    if recipe in oracle.TABLE.HAS_CAPACITY | {"custom"}:
        assert seen["drops"] > CASES // 20


@pytest.mark.parametrize("recipe", RECIPES)
def test_layer_is_the_formula(recipe: str) -> None:
    compare_all(LayerCase, recipe)


@pytest.mark.parametrize("recipe", OF_LOGITS)
def test_routing_of_logits_is_the_formula(recipe: str) -> None:
    compare_all(LogitsCase, recipe)


def test_hash_routing_reads_no_logits() -> None:
    with pytest.raises(moe.Error, match="reads token ids and no logits"):
        moe_torch.route(torch.zeros(3, 4), "hash", 1)


def test_module_counts_over_an_optimizer_step() -> None:
    draws = torch.Generator().manual_seed(1)
    a, b = (oracle.normal(draws, (20, 8)) for _ in range(2))
    layer = moe_torch.MoE(8, 8, 6, 2, "olmoe", balance_over="running")

    def balance_of(x: Any, **more: Any) -> float:
        layer(x, **more)
        return float(layer.losses["balance"].detach())

    balance_of(a)
    assert layer.routing is not None
    counts = layer.routing.counts
    after_a = balance_of(b)
    moe_torch.end_step(layer)
    alone = balance_of(b)
    assert alone != after_a
    assert balance_of(b, step_counts=counts) == after_a
    moe_torch.end_step(layer)
    assert balance_of(b) == alone
