"""Routing as tensors: a recipe's router as a module, and a recipe on logits of one's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from moe_cpp._errors import refuse
from moe_cpp.torch import _ops
from moe_cpp.torch._engine import Engine

# What a parameter of a router is called in a module, by its name in the engine.
_ATTRIBUTES = {
    "router.weight": "weight",
    "router.up.weight": "up_weight",
    "router.logit_bias": "bias",
    "router.noise.weight": "noise_weight",
    "router.scale": "scale",
    "router.bias": "e_score_correction_bias",
    "router.threshold": "threshold",
}


@dataclass(frozen=True, eq=False)  # tensors have no one truth value
class Routing:
    """Where N tokens went, of E experts. K: top_k, and E where experts choose their tokens.

    Attributes
    ----------
    experts : int32 [N, K]
        In the order of choice; -1 where there is none: a token that fewer than K experts took.
    weights : float32 [N, K]
        The combine weights, with their gradient; 0 where a choice was not sent.
    kept : bool [N, K]
        False where a choice was not sent: it found no room, or a second choice was held back.
    counts : int32 [E]
        Choices that an expert has, before any drop.
    losses : dict of str to float32 scalar
        Those of the recipe, canonical ("balance" is 1 when even), with their gradient.
    """

    experts: Tensor
    weights: Tensor
    kept: Tensor
    counts: Tensor
    losses: dict[str, Tensor]
    sent: Tensor  # int32 [N, K]: experts where kept, else -1
    balance_counts: Tensor  # int32 [E]: what the balance loss counts
    cutoff: Tensor  # float32 [E]: where experts choose, the lowest score each took


def run(
    engine: Engine,
    inputs: dict[str, Tensor | None],
    params: Sequence[Tensor],
    training: bool,
    seed: int | Tensor | None,
) -> Routing:
    """seed: of what the recipe draws; None: drawn from torch's generator where it trains."""
    if seed is None:
        seed = torch.randint(1, 2**62, ()) if training else torch.zeros((), dtype=torch.int64)
    elif isinstance(seed, int):
        seed = torch.tensor(seed, dtype=torch.int64)
    weights, losses, experts, sent, counts, balance_counts, cutoff = _ops.route(
        engine, inputs, params, training, seed
    )
    named = {
        name: losses[_ops.LOSSES.index(name)]
        for name in _ops.LOSSES
        if name in engine.about["losses"]
    }
    return Routing(
        experts, weights, sent >= 0, counts, named, sent, balance_counts, cutoff.detach()
    )


