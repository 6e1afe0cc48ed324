"""The MoE layer as a module."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from moe_cpp._errors import refuse
from moe_cpp.torch import _bank, _pretrained
from moe_cpp.torch._engine import after_load
from moe_cpp.torch._ops import as_autocast, experts
from moe_cpp.torch._routing import Router, Routing


def _draw(name: str, param: nn.Parameter) -> None:
    """As nn.Linear: uniform within 1 / sqrt of what a row sums; biases are 0."""
    if name.endswith("bias"):
        nn.init.zeros_(param)
    else:
        bound = 1 / math.sqrt(param.shape[-1])
        nn.init.uniform_(param, -bound, bound)


class Experts(nn.Module):
    """A bank of feed-forward experts, computed for rows that something has routed.

    Parameters are fused banks: gate_up_proj [E, 2F, D], the gate's rows first, or up_proj
    [E, F, D] where it is not gated, and down_proj [E, D, F]; with a bias gate_up_proj_bias
    [E, 2F] or up_proj_bias [E, F], and down_proj_bias [E, D]. They begin as nn.Linear's do, or,
    without `drawn`, with what memory holds, for weights that are written into them.
    """

    def __init__(
        self,
        num_experts: int,
        hidden_size: int,
        moe_intermediate_size: int,
        *,
        activation: str = "silu",
        gated: bool = True,
        bias: bool = False,
        drawn: bool = True,
    ) -> None:
        super().__init__()
        width = moe_intermediate_size
        rows = 2 * width if gated else width
        self._up = "gate_up_proj" if gated else "up_proj"
        banks: dict[str, tuple[int, ...]] = {self._up: (num_experts, rows, hidden_size)}
        banks["down_proj"] = (num_experts, hidden_size, width)
        if bias:
            banks[self._up + "_bias"] = (num_experts, rows)
            banks["down_proj_bias"] = (num_experts, hidden_size)
        for name, shape in banks.items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape)))
        self.engine = _bank.engine_of(
            num_experts, hidden_size, width, activation=activation, gated=gated, bias=bias
        )
        self.register_load_state_dict_post_hook(after_load)
        if drawn:
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """As nn.Linear's; biases are 0."""
        for name, param in self.named_parameters():
            _draw(name, param)

    def params(self) -> list[Tensor]:
        """In the order of the engine's names."""
        biases = (getattr(self, name, None) for name in (self._up + "_bias", "down_proj_bias"))
        return _bank.params_of(self.engine, getattr(self, self._up), self.down_proj, *biases)

    def forward(self, x: Tensor, chosen: Tensor | None, weights: Tensor | None) -> Tensor:
        """x [N, D]; chosen [N, K], -1 where nothing is sent, and weights [N, K]; neither where
        there is one expert that takes every token. Computed in bf16 where x or autocast is."""
        dtype = x.dtype
        if x.shape[0] == 0:
            return x
        x = as_autocast(x)
        return experts(self.engine, x, chosen, weights, self.params()).to(dtype)


