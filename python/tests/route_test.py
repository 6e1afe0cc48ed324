"""Recipes worked out by the library against a NumPy transcription, and against `moe route`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import moe_cpp as moe


def drawn(tokens: int, experts: int, seed: int = 1) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((tokens, experts)).astype(np.float32)


def softmax(z: NDArray[Any]) -> NDArray[np.float64]:
    e = np.exp(z.astype(np.float64) - z.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


@pytest.mark.parametrize(
    ("tokens", "experts", "k", "norm"),
    [(1, 2, 1, False), (7, 8, 2, False), (7, 8, 2, True), (50, 16, 5, False), (50, 16, 5, True)],
)
def test_softmax_top_k_of_numpy(tokens: int, experts: int, k: int, norm: bool) -> None:
    z = drawn(tokens, experts, experts)
    ours = moe.route(z, recipe="olmoe", top_k=k, norm_topk_prob=norm)
    p = softmax(z)
    chosen = np.argsort(-p, axis=1, kind="stable")[:, :k]
    w = np.take_along_axis(p, chosen, 1)
    if norm:
        w = w / w.sum(1, keepdims=True)
    np.testing.assert_array_equal(ours.experts, chosen)
    np.testing.assert_allclose(ours.weights, w, rtol=2e-6)
    counts = np.bincount(chosen.ravel(), minlength=experts)
    np.testing.assert_array_equal(ours.counts, counts)
    assert ours.kept.all()
    assert ours.dropped == 0
    assert ours.capacity is None
    assert [str(array.dtype) for array in (ours.experts, ours.weights, ours.kept, ours.counts)] == [
        "int32",
        "float32",
        "bool",
        "int32",
    ]
    balance = experts * (counts / counts.sum() * p.mean(0)).sum()
    z_loss = (np.log(np.exp(z.astype(np.float64)).sum(1)) ** 2).mean()
    assert ours.losses == {
        "balance": pytest.approx(balance, rel=1e-5),
        "z": pytest.approx(z_loss, rel=1e-5),
    }
    assert ours.evenness["max_vio"] == pytest.approx(counts.max() / counts.mean() - 1, rel=1e-5)
    assert ours.gradients == {}


def test_gradients_are_those_of_differences() -> None:
    z, k = drawn(5, 6), 2
    dweights, coef = drawn(5, k, 7), {"balance": 0.3, "z": 0.05}

    def objective(logits: NDArray[np.float64]) -> float:
        p = softmax(logits)
        chosen = np.argsort(-softmax(z), axis=1)[:, :k]
        share = np.bincount(chosen.ravel(), minlength=6) / chosen.size
        z_loss = (np.log(np.exp(logits).sum(1)) ** 2).mean()
        return float(
            (np.take_along_axis(p, chosen, 1) * dweights).sum()
            + coef["balance"] * 6 * (share * p.mean(0)).sum()
            + coef["z"] * z_loss
        )

    ours = moe.route(z, "olmoe", k, dweights=dweights, coef=coef).gradients["dlogits"]
    assert ours.dtype == np.float32
    step = 1e-5
    for place in np.ndindex(z.shape):
        up, down = z.astype(np.float64), z.astype(np.float64)
        up[place] += step
        down[place] -= step
        assert ours[place] == pytest.approx(
            (objective(up) - objective(down)) / (2 * step), abs=2e-6
        )


def test_from_x_and_weight() -> None:
    x, weight = drawn(9, 12), drawn(4, 12, 3)
    ours = moe.route(recipe="mixtral", top_k=2, x=x, weight=weight, dweights=np.ones((9, 2)))
    theirs = moe.route(x @ weight.T, recipe="mixtral", top_k=2)
    np.testing.assert_array_equal(ours.experts, theirs.experts)
    np.testing.assert_allclose(ours.weights, theirs.weights, rtol=1e-5)
    assert ours.gradients["dx"].shape == x.shape
    assert ours.gradients["dweight"].shape == weight.shape


def test_all_recipes_are_the_commands(tmp_path: Path, command: Callable[..., Any]) -> None:
    z = drawn(12, 8)
    seen = 0
    for recipe in moe.recipes():
        name = recipe["name"]
        if recipe["experts"] == 0 or name in ("hash", "custom"):
            continue
        top_k = [] if recipe["top_k_is_fixed"] else ["--top-k", 2]
        file = tmp_path / "z.json"
        file.write_text(json.dumps({"logits": z.tolist(), "coef": {"z": 0.1}}))
        theirs = command("route", "--logits", file, "--recipe", name, *top_k)
        ours = moe.route(z, name, 2 if top_k else None, coef={"z": 0.1})
        for token, row in enumerate(theirs["experts"]):
            n = len(row)
            assert ours.experts[token, :n].tolist() == row
            assert (ours.experts[token, n:] == -1).all()
            assert (
                ours.weights[token, :n].tolist()
                == np.array(theirs["weights"][token], np.float32).tolist()
            )
            assert ours.kept[token, :n].tolist() == theirs["kept"][token]
        assert ours.counts.tolist() == theirs["counts"]
        assert ours.dropped == theirs["dropped"]
        assert ours.capacity == theirs["capacity"]
        np.testing.assert_array_equal(
            ours.gradients["dlogits"], np.array(theirs["dlogits"], np.float32)
        )
        seen += 1
    assert seen >= 12


@pytest.mark.parametrize(
    "given",
    [
        {
            "recipe": "st-moe",
            "top_k": 2,
            "x": drawn(12, 6),
            "weight": drawn(4, 6, 2),
            "noise": drawn(12, 4, 3),
        },
        {
            "recipe": "shazeer",
            "top_k": 2,
            "logits": drawn(12, 4),
            "noise": drawn(12, 4, 3),
            "sigma": np.abs(drawn(12, 4, 4)) + 0.1,
        },
        {
            "recipe": "shazeer",
            "top_k": 2,
            "x": drawn(12, 6),
            "weight": drawn(4, 6, 2),
            "noise_weight": drawn(4, 6, 3),
            "noise": drawn(12, 4, 4),
        },
        {
            "recipe": "cmoe",
            "top_k": 2,
            "x": drawn(12, 6),
            "weight": drawn(4, 6, 2),
            "up_weight": drawn(4, 6, 3),
            "scale": drawn(1, 4, 4)[0],
            "coef": {"z": 0.1},
        },
        {
            "recipe": "carved",
            "top_k": 2,
            "x": drawn(12, 6),
            "weight": drawn(4, 6, 2),
            "logit_bias": drawn(1, 4, 3)[0],
            "coef": {"z": 0.1},
        },
        {
            "recipe": "deepseek-v3",
            "top_k": 2,
            "logits": drawn(12, 8),
            "bias": drawn(1, 8, 9)[0],
            "expert_groups": 4,
            "groups_kept": 2,
        },
        {
            "recipe": "expert-choice",
            "logits": drawn(12, 4),
            "threshold": [0.1, 0.2, 0.3, 0.4],
            "eval": "threshold",
        },
        {
            "recipe": "gshard",
            "logits": drawn(24, 4),
            "sequences": [8, 12, 4],
            "coef": {"balance": 1.0},
            "seed": 3,
            "draw": True,
        },
        {
            "recipe": "olmoe",
            "top_k": 2,
            "logits": drawn(12, 4),
            "balance_over": "step",
            "step_counts": [5, 9, 2, 8],
            "coef": {"balance": 1.0},
        },
        {"recipe": "hash", "experts": 4, "ids": np.arange(20) * 7},
    ],
)
def test_inputs_of_every_name_are_the_commands(
    tmp_path: Path, command: Callable[..., Any], given: dict[str, Any]
) -> None:
    arrays = {
        name: np.asarray(value).tolist()
        for name, value in given.items()
        if isinstance(value, (np.ndarray, list))
    }
    rest = {
        name: value
        for name, value in given.items()
        if name not in arrays and name not in ("coef", "draw", "seed")
    }
    file = tmp_path / "z.json"
    file.write_text(
        json.dumps(
            arrays | {name: given[name] for name in ("coef", "draw", "seed") if name in given}
        )
    )
    theirs = command(
        "route",
        "--logits",
        file,
        *(part for name, value in rest.items() for part in (f"--{name.replace('_', '-')}", value)),
    )
    ours = moe.route(**given)
    assert [row[row >= 0].tolist() for row in ours.experts] == theirs["experts"]
    flat = np.array([w for row in theirs["weights"] for w in row], np.float32)
    np.testing.assert_array_equal(ours.weights[ours.experts >= 0], flat)
    assert ours.losses == {
        name: theirs[name]
        for name in ("balance", "z", "device", "communication", "importance", "load")
        if name in theirs
    }
    assert set(ours.gradients) == {
        name for name in theirs if name.startswith("d") and name != "dropped"
    }
    for name, gradient in ours.gradients.items():
        np.testing.assert_array_equal(gradient, np.array(theirs[name], np.float32))


def test_a_capacity_drops() -> None:
    z = np.tile(np.array([3.0, 1, 0, 0]), (8, 1))
    ours = moe.route(z, "gshard", capacity_factor=1.0)
    assert ours.dropped > 0
    assert not ours.kept.all()
    assert (ours.weights[~ours.kept] == 0).all()
    assert isinstance(ours.capacity, int)
    free = moe.route(z, "gshard", eval="dropless")
    assert free.kept.all()


def test_experts_that_choose_leave_rows_of_different_length() -> None:
    ours = moe.route(drawn(16, 4), "expert-choice", 2)
    taken = (ours.experts >= 0).sum(1)
    assert taken.min() < taken.max() == ours.experts.shape[1]
    assert (ours.weights[ours.experts < 0] == 0).all()
    dweights = [np.ones(n) for n in taken]
    assert moe.route(drawn(16, 4), "expert-choice", 2, dweights=dweights).gradients[
        "dlogits"
    ].shape == (16, 4)


def test_draws_follow_the_seed() -> None:
    x, weight, noise_weight = drawn(20, 6), drawn(4, 6, 2), drawn(4, 6, 3)
    first, same, other = (
        moe.route(
            recipe="shazeer",
            top_k=2,
            x=x,
            weight=weight,
            noise_weight=noise_weight,
            draw=True,
            seed=s,
        )
        for s in (1, 1, 2)
    )
    np.testing.assert_array_equal(first.experts, same.experts)
    np.testing.assert_array_equal(first.weights, same.weights)
    assert (first.weights != other.weights).any()


def test_stages_of_ones_own() -> None:
    z = drawn(6, 4)
    mixtral = next(recipe for recipe in moe.recipes() if recipe["name"] == "mixtral")
    ours, theirs = moe.route(z, "custom", 2, stages=mixtral["stages"]), moe.route(z, "mixtral", 2)
    np.testing.assert_array_equal(ours.experts, theirs.experts)
    np.testing.assert_array_equal(ours.weights, theirs.weights)


@pytest.mark.parametrize(
    "z",
    [
        drawn(6, 4).astype(">f4"),
        drawn(6, 4).astype(np.float64),
        np.asfortranarray(drawn(6, 4)),
        drawn(12, 8)[::2, ::2],
        drawn(6, 4).tolist(),
    ],
)
def test_logits_of_any_dtype_order_and_stride(z: Any) -> None:
    ours = moe.route(z, top_k=2)
    theirs = moe.route(np.ascontiguousarray(z, np.float32), top_k=2)
    np.testing.assert_array_equal(ours.experts, theirs.experts)
    np.testing.assert_array_equal(ours.weights, theirs.weights)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "logits"),
        ({"logits": [1.0, 2.0]}, r"2 dimensions \[N x M\], not the shape \(2,\)"),
        ({"logits": [[1.0], [1.0, 2.0]]}, "not of one length"),
        ({"logits": np.empty((0, 4))}, "logits"),
        ({"logits": [[1.0, np.nan]]}, r"logits\[0, 1\] is nan"),
        ({"logits": [[1.0, 1e39]]}, r"logits\[0, 1\] is 1e\+39"),
        ({"logits": [[1j, 2]]}, "dtype complex128"),
        ({"logits": "no"}, "not text"),
        ({"logits": [[1.0, 2.0]], "recipe": "olmo", "top_k": 1}, "olmoe"),
        ({"logits": [[1.0, 2.0]], "top_k": 3}, "top_k"),
        ({"logits": [[1.0, 2.0]], "top_k": 1, "colour": "blue"}, "colour"),
        ({"logits": [[1.0, 2.0]], "top_k": 1, "coef": {"entropy": 1.0}}, "entropy"),
        ({"logits": [[1.0, 2.0]], "top_k": 1, "coef": {"z": np.inf}}, r"coef\['z'\] is inf"),
        ({"logits": [[1.0, 2.0]], "top_k": 1, "dweights": [[1.0, 2.0]]}, "dweights"),
        ({"logits": [[1.0, 2.0]], "top_k": 1, "dweights": 5}, "dweights must be rows"),
        ({"logits": [[1.0, 2.0]], "top_k": 1, "sequences": [-1]}, r"sequences\[0\] is -1"),
        ({"recipe": "hash", "ids": [1.5], "experts": 4}, "ids must be whole numbers"),
        ({"logits": [[1.0, 2.0]], "recipe": "dense"}, "no router"),
    ],
)
def test_what_is_refused(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(moe.Error, match=says) as caught:
        moe.route(**arguments)
    assert "\n" not in str(caught.value)


def test_recipes_are_the_commands(command: Callable[..., Any]) -> None:
    assert moe.recipes() == command("recipes")
