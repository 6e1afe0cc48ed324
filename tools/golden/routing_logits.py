"""A router's logits in float64 torch, with all that leads to them and their gradients, for
routing_formulas.py.
"""

import torch
from torch.nn import functional as F

import philox


class NearTie(Exception):
    def __init__(self, tokens, what):
        super().__init__(f"{what} of tokens {sorted(tokens)}")
        self.tokens = set(tokens)


def double(values):
    return torch.tensor(values, dtype=torch.float64)


class Logits:
    """The router's logits and what leads to them. `noisy`, `clean`, `sigma` are leaves: `clean` and
    `sigma` where a loss reads them directly. `origins` [N][E] tell logits that must be equal from
    those that happen to be near."""

    def __init__(self, spec, case, key):
        noise = double(case["noise"]) if "noise" in case else None
        exact, self.wires, sigma, self.origins = True, None, None, None
        if "x" in case:
            x, weight = double(case["x"]).requires_grad_(), double(case["weight"]).requires_grad_()
            leaves, seen = {"dx": x, "dweight": weight}, x
            if spec["noise"]["type"] == "jitter" and key is not None:
                eps, width = spec["noise"]["eps"], x.shape[1]
                factors = [
                    [1 + eps * (2 * philox.uniform(key, n * width + d) - 1) for d in range(width)]
                    for n in range(x.shape[0])
                ]
                seen, exact = x * double(factors), False
            clean = self._of_x(spec["logits"], case, seen, weight, leaves)
            noisy = clean
            if spec["noise"]["type"] == "learned" and "noise_weight" in case:
                leaves["dnoise_weight"] = double(case["noise_weight"]).requires_grad_()
                if key is not None:
                    noise = double(
                        [
                            [
                                float(philox.normal(key, n * clean.shape[1] + e))
                                for e in range(clean.shape[1])
                            ]
                            for n in range(x.shape[0])
                        ]
                    )
                if noise is not None:
                    sigma = F.softplus(seen @ leaves["dnoise_weight"].T) + spec["noise"]["floor"]
                    noisy, exact = clean + sigma * noise, False
            elif noise is not None:
                noisy = clean + noise
            self.wires = (leaves, noisy, clean, sigma)
        else:
            clean = double(case["logits"])
            noisy = clean
            if noise is not None:
                sigma = double(case["sigma"]) if "sigma" in case else None
                noisy = clean + (noise if sigma is None else sigma * noise)
        self.noisy = noisy.detach().clone().requires_grad_()
        if self.origins is None:
            self.origins = (
                noisy.tolist()
                if exact
                else [[(n, e) for e in range(noisy.shape[1])] for n in range(noisy.shape[0])]
            )
        load, of_clean = spec["losses"].get("load"), spec["losses"].get("z_of_clean")
        self.clean = (
            clean.detach().clone().requires_grad_()
            if noise is not None and (load or of_clean)
            else self.noisy
        )
        self.sigma = sigma.detach().clone().requires_grad_() if sigma is not None and load else None

    def _of_x(self, stage, case, seen, weight, leaves):
        """Linear, or CMoE's (arXiv 2502.04416, sec. 4.3) |silu(x . g_e) (x . u_e)|, without a gate
        |silu(x . u_e)|."""
        if stage["type"] == "linear":
            if not stage["bias"]:
                return seen @ weight.T
            leaves["dlogit_bias"] = double(
                case.get("logit_bias") or [0.0] * weight.shape[0]
            ).requires_grad_()
            return seen @ weight.T + leaves["dlogit_bias"]
        gate, up = seen @ weight.T, None
        if "up_weight" in case:
            leaves["dup_weight"] = double(case["up_weight"]).requires_grad_()
            up = seen @ leaves["dup_weight"].T
        hidden = F.silu(gate) if up is None else F.silu(gate) * up
        if (hidden == 0).any():  # where |h| has no gradient
            raise NearTie({n for n, row in enumerate(hidden.tolist()) if 0.0 in row}, "logits of 0")
        self.origins = [
            list(zip(*row)) for row in zip(gate.tolist(), (gate if up is None else up).tolist())
        ]
        if stage["fixed"]:  # a constant for the gradient
            return hidden.abs().detach() + 0.0 * hidden
        return hidden.abs()

    def gradients(self, total, more):
        """Of the logits directly, of what lies before them, and of the leaves of `more`."""
        leaves = {"dlogits": self.noisy, **more}
        if self.clean is not self.noisy:
            leaves["dclean"] = self.clean
        if self.sigma is not None:
            leaves["dsigma"] = self.sigma
        out = (
            _gradients(total, None, leaves)
            if total.requires_grad
            else {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
        )
        if self.wires is not None:
            inputs, *ends = self.wires
            starts = [
                (end, out[name])
                for end, name in zip(ends, ("dlogits", "dclean", "dsigma"))
                if name in out
            ]
            out.update(_gradients([end for end, _ in starts], [g for _, g in starts], inputs))
        return {name: g.tolist() for name, g in out.items()}


def _gradients(ends, given, leaves):
    return dict(
        zip(
            leaves,
            torch.autograd.grad(
                ends, list(leaves.values()), given, allow_unused=True, materialize_grads=True
            ),
        )
    )
