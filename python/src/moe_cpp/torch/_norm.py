"""RMS norms of any model, computed by the engine, with their gradient."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from moe_cpp._errors import refuse
from moe_cpp.torch._engine import call_alone
from moe_cpp.torch._ops import is_plain, refuse_transforms


def _normed(
    x: Tensor, weight: Tensor, eps: float, offset: float, dtype: torch.dtype
) -> list[Tensor]:
    """[y [N,D] in dtype, rstd [N]] of x [N,D], weight [D] f32."""
    y, rstd = _room(x, dtype)
    named = [("x", x), ("weight", weight), ("y", y), ("rstd", rstd)]
    call_alone("moe_rms_norm", named, eps, offset)
    return [y, rstd]


_rms_norm = torch.library.custom_op(
    "moe_cpp::rms_norm", _normed, mutates_args=(), device_types="cpu"
)


def _room(x: Tensor, dtype: torch.dtype) -> list[Tensor]:
    return [x.new_empty(x.shape, dtype=dtype), x.new_empty([x.shape[0]], dtype=torch.float32)]


@_rms_norm.register_fake
def _(x: Tensor, weight: Tensor, eps: float, offset: float, dtype: torch.dtype) -> list[Tensor]:
    return _room(x, dtype)


@torch.library.custom_op("moe_cpp::rms_norm_backward", mutates_args=(), device_types="cpu")
def _rms_norm_backward(
    dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, offset: float
) -> list[Tensor]:
    """[dx in x's dtype, dweight]."""
    dx, dweight = x.new_empty(x.shape), weight.new_empty(weight.shape)
    named = [("dy", dy), ("x", x), ("weight", weight), ("rstd", rstd), ("dx", dx)]
    call_alone("moe_rms_norm_backward", [*named, ("dweight", dweight)], offset)
    return [dx, dweight]


@_rms_norm_backward.register_fake
def _(dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, offset: float) -> list[Tensor]:
    return [x.new_empty(x.shape), weight.new_empty(weight.shape)]


def _context(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    x, weight, _, ctx.offset, _ = inputs
    ctx.save_for_backward(x, weight, output[1])
    ctx.set_materialize_grads(False)  # of rstd nobody asks


def _gradient(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    if grads[0] is None:
        return None, None, None, None, None
    dx, dweight = _rms_norm_backward(grads[0].contiguous(), *ctx.saved_tensors, ctx.offset)
    return dx, dweight, None, None, None


_rms_norm.register_autograd(_gradient, setup_context=_context)


def rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    offset: float = 0.0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * (offset + weight) along the last dimension.

    x [..., D] f32 or bf16; weight [D] of any float dtype. Computed in f32; in dtype, or x's."""
    refuse_transforms()
    if x.shape[-1:] != weight.shape:
        refuse(f"x is {tuple(x.shape)} and weight {tuple(weight.shape)}; weight must be [D]")
    rows = x.reshape(-1, x.shape[-1]).contiguous()
    norm = _normed if is_plain(rows, weight) else _rms_norm
    y: Tensor = norm(rows, weight.float(), eps, offset, x.dtype if dtype is None else dtype)[0]
    return y.view(x.shape)


_DTYPES = (torch.float32, torch.bfloat16)
# Of fewer PyTorch's own takes less time than the operator; without it the engine's is faster.
_FEWEST_NUMBERS = 1 << 15


class EngineNorm(nn.Module):
    """An RMS norm of which replace_norms() has changed no more than the class."""

    weight: Tensor
    engine_class: type[nn.Module]  # what it was
    engine_eps: float
    engine_offset: float
    engine_dtypes: dict[torch.dtype, torch.dtype]  # of y, by that of x and the weights as they were
    engine_weight_dtype: torch.dtype

    def forward(self, x: Tensor) -> Tensor:
        dtype = self.engine_dtypes.get(x.dtype)
        slower = x.numel() < _FEWEST_NUMBERS and not is_plain(x, self.weight)
        if slower or dtype is None or self.weight.dtype != self.engine_weight_dtype:
            own: Tensor = self.engine_class.forward(self, x)
            return own
        return rms_norm(x, self.weight, self.engine_eps, self.engine_offset, dtype)

    def extra_repr(self) -> str:
        return f"{tuple(self.weight.shape)}, eps={self.engine_eps}"


def _eps(norm: nn.Module) -> float | None:
    for name in ("variance_epsilon", "eps"):
        if isinstance(eps := getattr(norm, name, None), float):
            return eps
    return None


@torch.no_grad()
def _described(norm: nn.Module) -> dict[str, Any] | None:
    """What EngineNorm needs, found by asking the norm itself: which formula gives its numbers, and
    in which dtype."""
    params = dict(norm.named_parameters())
    weight, eps = params.get("weight"), _eps(norm)
    if (
        "RMSNorm" not in type(norm).__name__
        or weight is None
        or len(params) != 1
        or weight.dim() != 1
        or weight.dtype not in _DTYPES
        or weight.device.type != "cpu"
        or eps is None
        or any(True for _ in norm.buffers())
    ):
        return None
    x = torch.randn(4, weight.numel(), generator=torch.Generator().manual_seed(1))
    for offset in (0.0, 1.0):
        dtypes = {}
        for dtype in _DTYPES:
            given = x.to(dtype)
            try:
                with warnings.catch_warnings(action="ignore"):  # of dtypes that differ
                    want = norm(given)
            except (RuntimeError, TypeError):  # of another dtype, or it takes more than x
                continue
            if not isinstance(want, Tensor) or want.dtype not in _DTYPES or want.shape != x.shape:
                continue
            got = rms_norm(given, weight, eps, offset, want.dtype)
            rough = torch.bfloat16 in (dtype, want.dtype, weight.dtype)
            # Twice rounded to bf16, as the models do, two numbers differ by two steps of 2^-8.
            if torch.allclose(got.float(), want.float(), rtol=2**-6 if rough else 1e-5, atol=1e-6):
                dtypes[dtype] = want.dtype
        if weight.dtype in dtypes:
            return {
                "engine_class": type(norm),
                "engine_eps": eps,
                "engine_offset": offset,
                "engine_dtypes": dtypes,
                "engine_weight_dtype": weight.dtype,
            }
    return None


def replace_norms(model: nn.Module) -> int:
    """Has the engine compute every RMS norm of the model, in training too; returns how many they
    are. A norm is known by its class's name, and taken where its own numbers are those of
    x / sqrt(mean(x^2) + eps) * weight, or of (1 + weight) as Gemma has it. Weights, their names and
    the state_dict stay what they are."""
    replaced = 0
    for norm in model.modules():
        if type(norm) is EngineNorm or (about := _described(norm)) is None:
            continue
        norm.__class__ = EngineNorm
        for name, value in about.items():
            setattr(norm, name, value)
        replaced += 1
    return replaced


def restore_norms(model: nn.Module) -> int:
    """Undoes replace_norms(); returns how many norms it gave back."""
    replaced = [norm for norm in model.modules() if type(norm) is EngineNorm]
    for norm in replaced:
        norm.__class__ = norm.engine_class
        for name in [name for name in vars(norm) if name.startswith("engine_")]:
            delattr(norm, name)
    return len(replaced)
