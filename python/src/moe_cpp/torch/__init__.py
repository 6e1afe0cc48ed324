"""moe.cpp's layers in PyTorch, on the CPU: every routing recipe as a module, with its gradient.

>>> import moe_cpp.torch
>>> layer = moe_cpp.torch.MoE(256, 512, num_experts=16, top_k=2, recipe="deepseek-v3")
>>> y = layer(x)                                        # x [batch, tokens, 256]
>>> loss = loss_of(y) + moe_cpp.torch.aux_loss(layer)   # and after optimizer.step():
>>> moe_cpp.torch.end_step(layer)

`route` is a recipe alone, on logits; `Experts` are the experts alone. `replace_linears` and
`replace_norms` have the engine compute those layers of any model; `attention` is causal attention.
For models of transformers see `moe_cpp.transformers`.
"""

try:
    import torch as _torch
except ImportError:
    raise ImportError(
        "moe_cpp.torch needs PyTorch, which is not installed: pip install torch"
    ) from None

from moe_cpp.torch._attention import attention
from moe_cpp.torch._linear import replace_linears, restore_linears
from moe_cpp.torch._module import Experts, MoE, aux_loss, end_step
from moe_cpp.torch._norm import replace_norms, restore_norms, rms_norm
from moe_cpp.torch._routing import Router, Routing, route

__all__ = [
    "Experts",
    "MoE",
    "Router",
    "Routing",
    "attention",
    "aux_loss",
    "end_step",
    "replace_linears",
    "replace_norms",
    "restore_linears",
    "restore_norms",
    "rms_norm",
    "route",
]
