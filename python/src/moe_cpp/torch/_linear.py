"""Linear layers of any model, computed by the engine where that is faster: each is a bank of one
expert that all rows go to."""

from __future__ import annotations

import functools
import platform

import torch
from torch import Tensor, nn

from moe_cpp._errors import refuse
from moe_cpp.torch._engine import Engine, after_load
from moe_cpp.torch._ops import as_autocast, products

_DTYPES = (torch.float32, torch.bfloat16)


@functools.cache
def _emulates_bf16() -> bool:
    """Whether this processor multiplies no bf16, so that PyTorch's products of it are several times
    slower than those in f32, which the engine takes there."""
    return platform.machine() in ("x86_64", "AMD64") and not (
        torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    )


def _every(rows: int) -> Tensor:
    """The offsets of one expert that all rows go to."""
    return torch.tensor((0, rows))


class EngineLinear(nn.Linear):
    """An nn.Linear of which replace_linears() has changed no more than the class."""

    engine: Engine

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in_features]; [..., out_features] in x's dtype, or autocast's.

        Where a gradient may follow PyTorch computes it, but for bf16 on a processor without: an
        optimizer moves the weights after each forward, and laying them out for one costs more than
        its products gain."""
        if x.dtype != self.weight.dtype and not torch.is_autocast_enabled("cpu"):
            return super().forward(x)  # which says that dtypes differ
        trains = torch.is_grad_enabled() and (x.requires_grad or self.weight.requires_grad)
        if trains and not _emulates_bf16():
            return super().forward(x)
        x = as_autocast(x)
        if trains and x.dtype != torch.bfloat16:
            return super().forward(x)
        rows = x.reshape(-1, self.in_features)
        y = products(self.engine, rows, _every(rows.shape[0]), self.weight.unsqueeze(0))
        y = y.view(*x.shape[:-1], self.out_features)
        return y if self.bias is None else y + self.bias.to(y.dtype)


def replace_linears(model: nn.Module) -> int:
    """Has the engine compute every nn.Linear of the model wherever no gradient is asked for;
    returns how many they are. Weights, their names and the state_dict stay what they are. Layers
    of a class of their own, as quantised ones, and those in another dtype than float32 and
    bfloat16 stay PyTorch's."""
    linears = [
        module
        for module in model.modules()
        if type(module) is nn.Linear and module.weight.dtype in _DTYPES
    ]
    for linear in linears:
        if linear.weight.device.type != "cpu":
            refuse(
                f"a linear layer lies on {linear.weight.device}; moe_cpp computes on the CPU: move "
                "the model there"
            )
    for linear in linears:
        options = {
            "experts": 1,
            "top_k": 1,
            "gated": False,
            "hidden_size": linear.in_features,
            "moe_intermediate_size": linear.out_features,
        }
        linear.__class__ = EngineLinear
        linear.engine = Engine(options, ["experts.up.weight"])
        linear.register_load_state_dict_post_hook(after_load)
    return len(linears)


def restore_linears(model: nn.Module) -> int:
    """Undoes replace_linears(); returns how many layers it gave back."""
    replaced = [module for module in model.modules() if type(module) is EngineLinear]
    for linear in replaced:
        hooks = linear._load_state_dict_post_hooks
        for key in [key for key, hook in hooks.items() if hook is after_load]:
            del hooks[key]
        del linear.engine
        linear.__class__ = nn.Linear
    return len(replaced)
