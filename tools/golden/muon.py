"""Golden steps of Muon, transcribed in NumPy (f64) from its description: muon.json, a case for each
shape with its first value, a gradient a step and the value after the last one.

The iteration and the momentum are Keller Jordan's (https://kellerjordan.github.io/posts/muon/), the
scale and the decay those of Liu et al., arXiv 2502.16982. Numbers that go in are f32.
"""

import os

import numpy as np

import common

HYPER = {"lr": 0.05, "momentum": 0.95, "weight_decay": 0.1, "clip": 0.25}
STEPS = 3
# Wide, tall, square, banks of experts, and one whose last expert never gets a gradient.
CASES = [
    ("wide", (6, 10)),
    ("tall", (11, 5)),
    ("square", (7, 7)),
    ("wide bank", (3, 4, 6)),
    ("tall bank", (3, 8, 3)),
    ("idle expert", (2, 4, 6)),
]


def newton_schulz(update):
    """Five steps of the quintic iteration on one matrix."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = update / (np.linalg.norm(update) + 1e-7)
    turned = x.shape[0] > x.shape[1]
    if turned:
        x = x.T
    for _ in range(5):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return x.T if turned else x


def step(value, momentum, grad):
    """One step of one matrix: (value, momentum)."""
    mu = HYPER["momentum"]
    momentum = mu * momentum + grad
    direction = newton_schulz(grad + mu * momentum)
    rate = HYPER["lr"] * 0.2 * np.sqrt(max(value.shape))
    return value * (1 - HYPER["lr"] * HYPER["weight_decay"]) - rate * direction, momentum


def numbers(x):
    return [common.number(v) for v in np.ravel(x)]


def make_case(name, shape, seed):
    rng = np.random.default_rng(seed)
    drawn = rng.standard_normal((1 + STEPS, *shape)).astype(np.float32)
    if name == "idle expert":
        drawn[1:, -1] = 0
    first, grads = drawn[0], 0.1 * drawn[1:]
    values = first.astype(np.float64).reshape(-1, *shape[-2:])
    momenta = np.zeros_like(values)
    for grad in grads.astype(np.float64):
        scale = min(1.0, HYPER["clip"] / (np.linalg.norm(grad) + 1e-6))
        for e, of_expert in enumerate(grad.reshape(-1, *shape[-2:])):
            values[e], momenta[e] = step(values[e], momenta[e], scale * of_expert)
    return {
        "name": name,
        "shape": list(shape),
        "value": numbers(first),
        "grads": [numbers(g) for g in grads],
        "after": numbers(values),
        "momentum": numbers(momenta),
    }


def make_all(folder):
    """Writes muon.json."""
    cases = [make_case(name, shape, seed) for seed, (name, shape) in enumerate(CASES)]
    with open(os.path.join(folder, "muon.json"), "w", encoding="utf-8") as out:
        out.write(common.dump({"hyper": HYPER, "cases": cases}))
