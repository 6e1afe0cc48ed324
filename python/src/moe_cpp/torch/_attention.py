"""Causal attention of any model, computed by the engine, with its gradient."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from moe_cpp._errors import refuse
from moe_cpp._library import AttentionOptions
from moe_cpp.torch._engine import call_alone
from moe_cpp.torch._ops import refuse_transforms


def _call(
    function: str, heads: int, kv_heads: int, scale: float, window: int, **tensors: Tensor
) -> None:
    options = AttentionOptions(heads, kv_heads, scale, window, 0.0)
    call_alone(function, list(tensors.items()), ctypes.byref(options))


@torch.library.custom_op("moe_cpp::attention", mutates_args=(), device_types="cpu")
def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bounds: Tensor,
    heads: int,
    kv_heads: int,
    scale: float,
    window: int,
) -> list[Tensor]:
    """[o [N,H*V], lse [N,H]] of q [N,H*C], k [N,G*C], v [N,G*V]; bounds [S+1] of the sequences."""
    o, lse = _room(q, v, heads, kv_heads)
    options = heads, kv_heads, scale, window
    _call("moe_attention", *options, q=q, k=k, v=v, bounds=bounds, o=o, lse=lse)
    return [o, lse]


def _room(q: Tensor, v: Tensor, heads: int, kv_heads: int) -> list[Tensor]:
    return [
        q.new_empty([q.shape[0], v.shape[1] // kv_heads * heads]),
        q.new_empty([q.shape[0], heads], dtype=torch.float32),
    ]


@_attention.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bounds: Tensor,
    heads: int,
    kv_heads: int,
    scale: float,
    window: int,
) -> list[Tensor]:
    return _room(q, v, heads, kv_heads)


@torch.library.custom_op("moe_cpp::attention_backward", mutates_args=(), device_types="cpu")
def _attention_backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bounds: Tensor,
    o: Tensor,
    lse: Tensor,
    heads: int,
    kv_heads: int,
    scale: float,
    window: int,
) -> list[Tensor]:
    """[dq, dk, dv]."""
    dq, dk, dv = _grads(q, k, v)
    given = {"q": q, "k": k, "v": v, "bounds": bounds, "o": o, "lse": lse, "do": do}
    options = heads, kv_heads, scale, window
    _call("moe_attention_backward", *options, **given, dq=dq, dk=dk, dv=dv)
    return [dq, dk, dv]


def _grads(*tensors: Tensor) -> list[Tensor]:
    return [t.new_empty(t.shape) for t in tensors]


@_attention_backward.register_fake
def _(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bounds: Tensor,
    o: Tensor,
    lse: Tensor,
    heads: int,
    kv_heads: int,
    scale: float,
    window: int,
) -> list[Tensor]:
    return _grads(q, k, v)


def _context(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    q, k, v, bounds, *ctx.options = inputs
    ctx.save_for_backward(q, k, v, bounds, *output)
    ctx.set_materialize_grads(False)  # of lse nobody asks


def _gradient(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    q, k, v, bounds, o, lse = ctx.saved_tensors
    do = torch.zeros_like(o) if grads[0] is None else grads[0].to(o.dtype).contiguous()
    dq, dk, dv = _attention_backward(do, q, k, v, bounds, o, lse, *ctx.options)
    return dq, dk, dv, None, None, None, None, None


_attention.register_autograd(_gradient, setup_context=_context)


def attention(
    query: Tensor, key: Tensor, value: Tensor, *, scale: float | None = None, window: int = 0
) -> Tensor:
    """query [B,H,T,C], key [B,G,U,C], value [B,G,U,V], f32 or bf16; [B,H,T,V].

    As torch.nn.functional.scaled_dot_product_attention with is_causal=True and, where G is less
    than H, enable_gqa=True: a token sees itself and those before it, with a window so many of them
    in all. Where keys are more than queries, these are the last tokens, and there is no gradient.
    scale: of the scores; default: 1 / sqrt(C)."""
    refuse_transforms()
    if not query.dim() == key.dim() == value.dim() == 4:
        refuse(
            f"query, key and value have {query.dim()}, {key.dim()} and {value.dim()} dimensions; "
            "attention takes [batch, heads, tokens, width]"
        )
    batch, heads, tokens, width = query.shape
    groups, keys = key.shape[1:3]
    if key.shape[0] != batch or keys < tokens or value.shape[:3] != key.shape[:3]:
        refuse(
            f"query is {tuple(query.shape)}, key {tuple(key.shape)} and value "
            f"{tuple(value.shape)}; key and value must be of one batch, with as many tokens, and "
            "with those of the query"
        )
    scale = width**-0.5 if scale is None else scale
    if keys > tokens:
        return _behind_others(query, key, value, scale, window)
    rows = [t.transpose(1, 2).reshape(batch * tokens, -1).contiguous() for t in (query, key, value)]
    bounds = torch.arange(batch + 1) * tokens
    o: Tensor = _attention(*rows, bounds, heads, groups, scale, window)[0]
    return o.view(batch, tokens, heads, -1).transpose(1, 2)


@torch.compiler.disable
def _behind_others(
    query: Tensor, key: Tensor, value: Tensor, scale: float, window: int
) -> Tensor:
    """Of keys that lie as a cache of transformers keeps them, [B,G,U,C]: each head's keys are a
    sequence by themselves, so that they are read where they lie."""
    batch, heads, tokens, width = query.shape
    groups, keys = key.shape[1:3]
    if torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value)):
        refuse("attention has no gradient where keys are more than queries; use torch.no_grad()")
    each = heads // groups
    rows = query.reshape(batch, groups, each, tokens, width).transpose(2, 3)
    rows = rows.reshape(-1, each * width).contiguous()
    o = rows.new_empty([rows.shape[0], each * value.shape[3]])
    _call(
        "moe_attention",
        each,
        1,
        scale,
        window,
        q=rows,
        k=key.reshape(-1, width).contiguous(),
        v=value.reshape(-1, value.shape[3]).contiguous(),
        bounds=torch.arange(batch * groups + 1) * tokens,
        key_bounds=torch.arange(batch * groups + 1) * keys,
        o=o,
    )
    return o.view(batch, groups, tokens, each, -1).transpose(2, 3).reshape(batch, heads, tokens, -1)