class MoE(nn.Module):
    """A Mixture-of-Experts layer whose routing is a recipe of `moe recipes`, on the CPU.

    Parameters
    ----------
    hidden_size : int
        Numbers of a token, D.
    moe_intermediate_size : int
        Width of an expert, F.
    num_experts, top_k : int
        Experts of the layer and those a token takes; default: the recipe's own.
    recipe : str
        How tokens choose experts: "olmoe", "mixtral", "switch", "deepseek-v3", ...
    activation : str
        "silu", "gelu", "gelu_tanh" or "relu".
    gated : bool
        Experts are act(gate x) * (up x), else act(up x).
    bias : bool
        Experts have biases.
    shared_experts : int
        Experts that take every token; default: the recipe's own number.
    shared_gate : bool
        The shared experts' output is weighed by a sigmoid of the token; default: the recipe's.
    options
        Further ones of the recipe, as `moe_cpp.route` has them: norm_topk_prob, capacity_factor,
        expert_groups, routed_scaling_factor, balance_over, stages, ...

    After a call `routing` tells where the tokens went and `losses` has the recipe's auxiliary
    losses, with their gradients, to be added to the model's: `aux_loss(model)` adds them with the
    recipe's coefficients. `train()` and `eval()` route as the recipe does in each; what it draws
    comes from torch's generator. After each optimizer step `end_step(model)` moves the buffers of
    recipes that have some (deepseek-v3's selection bias).
    """

    def __init__(
        self,
        hidden_size: int,
        moe_intermediate_size: int,
        num_experts: int | None = None,
        top_k: int | None = None,
        recipe: str = "olmoe",
        *,
        activation: str = "silu",
        gated: bool = True,
        bias: bool = False,
        shared_experts: int | None = None,
        shared_gate: bool | None = None,
        **options: object,
    ) -> None:
        super().__init__()
        asked = {"recipe": recipe, "experts": num_experts, "top_k": top_k, **options}
        given: dict[str, object] = {
            name: value for name, value in asked.items() if value is not None
        }
        self.router = Router(given | {"hidden_size": hidden_size})
        about = self.router.about
        self.hidden_size, self.num_experts = hidden_size, int(about["experts"])
        self.top_k, self.recipe = int(about["top_k"]), str(about["recipe"])
        bank: dict[str, Any] = {"activation": activation, "gated": gated, "bias": bias}
        bank["drawn"] = False  # all of the layer is, below
        self.experts = Experts(self.num_experts, hidden_size, moe_intermediate_size, **bank)
        shared = about["shared_experts"] if shared_experts is None else shared_experts
        self.shared_experts = None
        if shared > 0:
            width = shared * moe_intermediate_size * about["shared_widths"]
            self.shared_experts = Experts(1, hidden_size, width, **bank)
        gate = about["shared_gate"] if shared_gate is None else shared_gate
        self.shared_expert_gate = None
        if gate and self.shared_experts is not None:
            self.shared_expert_gate = nn.Linear(hidden_size, 1, bias=False)
        self.routing: Routing | None = None
        self.reset_parameters()

    @classmethod
    def from_pretrained_layer(cls, layer: nn.Module) -> MoE:
        """A MoE that computes what a sparse layer of transformers 5 or nanoMoE does, with a copy of
        its weights; a layer that is not known, or does what no recipe does, is refused."""
        return _pretrained.read(layer)

    def to_pretrained_layer(self, layer: nn.Module) -> None:
        """Writes the weights into such a layer, of the same sizes and routing."""
        _pretrained.write(self, layer)

    def reset_parameters(self) -> None:
        """As nn.Linear: uniform within 1 / sqrt of what a row sums."""
        for name, param in self.named_parameters():
            if name.endswith("scale"):
                nn.init.constant_(param, self.router.about["first_expert_scale"])
            elif name.startswith("router.") and self.router.about["zero_init"]:
                nn.init.zeros_(param)
            else:
                _draw(name, param)

    def __getstate__(self) -> dict[str, Any]:
        # Copies and pickles are of the layer, not of its last call, whose tensors have a graph.
        return self.__dict__ | {"routing": None}

    def extra_repr(self) -> str:
        return f"recipe={self.recipe!r}, num_experts={self.num_experts}, top_k={self.top_k}"

    @property
    def losses(self) -> dict[str, Tensor]:
        """Of the last call: each loss of the recipe, a scalar."""
        return {} if self.routing is None else self.routing.losses

    def forward(
        self,
        x: Tensor,
        *,
        ids: Tensor | None = None,
        bounds: Tensor | None = None,
        recorded: Tensor | None = None,
        step_counts: Tensor | None = None,
        seed: int | Tensor | None = None,
    ) -> Tensor:
        """The layer's output, of x's shape and dtype.

        Parameters
        ----------
        x : tensor [..., D]
            With three dimensions [B, T, D] its B rows are sequences.
        ids : integer tensor [...]
            Token ids, for hash routing.
        bounds : integer tensor [S + 1]
            Where the sequences begin among the N tokens, and the end; for losses and capacities
            that look at a sequence.
        recorded : integer tensor [N, K]
            Choices to take instead of the router's own.
        step_counts : integer tensor [E]
            Choices of the whole optimizer step, for a balance loss over it.
        seed : int
            Of what the recipe draws, any number that torch.manual_seed takes; default: from
            torch's generator.
        """
        if x.shape[-1] != self.hidden_size:
            refuse(
                f"x has {x.shape[-1]} numbers a token; this layer has hidden_size "
                f"{self.hidden_size}"
            )
        if x.dtype not in (torch.float32, torch.bfloat16):
            refuse(
                f"x is {str(x.dtype).removeprefix('torch.')}; moe_cpp computes in float32 and "
                "bfloat16 (so torch.autograd.gradcheck, which needs float64, has nothing to check)"
            )
        flat = x.reshape(-1, self.hidden_size)
        if bounds is None and x.dim() == 3 and flat.shape[0] > 0:
            bounds = torch.arange(0, flat.shape[0] + 1, x.shape[1])
        flat_ids = None if ids is None else ids.reshape(-1)
        routing = self.router(flat, flat_ids, bounds, recorded, step_counts, seed)
        self.routing = routing
        if flat.shape[0] == 0:
            return x
        y: Tensor = self.experts(flat, routing.sent, routing.weights)
        if self.shared_experts is not None:
            shared: Tensor = self.shared_experts(flat, None, None)
            if self.shared_expert_gate is not None:
                shared = torch.sigmoid(self.shared_expert_gate(flat)) * shared
            y = y + shared
        return y.reshape(x.shape)


def _layers(module: nn.Module) -> Iterable[MoE]:
    return (m for m in module.modules() if isinstance(m, MoE))


def aux_loss(module: nn.Module, **coefficients: float) -> Tensor:
    """The auxiliary losses of the last forward, each a mean over the module's MoE layers times its
    coefficient, as `moe train` adds them. Recipes whose code sums over the layers have their
    coefficient times the number of MoE layers.

    Parameters
    ----------
    coefficients : float
        By a loss's name (balance, z, device, communication, importance, load), in place of the
        recipe's own.
    """
    layers = [layer for layer in _layers(module) if layer.routing is not None]
    if not layers:
        refuse("no MoE layer of this module has routed a token; aux_loss() follows a forward")
    for name in coefficients:
        if not any(name in layer.losses for layer in layers):
            refuse(
                f"no MoE layer of this module has a {name} loss; its layers have "
                f"{', '.join(sorted({n for layer in layers for n in layer.losses})) or 'none'}"
            )
    total = torch.zeros((), dtype=torch.float32)
    for layer in layers:
        about = layer.router.about
        times = len(layers) if about["sum_over_layers"] else 1
        for name, value in layer.losses.items():
            coef = coefficients.get(name, times * about["losses"][name])
            if coef != 0:
                total = total + coef / len(layers) * value
    return total


def end_step(module: nn.Module) -> None:
    """To be called after each optimizer step: moves selection biases and thresholds, and begins
    the next step's counts. With torch.distributed the counts are summed over processes."""
    for layer in _layers(module):
        layer.router.end_step()
