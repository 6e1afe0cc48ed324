"""What a router remembers of an optimizer step: the sums of its calls, and what stood there before
each. torch.utils.checkpoint computes a call twice, the second time inside the backward; that one
is not counted, and sees what the first has seen.

These are operators so that a compiled call, too, is asked when it runs and not when it is traced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from moe_cpp.torch._engine import Engine
from moe_cpp.torch._ops import number_of

_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, eq=False)
class _Forward:
    seed: int
    content: int
    before: Tensor  # int64 [E]: the step's counts when it began

    def alike(self, other: _Forward) -> int:
        """In how much two are the same. One sign is enough for a call computed again: its seed is
        another with preserve_rng_state=False, and its input where sums come out otherwise; while
        calls of one step may be given the same seed, or the same input."""
        return (self.seed == other.seed) + (self.content == other.content)


def _is_again() -> bool:
    """A forward inside a backward is one that was seen before."""
    return torch._C._current_graph_task_id() != -1


def _content(x: Tensor) -> int:
    """A number of the bits of x."""
    return int(x.detach().view(_BITS[x.element_size()]).sum(dtype=torch.int64))


@torch.library.custom_op("moe_cpp::counts_before", mutates_args=(), device_types="cpu")
def _counts_before(engine: str, x: Tensor, seed: Tensor, sums: Tensor) -> Tensor:
    seen = Engine.of(engine).forwards
    now = _Forward(number_of(seed), _content(x), sums.clone())
    if not _is_again():
        seen.append(now)
        return sums.clone()
    # A copy, since another thread's call may be added meanwhile.
    first = max(reversed(tuple(seen)), key=now.alike, default=now)
    return (first if first.alike(now) > 0 else now).before.clone()


@_counts_before.register_fake
def _(engine: str, x: Tensor, seed: Tensor, sums: Tensor) -> Tensor:
    return torch.empty_like(sums)


def counts_before(engine: Engine, x: Tensor, seed: Tensor, sums: Tensor) -> Tensor:
    """int64 [E]: sums, the step's counts so far, or what they were when x was routed first."""
    counts: Tensor = _counts_before(engine.key, x, seed, sums)
    return counts


@torch.library.custom_op("moe_cpp::count", mutates_args=("sums",), device_types="cpu")
def _count(sums: Sequence[Tensor], call: Sequence[Tensor]) -> None:
    if _is_again():
        return
    for total, value in zip(sums, call, strict=True):
        total += value


@_count.register_fake
def _(sums: Sequence[Tensor], call: Sequence[Tensor]) -> None:
    return None


def count(sums: Sequence[Tensor], call: Sequence[Tensor]) -> None:
    """Adds a call's numbers to the step's."""
    _count(sums, call)
