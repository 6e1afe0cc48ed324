"""A model and a text small enough for a second of training."""

from __future__ import annotations

from typing import Any

import numpy as np

TINY: dict[str, Any] = {
    "layers": 2,
    "width": 32,
    "heads": 2,
    "experts": 4,
    "top_k": 2,
    "expert_width": 24,
    "context": 64,
    "batch": 4,
    "lr": 3e-3,
    "warmup": 2,
    "threads": 1,
}

# Of a model that is hardly trained: one step of a context of 16.
ONE_STEP: dict[str, Any] = {
    "width": 16,
    "heads": 2,
    "context": 16,
    "batch": 2,
    "steps": 1,
    "warmup": 0,
    "threads": 1,
}


def text_of(words: int, seed: int) -> str:
    draw = np.random.default_rng(seed)
    known = "the a small large expert router token learns routes reads writes and then größer 字 line".split()
    return (
        " ".join(known[i] for i in np.minimum(draw.geometric(0.2, words) - 1, len(known) - 1))
        + "\n"
    )
