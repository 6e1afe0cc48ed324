"""The activations that the engine has in one pass with gate and weight."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": nn.functional.silu,
    "gelu": nn.functional.gelu,
    "gelu_tanh": lambda x: nn.functional.gelu(x, approximate="tanh"),
    "relu": nn.functional.relu,
}


@torch.no_grad()
def name_of(function: object) -> str | None:
    """By what it computes, since one function goes by several classes; None: none of them."""
    x = torch.linspace(-20, 20, 401, dtype=torch.float32)
    if callable(function):
        y = function(x)
        for name, known in ACTIVATIONS.items():
            if torch.allclose(y, known(x), rtol=1e-5, atol=1e-6):
                return name
    return None
