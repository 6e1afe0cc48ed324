"""A bank of experts as the engine takes it: how it is opened, and its weights in their order."""

from __future__ import annotations

from torch import Tensor

from moe_cpp.torch._engine import Engine


def engine_of(
    experts: int, hidden: int, width: int, *, activation: str, gated: bool, bias: bool
) -> Engine:
    """Its names are in the order of params_of()."""
    names = ["experts.gate_up.weight" if gated else "experts.up.weight", "experts.down.weight"]
    if bias:
        names += ["experts.gate.bias"] if gated else []
        names += ["experts.up.bias", "experts.down.bias"]
    options = {
        "experts": experts,
        "top_k": 1,
        "hidden_size": hidden,
        "moe_intermediate_size": width,
        "activation": activation,
        "gated": gated,
        "bias": bias,
    }
    return Engine(options, names)


def params_of(
    engine: Engine, up: Tensor, down: Tensor, up_bias: Tensor | None, down_bias: Tensor | None
) -> list[Tensor]:
    """up [E,2F,D], the gate's rows first, or [E,F,D] where it is not gated; down [E,D,F]; biases
    [E,2F] or [E,F], and [E,D]. The engine adds biases in f32."""
    params = [up, down]
    if up_bias is not None and down_bias is not None:
        halves = up_bias.float().chunk(2, dim=-1) if engine.gated else [up_bias.float()]
        params += [half.contiguous() for half in halves]
        params.append(down_bias.float())
    return params