class Router(nn.Module):
    """A recipe's router: its parameters, and what it remembers of an optimizer step."""

    def __init__(self, options: Mapping[str, object]) -> None:
        super().__init__()
        self.engine = Engine(options)
        for row in self.engine.about["params"]:
            attribute = _ATTRIBUTES[row["name"]]
            value = torch.zeros(row["shape"])
            if row["trained"]:
                self.register_parameter(attribute, nn.Parameter(value))
            else:
                self.register_buffer(attribute, value)
        # Sums over the calls of an optimizer step; not saved.
        self._counts: Tensor | None = None
        self._balance_counts: Tensor | None = None
        self._cutoff: Tensor | None = None
        self._calls = 0

    @property
    def about(self) -> dict[str, Any]:
        return self.engine.about

    def params(self) -> list[Tensor]:
        """In the engine's order. Routers compute in f32 whatever the rest of the model does."""
        return [getattr(self, _ATTRIBUTES[name]).float() for name in self.engine.names]

    def forward(
        self,
        x: Tensor,
        ids: Tensor | None = None,
        bounds: Tensor | None = None,
        recorded: Tensor | None = None,
        step_counts: Tensor | None = None,
        seed: int | Tensor | None = None,
    ) -> Routing:
        if step_counts is None and self.about["balance_over_step"]:
            step_counts = self._balance_counts
        inputs = {
            "x": x,
            "ids": ids,
            "bounds": bounds,
            "recorded": recorded,
            "step_counts": step_counts,
        }
        routing = run(self.engine, inputs, self.params(), self.training, seed)
        if self.training:
            self._remember(routing)
        return routing

    @torch.no_grad()
    def _remember(self, routing: Routing) -> None:
        # A forward inside a backward is one that was seen before (torch.utils.checkpoint).
        if torch.compiler.is_compiling() or torch._C._current_graph_task_id() != -1:
            return
        counts, balance = routing.counts.long(), routing.balance_counts.long()
        self._counts = counts if self._counts is None else self._counts + counts
        self._balance_counts = (
            balance if self._balance_counts is None else self._balance_counts + balance
        )
        self._cutoff = routing.cutoff if self._cutoff is None else self._cutoff + routing.cutoff
        self._calls += 1

    @torch.no_grad()
    def end_step(self) -> None:
        """After an optimizer step: moves the buffers of recipes that have them."""
        if self._calls == 0:
            return
        assert self._counts is not None and self._cutoff is not None
        counts, cutoff = self._counts, self._cutoff / self._calls
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(counts)
            torch.distributed.all_reduce(cutoff, op=torch.distributed.ReduceOp.AVG)
        moved = [n for n in ("router.bias", "router.threshold") if n in self.engine.names]
        if moved:
            self.engine.end_step(
                [(n, getattr(self, _ATTRIBUTES[n])) for n in moved], counts, cutoff
            )
        self._counts = self._balance_counts = self._cutoff = None
        self._calls = 0


_LOGIT_ENGINES: dict[str, Engine] = {}


def route(
    logits: Tensor,
    recipe: str = "olmoe",
    top_k: int | None = None,
    *,
    selection_bias: Tensor | None = None,
    scale: Tensor | None = None,
    threshold: Tensor | None = None,
    sequences: Sequence[int] | None = None,
    recorded: Tensor | None = None,
    step_counts: Tensor | None = None,
    training: bool = True,
    seed: int | Tensor | None = None,
    **options: object,
) -> Routing:
    """A recipe's routing of logits, differentiable, for experts of one's own.

    Parameters
    ----------
    logits : float tensor [..., E]
        The router's output. Noise on a router's input or logits is not drawn here.
    recipe, top_k
        As in MoE.
    selection_bias, scale, threshold : float tensor [E]
        Of recipes that have them (deepseek-v3; expert choice evaluated by thresholds); default: 0.
    sequences : list of int
        Lengths of the sequences that the tokens are; default: one.
    recorded, step_counts, seed
        As in MoE's call.
    training : bool
        Route as in training (capacity, second choices), or as in evaluation.
    options
        Further ones of the recipe, as `moe_cpp.route` has them.
    """
    experts = logits.shape[-1]
    flat = logits.reshape(-1, experts).float()
    asked = {"recipe": recipe, "top_k": top_k, "experts": experts, **options}
    given = {name: value for name, value in asked.items() if value is not None}
    key = repr(sorted(given.items()))
    engine = _LOGIT_ENGINES.get(key)
    if engine is None:
        engine = _LOGIT_ENGINES[key] = Engine(given)
    if engine.about["needs_ids"]:
        refuse(f"recipe {recipe!r} reads token ids and no logits; MoE has it")
    vectors = {
        "router.bias": selection_bias,
        "router.scale": scale,
        "router.threshold": threshold,
    }
    for name, vector in vectors.items():
        if vector is not None and name not in engine.names:
            refuse(f"recipe {recipe!r} has no {name.removeprefix('router.')}; leave it out")
    params = [torch.zeros(experts) if vectors[n] is None else vectors[n] for n in engine.names]
    bounds = None
    if sequences is not None:
        bounds = torch.tensor([0, *sequences], dtype=torch.int64).cumsum(0)
    inputs = {
        "logits": flat,
        "bounds": bounds,
        "recorded": recorded,
        "step_counts": step_counts,
    }
    return run(engine, inputs, [p.float() for p in params if p is not None], training, seed)
