"""Routing as tensors: a recipe's router as a module, and a recipe on logits of one's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from moe_cpp._errors import refuse
from moe_cpp.torch import _ops, _step
from moe_cpp.torch._engine import Engine, after_load, self_contained

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


def seed_of(seed: int | Tensor | None, training: bool) -> Tensor:
    """Of what the recipe draws, as the operators take it: any number of 64 bits, or empty where
    nothing is drawn. None: out of torch's generator where it trains."""
    if isinstance(seed, Tensor):
        return seed
    if seed is not None:
        if not -(2**63) <= seed < 2**64:
            refuse(f"seed is {seed}; it is a number from -2**63 to 2**64 - 1, as torch's own")
        return torch.tensor(seed - 2**64 if seed >= 2**63 else seed, dtype=torch.int64)
    if not training:
        return torch.empty(0, dtype=torch.int64)
    return torch.randint(1, 2**62, (), dtype=torch.int64)


def run(
    engine: Engine,
    inputs: dict[str, Tensor | None],
    params: Sequence[Tensor],
    training: bool,
    seed: Tensor,
) -> Routing:
    """seed: as seed_of has it."""
    weights, losses, experts, sent, counts, balance_counts, cutoff = _ops.route(
        engine, inputs, params, training, seed
    )
    named = {
        name: losses[place]
        for place, name in enumerate(engine.about["loss_order"])
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
        self.register_load_state_dict_post_hook(after_load)
        for row in self.engine.about["params"]:
            attribute = _ATTRIBUTES[row["name"]]
            if row["trained"]:
                self.register_parameter(attribute, nn.Parameter(torch.zeros(row["shape"])))
            else:  # f32 whatever the default is: bf16 would lose the small moves of a step
                self.register_buffer(attribute, torch.zeros(row["shape"], dtype=torch.float32))
        # Sums over the calls of an optimizer step. No buffers: those would be saved, and
        # DistributedDataParallel would replace them by one process's.
        experts = self.engine.about["experts"]
        self._counts = torch.zeros(experts, dtype=torch.int64)
        self._balance_counts = torch.zeros(experts, dtype=torch.int64)
        self._cutoff = torch.zeros(experts, dtype=torch.float32)
        self._calls = torch.zeros((), dtype=torch.int64)

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
        drawn = seed_of(seed, self.training)
        if step_counts is None and self.about["running_balance"]:
            if self.training and x.shape[0] > 0:
                step_counts = _step.counts_before(self.engine, x, drawn, self._balance_counts)
            else:
                step_counts = self._balance_counts.clone()
        inputs = {
            "x": x,
            "ids": ids,
            "bounds": bounds,
            "recorded": recorded,
            "step_counts": step_counts,
        }
        routing = run(self.engine, inputs, self.params(), self.training, drawn)
        if self.training and x.shape[0] > 0:
            self._remember(routing)
        return routing

    @torch.no_grad()
    def _remember(self, routing: Routing) -> None:
        _step.count(
            [self._counts, self._balance_counts, self._cutoff, self._calls],
            [routing.counts, routing.balance_counts, routing.cutoff, torch.ones_like(self._calls)],
        )

    @torch.no_grad()
    def end_step(self) -> None:
        """After an optimizer step: moves the buffers of recipes that have them."""
        counts, cutoff, calls = self._counts, self._cutoff, self._calls.float()
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            for sums in (counts, cutoff, calls):
                torch.distributed.all_reduce(sums)
        moved = [n for n in ("router.bias", "router.threshold") if n in self.engine.names]
        if moved and calls > 0:
            buffers = [getattr(self, _ATTRIBUTES[name]) for name in moved]
            precise = [buffer.float() for buffer in buffers]
            self.engine.end_step(list(zip(moved, precise, strict=True)), counts, cutoff / calls)
            for buffer, numbers in zip(buffers, precise, strict=True):
                buffer.copy_(numbers)
        for sums in (counts, self._balance_counts, cutoff, self._calls):
            sums.zero_()
        self.engine.forwards.clear()


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
        Of recipes that have them (deepseek-v3; gemma4; expert choice evaluated by thresholds);
        default: what a new layer starts at, 0, of gemma4's scale 1.
    sequences : list of int
        Lengths of the sequences that the tokens are; default: one.
    recorded, step_counts, seed
        As in MoE's call.
    training : bool
        Route as in training (capacity, second choices), or as in evaluation.
    options
        Further ones of the recipe, as `moe_cpp.route` has them.
    """
    if not isinstance(logits, Tensor) or logits.dim() == 0:
        refuse("logits must be a tensor [..., experts]; moe_cpp.route takes lists and arrays")
    experts = logits.shape[-1]
    flat = logits.reshape(-1, experts).float()
    asked = {"recipe": recipe, "top_k": top_k, "experts": experts, **options}
    given = {name: value for name, value in asked.items() if value is not None}
    key = repr(sorted(self_contained(given).items()))
    engine = _LOGIT_ENGINES.get(key)
    if engine is None:
        engine = _LOGIT_ENGINES.setdefault(key, Engine(given))
    if engine.about["needs_ids"]:
        refuse(f"recipe {recipe!r} reads token ids and no logits; MoE has it")
    vectors = {"selection_bias": selection_bias, "scale": scale, "threshold": threshold}
    by_engine = dict(zip(("router.bias", "router.scale", "router.threshold"), vectors, strict=True))
    for name, keyword in by_engine.items():
        if vectors[keyword] is not None and name not in engine.names:
            refuse(f"recipe {recipe!r} has no {keyword}; leave it out")
    first = {"scale": engine.about["first_expert_scale"]}
    params = []
    for keyword in (by_engine[name] for name in engine.names):
        vector = vectors[keyword]
        start = torch.full((experts,), float(first.get(keyword, 0)), dtype=torch.float32)
        params.append(start if vector is None else vector.float())
    bounds = None
    if sequences is not None:
        if sum(sequences) != flat.shape[0]:
            refuse(f"sequences have {sum(sequences)} tokens and logits {flat.shape[0]}")
        bounds = torch.tensor([0, *sequences], dtype=torch.int64).cumsum(0)
    inputs = {
        "logits": flat,
        "bounds": bounds,
        "recorded": recorded,
        "step_counts": step_counts,
    }
    return run(engine, inputs, params, training, seed_of(seed, training))
