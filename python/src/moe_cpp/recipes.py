"""The routing recipes: what there is, and any of them worked out on given numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from moe_cpp._errors import refuse
from moe_cpp._inputs import as_ids, as_numbers, as_options
from moe_cpp._library import LIBRARY, call_for_json
from moe_cpp.options import RouteOptions, takes_options

_LOSSES = ("balance", "z", "device", "communication", "importance", "load")
_EVENNESS = ("max_vio", "cv2", "entropy")
_GRADIENTS = (
    "dlogits",
    "dclean",
    "dsigma",
    "dscale",
    "dx",
    "dweight",
    "dup_weight",
    "dlogit_bias",
    "dnoise_weight",
)
_MATRICES = ("logits", "x", "weight", "up_weight", "noise", "sigma", "noise_weight")
_COUNTS = ("ids", "sequences", "step_counts")


@dataclass(frozen=True, eq=False)  # arrays have no one truth value
class RouteResult:
    """A recipe's routing of T tokens over E experts. K is the most experts that a token has.

    Attributes
    ----------
    experts : ndarray of int32 [T, K]
        In the order of choice; -1 where a token has fewer than K (where experts choose).
    weights : ndarray of float32 [T, K]
        The combine weights; 0 where a choice was not sent.
    kept : ndarray of bool [T, K]
        False where a choice found no room, or was not sent.
    counts : ndarray of int32 [E]
        Choices an expert has, before any drop.
    dropped : int
        Choices not sent.
    capacity : int, list of int, or None
        Places of an expert's buffer (of each group of tokens where they differ); None: no buffers.
    losses : dict of str to float
        Canonical: "balance" is 1 when even, "importance" and "load" are 0; "z" is the mean squared
        logsumexp.
    evenness : dict of str to float
        "max_vio" (max / mean - 1 of the counts), "cv2", "entropy" (over that of an even load).
    gradients : dict of str to ndarray of float32
        "dlogits" [T, E] and, by recipe and input, "dclean", "dsigma" [T, E], "dx" [T, D],
        "dweight", "dup_weight", "dnoise_weight" [E, D], "dlogit_bias", "dscale" [E]; empty
        without `coef` and `dweights`.
    """

    experts: NDArray[np.int32]
    weights: NDArray[np.float32]
    kept: NDArray[np.bool_]
    counts: NDArray[np.int32]
    dropped: int
    capacity: int | list[int] | None
    losses: dict[str, float]
    evenness: dict[str, float]
    gradients: dict[str, NDArray[np.float32]]


@takes_options("RouteOptions")
def route(
    logits: ArrayLike | None = None,
    recipe: str | None = None,
    top_k: int | None = None,
    *,
    x: ArrayLike | None = None,
    weight: ArrayLike | None = None,
    up_weight: ArrayLike | None = None,
    logit_bias: ArrayLike | None = None,
    noise_weight: ArrayLike | None = None,
    noise: ArrayLike | None = None,
    sigma: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    threshold: ArrayLike | None = None,
    scale: ArrayLike | None = None,
    ids: ArrayLike | None = None,
    sequences: ArrayLike | None = None,
    step_counts: ArrayLike | None = None,
    coef: Mapping[str, float] | None = None,
    dweights: ArrayLike | None = None,
    **options: Unpack[RouteOptions],
) -> RouteResult:
    """Works a routing recipe out on given numbers, as `moe route --logits` does.

    Parameters
    ----------
    logits : numbers [T, E]
        The router's output; instead of it x and weight, or for hash routing ids.
    recipe : str
        A name of `recipes()`; default: "olmoe", or "custom" with stages.
    top_k : int
        Experts a token takes; default: the recipe's own (8 for olmoe).
    x, weight : numbers [T, D], [E, D]
        The router's input and matrix; logits are their product.
    up_weight, logit_bias : numbers [E, D], [E]
        Of the recipes that have them: the up rows beside the gate rows that `weight` then holds,
        and what is added to the logits.
    noise_weight : numbers [E, D]
        Matrix of learned noise.
    noise, sigma : numbers [T, E]
        A draw of the noise, and its scale where there is no x.
    bias, threshold : numbers [E]
        Of the selection, and of expert choice evaluated by thresholds.
    scale : numbers [E]
        What experts' weights are scaled by, in the recipes that learn it.
    ids : whole numbers [T]
        Token ids, for hash routing.
    sequences : whole numbers
        Lengths of the sequences the T tokens are; default: one.
    step_counts : whole numbers [E]
        Counts of the optimizer step, for a balance loss over it.
    coef : dict
        Coefficients of the losses, by name, that the gradients are of.
    dweights : numbers [T, K]
        Gradients of the weights that the gradients start from.
    """
    arrays: dict[str, ArrayLike | None] = {
        "logits": logits,
        "x": x,
        "weight": weight,
        "up_weight": up_weight,
        "logit_bias": logit_bias,
        "noise": noise,
        "sigma": sigma,
        "noise_weight": noise_weight,
        "bias": bias,
        "threshold": threshold,
        "scale": scale,
        "ids": ids,
        "sequences": sequences,
        "step_counts": step_counts,
    }
    given: dict[str, object] = {"recipe": recipe, "top_k": top_k, "coef": coef, **options}
    given["dweights"] = None if dweights is None else _rows(dweights)
    for name, value in arrays.items():
        if value is not None:
            given[name] = (
                as_ids(value, name).tolist()
                if name in _COUNTS
                else as_numbers(value, name, 2 if name in _MATRICES else 1)
            )
    reply: Mapping[str, Any] = call_for_json(LIBRARY.moe_route, as_options(given))
    return _result(reply)


def _rows(dweights: ArrayLike) -> list[Any]:
    """Rows may differ in length where experts choose their tokens."""
    try:
        rows = list(dweights)  # type: ignore[arg-type]
    except TypeError:
        refuse("dweights must be rows of numbers, one row a token")
    return [as_numbers(row, f"dweights[{place}]", 1) for place, row in enumerate(rows)]


def _number(value: float | None) -> float:
    """JSON has null where a number is not finite."""
    return float("nan") if value is None else float(value)


def _result(reply: Mapping[str, Any]) -> RouteResult:
    rows: list[list[int]] = reply["experts"]
    shape = (len(rows), max((len(row) for row in rows), default=0))
    experts, weights, kept = (
        np.full(shape, -1, np.int32),
        np.zeros(shape, np.float32),
        np.zeros(shape, np.bool_),
    )
    for place, row in enumerate(rows):
        experts[place, : len(row)] = row
        weights[place, : len(row)] = reply["weights"][place]
        kept[place, : len(row)] = reply["kept"][place]
    return RouteResult(
        experts=experts,
        weights=weights,
        kept=kept,
        counts=np.array(reply["counts"], np.int32),
        dropped=reply["dropped"],
        capacity=reply["capacity"],
        losses={name: _number(reply[name]) for name in _LOSSES if name in reply},
        evenness={name: _number(reply[name]) for name in _EVENNESS},
        gradients={name: np.array(reply[name], np.float32) for name in _GRADIENTS if name in reply},
    )


def recipes() -> list[dict[str, Any]]:
    """The routing recipes: each one's name, formula, stages, defaults, losses, causality and
    source, as `moe recipes --json` has them."""
    found: list[dict[str, Any]] = call_for_json(LIBRARY.moe_recipes)
    return found
