"""The operators: routing and experts of a layer, each with its gradient, for eager mode and
torch.compile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from moe_cpp._errors import refuse
from moe_cpp.torch._engine import Engine


def _given(**tensors: Tensor | None) -> list[tuple[str, Tensor]]:
    return [(name, tensor) for name, tensor in tensors.items() if tensor is not None]


def as_autocast(x: Tensor) -> Tensor:
    """In the dtype that products are computed in: autocast's where it is on."""
    if not torch.is_autocast_enabled("cpu"):
        return x
    dtype = torch.get_autocast_dtype("cpu")
    if dtype != torch.bfloat16:
        refuse(
            f"autocast asks for {str(dtype).removeprefix('torch.')}; moe_cpp computes in float32 "
            "and bfloat16: torch.autocast('cpu', torch.bfloat16)"
        )
    return x.to(dtype)


def _like_banks(engine: Engine, prefix: str, tensors: Sequence[Tensor]) -> list[tuple[str, Tensor]]:
    return [
        (prefix + name, tensor)
        for name, tensor in zip(engine.names, tensors, strict=True)
        if tensor.numel() > 0
    ]


def _input_grads(x: Tensor, weights: Tensor | None) -> list[Tensor]:
    """Room for those of x and of the weights, which may be absent."""
    absent = x.new_empty([0])
    return [x.new_empty(x.shape), absent if weights is None else torch.empty_like(weights)]


def _param_grads(
    params: Sequence[Tensor], wanted: Sequence[bool], dtype: torch.dtype | None = None
) -> list[Tensor]:
    """Room for those of params, of their dtype or another; empty where they are not wanted."""
    return [
        p.new_empty(p.shape if want else [0], dtype=dtype)
        for p, want in zip(params, wanted, strict=True)
    ]


_transform = getattr(getattr(torch._C, "_functorch", None), "maybe_current_level", lambda: None)


def _transformed() -> bool:
    return _transform() is not None or forward_ad._current_level >= 0


def refuse_transforms() -> None:
    """Forward-mode derivatives of an operator without a formula for them are zeros, and no error."""
    if not torch.compiler.is_compiling() and _transformed():
        refuse(
            "torch.func's transforms (vmap, grad, jvp) and forward-mode derivatives are not "
            "supported: take the gradient with backward() or torch.autograd.grad()"
        )


_modes = getattr(torch._C, "_len_torch_dispatch_stack", None)


def is_plain(*tensors: Tensor) -> bool:
    """Whether nobody differentiates, traces or compiles what is done with them, so that the
    operator, which takes longer than a small product, is not needed."""
    return (
        not torch.compiler.is_compiling()  # first: what follows no graph can have
        and _modes is not None
        and _modes() == 0
        and not _transformed()
        and not (torch.is_grad_enabled() and any(t.requires_grad for t in tensors))
        and all(type(t) in (Tensor, torch.nn.Parameter) for t in tensors)
    )


# ---- experts -------------------------------------------------------------------------------------


def _compute_experts(
    engine: str,
    x: Tensor,
    experts: Tensor | None,
    weights: Tensor | None,
    params: Sequence[Tensor],
    save: bool,
) -> list[Tensor]:
    """[y [N,D], gate, up [N K,F]], the last two empty unless a backward follows."""
    layer = Engine.of(engine)
    y, gate, up = _shapes(layer, x, weights, save)
    layer.call(
        "moe_layer_experts",
        _like_banks(layer, "", params),
        _given(x=x, experts=experts, weights=weights, y=y)
        + [(n, t) for n, t in (("gate", gate), ("up", up)) if t.numel() > 0],
    )
    return [y, gate, up]


_experts = torch.library.custom_op(
    "moe_cpp::experts", _compute_experts, mutates_args=(), device_types="cpu"
)


def _shapes(layer: Engine, x: Tensor, weights: Tensor | None, save: bool) -> list[Tensor]:
    rows = x.shape[0] * (1 if weights is None else weights.shape[1]) if save else 0
    hidden = [rows, layer.expert_width]
    return [
        x.new_empty(x.shape),
        x.new_empty(hidden if layer.gated else [0]),
        x.new_empty(hidden),
    ]


@_experts.register_fake
def _(
    engine: str,
    x: Tensor,
    experts: Tensor | None,
    weights: Tensor | None,
    params: Sequence[Tensor],
    save: bool,
) -> list[Tensor]:
    return _shapes(Engine.of(engine), x, weights, save)


@torch.library.custom_op("moe_cpp::experts_backward", mutates_args=(), device_types="cpu")
def _experts_backward(
    engine: str,
    dy: Tensor,
    x: Tensor,
    experts: Tensor | None,
    weights: Tensor | None,
    gate: Tensor,
    up: Tensor,
    params: Sequence[Tensor],
    wanted: Sequence[bool],
) -> list[Tensor]:
    """[dx [N,D], dweights [N,K], a gradient of each of params], empty where it is not wanted."""
    layer = Engine.of(engine)
    dx, dweights = _input_grads(x, weights)
    # The engine sums them in f32 whatever the weights are.
    grads = _param_grads(params, wanted, torch.float32)
    layer.call(
        "moe_layer_experts_backward",
        _like_banks(layer, "", params),
        _given(dy=dy, x=x, experts=experts, weights=weights, up=up, dx=dx)
        + ([] if weights is None else [("dweights", dweights)])
        + ([("gate", gate)] if layer.gated else [])
        + _like_banks(layer, "grad.", grads),
    )
    layer.forget()
    return [dx, dweights, *(g.to(p.dtype) for g, p in zip(grads, params, strict=True))]


@_experts_backward.register_fake
def _(
    engine: str,
    dy: Tensor,
    x: Tensor,
    experts: Tensor | None,
    weights: Tensor | None,
    gate: Tensor,
    up: Tensor,
    params: Sequence[Tensor],
    wanted: Sequence[bool],
) -> list[Tensor]:
    return [*_input_grads(x, weights), *_param_grads(params, wanted)]


def _experts_context(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    engine, x, experts, weights, params, _save = inputs
    ctx.layer = Engine.of(engine)  # lives as long as the graph, its module or not
    _, gate, up = output
    ctx.save_for_backward(x, experts, weights, gate, up, *params)
    ctx.set_materialize_grads(False)  # nobody asks for those of gate and up, which are large


def _experts_gradient(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    x, experts, weights, gate, up, *params = ctx.saved_tensors
    wanted = ctx.needs_input_grad[4]
    dy = torch.zeros_like(x) if grads[0] is None else grads[0].to(x.dtype).contiguous()
    dx, dweights, *dparams = _experts_backward(
        ctx.layer.key,
        dy,
        x,
        experts,
        weights,
        gate,
        up,
        params,
        [bool(w) for w in wanted],
    )
    return (
        None,
        dx,
        None,
        None if weights is None else dweights,
        [d if w else None for d, w in zip(dparams, wanted, strict=True)],
        None,
    )


_experts.register_autograd(_experts_gradient, setup_context=_experts_context)


def experts(
    engine: Engine,
    x: Tensor,
    chosen: Tensor | None,
    weights: Tensor | None,
    params: Sequence[Tensor],
) -> Tensor:
    """x [N,D]; chosen, weights [N,K]; params in the order of engine.names. y [N,D] in x's dtype"""
    refuse_transforms()
    x = x.contiguous()
    weights = None if weights is None else weights.contiguous()
    given = [t for t in (x, chosen, weights, *params) if t is not None]
    run = _compute_experts if is_plain(*given) else _experts
    save = torch.is_grad_enabled() and any(t.requires_grad for t in given)
    y: Tensor = run(engine.key, x, chosen, weights, params, save)[0]
    return y


# ---- one product of the experts ------------------------------------------------------------------


def _multiply(engine: str, rows: Tensor, offsets: Tensor, weight: Tensor) -> Tensor:
    layer = Engine.of(engine)
    out = rows.new_empty([rows.shape[0], layer.expert_width])
    layer.call(
        "moe_layer_products",
        [(layer.names[0], weight)],
        [("rows", rows), ("offsets", offsets), ("out", out)],
    )
    return out


_products = torch.library.custom_op(
    "moe_cpp::products", _multiply, mutates_args=(), device_types="cpu"
)


@_products.register_fake
def _(engine: str, rows: Tensor, offsets: Tensor, weight: Tensor) -> Tensor:
    return rows.new_empty([rows.shape[0], Engine.of(engine).expert_width])


@torch.library.custom_op("moe_cpp::products_backward", mutates_args=(), device_types="cpu")
def _products_backward(
    engine: str, dout: Tensor, rows: Tensor, offsets: Tensor, weight: Tensor, wanted: bool
) -> list[Tensor]:
    """[drows [R,I], the weight's gradient], the latter empty where it is not wanted."""
    layer = Engine.of(engine)
    drows = torch.empty_like(rows, memory_format=torch.contiguous_format)
    grad = torch.empty(weight.shape if wanted else [0], dtype=torch.float32)
    layer.call(
        "moe_layer_products_backward",
        [(layer.names[0], weight)],
        _given(dout=dout, rows=rows, offsets=offsets, drows=drows)
        + _like_banks(layer, "grad.", [grad]),
    )
    layer.forget()
    return [drows, grad.to(weight.dtype)]


@_products_backward.register_fake
def _(
    engine: str, dout: Tensor, rows: Tensor, offsets: Tensor, weight: Tensor, wanted: bool
) -> list[Tensor]:
    return [
        torch.empty_like(rows, memory_format=torch.contiguous_format),
        weight.new_empty(weight.shape if wanted else [0]),
    ]


def _products_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    engine, rows, offsets, weight = inputs
    ctx.layer = Engine.of(engine)
    ctx.save_for_backward(rows, offsets, weight)


def _products_gradient(ctx: Any, dout: Tensor) -> tuple[Any, ...]:
    rows, offsets, weight = ctx.saved_tensors
    wanted = bool(ctx.needs_input_grad[3])
    drows, grad = _products_backward(
        ctx.layer.key, dout.to(rows.dtype).contiguous(), rows, offsets, weight, wanted
    )
    return None, drows, None, grad if wanted else None


_products.register_autograd(_products_gradient, setup_context=_products_context)


def products(engine: Engine, rows: Tensor, offsets: Tensor, weight: Tensor) -> Tensor:
    """rows [R,I] grouped by expert as offsets [E+1] say; weight [E,O,I], the engine's first name.
    [R,O] in rows' dtype"""
    refuse_transforms()
    if rows.shape[0] == 0:
        return rows.new_empty([0, engine.expert_width])
    run = _multiply if is_plain(rows, weight) else _products
    out: Tensor = run(engine.key, rows.contiguous(), offsets, weight)
    return out


# ---- routing -------------------------------------------------------------------------------------

_INPUTS = ("x", "logits", "ids", "bounds", "recorded", "step_counts")


@torch.library.custom_op("moe_cpp::route", mutates_args=(), device_types="cpu")
def _route(
    engine: str, inputs: Sequence[Tensor], params: Sequence[Tensor], training: bool, seed: Tensor
) -> list[Tensor]:
    """[weights [N,K], losses [6], experts, sent [N,K], counts, balance_counts [E], cutoff [E]].
    inputs: those of _INPUTS, empty where absent."""
    layer = Engine.of(engine)
    out = _routed(layer, inputs, training)
    names = ("weights", "losses", "experts", "sent", "counts", "balance_counts", "cutoff")
    layer.call(
        "moe_layer_route",
        _like_banks(layer, "", params),
        _inputs(inputs) + list(zip(names, out, strict=True)),
        int(training),
        number_of(seed),
    )
    return out


def number_of(seed: Tensor) -> int:
    """As moe_layer_route() takes it, where 0 draws nothing: here that is an empty seed, and 0 is
    one like any other. What stands for it there is 2**63, which so draws the same."""
    return 0 if seed.numel() == 0 else int(seed) or 2**63


def _inputs(inputs: Sequence[Tensor]) -> list[tuple[str, Tensor]]:
    return [(n, t) for n, t in zip(_INPUTS, inputs, strict=True) if t.numel() > 0]


def _outputs(layer: Engine, tokens: int, training: bool) -> list[tuple[torch.dtype, list[int]]]:
    slots = layer.about["slots" if training else "slots_eval"]
    return [
        (torch.float32, [tokens, slots]),
        (torch.float32, [len(layer.about["loss_order"])]),
        (torch.int32, [tokens, slots]),
        (torch.int32, [tokens, slots]),
        (torch.int32, [layer.about["experts"]]),
        (torch.int32, [layer.about["experts"]]),
        (torch.float32, [layer.about["experts"]]),
    ]


def _routed(layer: Engine, inputs: Sequence[Tensor], training: bool) -> list[Tensor]:
    tokens = next(t.shape[0] for t in inputs if t.numel() > 0)
    made = _outputs(layer, tokens, training)
    return [inputs[0].new_empty(shape, dtype=dtype) for dtype, shape in made]


def _routed_nothing(
    layer: Engine, like: Tensor, params: Sequence[Tensor], training: bool
) -> list[Tensor]:
    """Of no tokens: losses of 0, whose gradients are zeros."""
    weights, losses, *rest = (
        like.new_zeros(shape, dtype=dtype) for dtype, shape in _outputs(layer, 0, training)
    )
    for tensor in (like, *params):
        losses = losses + tensor.flatten()[:0].sum()
    return [weights, losses, *rest]


@_route.register_fake
def _(
    engine: str, inputs: Sequence[Tensor], params: Sequence[Tensor], training: bool, seed: Tensor
) -> list[Tensor]:
    return _routed(Engine.of(engine), inputs, training)


@torch.library.custom_op("moe_cpp::route_backward", mutates_args=(), device_types="cpu")
def _route_backward(
    engine: str,
    dweights: Tensor,
    dlosses: Tensor,
    inputs: Sequence[Tensor],
    params: Sequence[Tensor],
    training: bool,
    seed: Tensor,
    wanted: Sequence[bool],
) -> list[Tensor]:
    """[gradient of x or of the logits, a gradient of each of params]."""
    layer = Engine.of(engine)
    out = _route_grads(inputs, params, wanted)
    of_logits = inputs[1].numel() > 0
    layer.call(
        "moe_layer_route_backward",
        _like_banks(layer, "", params),
        _inputs(inputs)
        + [("dweights", dweights), ("dlosses", dlosses)]
        + ([("dlogits" if of_logits else "dx", out[0])] if out[0].numel() > 0 else [])
        + _like_banks(layer, "grad.", out[1:]),
        int(training),
        number_of(seed),
    )
    layer.forget()
    return out


def _route_grads(
    inputs: Sequence[Tensor], params: Sequence[Tensor], wanted: Sequence[bool]
) -> list[Tensor]:
    x, logits = inputs[:2]
    of = logits if logits.numel() > 0 else x
    return [
        of.new_empty(of.shape, dtype=torch.float32),
        *_param_grads(params, wanted),
    ]


@_route_backward.register_fake
def _(
    engine: str,
    dweights: Tensor,
    dlosses: Tensor,
    inputs: Sequence[Tensor],
    params: Sequence[Tensor],
    training: bool,
    seed: Tensor,
    wanted: Sequence[bool],
) -> list[Tensor]:
    return _route_grads(inputs, params, wanted)


def _route_context(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    engine, given, params, ctx.training, seed = inputs
    ctx.layer = Engine.of(engine)
    ctx.inputs = len(given)
    ctx.save_for_backward(seed, *given, *params)
    ctx.set_materialize_grads(True)


def _route_gradient(ctx: Any, grads: list[Tensor]) -> tuple[Any, ...]:
    seed, *rest = ctx.saved_tensors
    inputs, params = rest[: ctx.inputs], rest[ctx.inputs :]
    wanted = ctx.needs_input_grad[2]
    first, *dparams = _route_backward(
        ctx.layer.key,
        grads[0].contiguous(),
        grads[1].contiguous(),
        inputs,
        params,
        ctx.training,
        seed,
        [bool(w) for w in wanted],
    )
    dinputs: list[Tensor | None] = [None] * ctx.inputs
    place = 1 if inputs[1].numel() > 0 else 0
    if inputs[place].numel() > 0:
        dinputs[place] = first.to(inputs[place].dtype)
    return (
        None,
        dinputs,
        [d if w else None for d, w in zip(dparams, wanted, strict=True)],
        None,
        None,
    )


_route.register_autograd(_route_gradient, setup_context=_route_context)


def route(
    engine: Engine,
    inputs: dict[str, Tensor | None],
    params: Sequence[Tensor],
    training: bool,
    seed: Tensor,
) -> list[Tensor]:
    """inputs: x or logits, and what else there is, by the names of moe_layer_route()."""
    refuse_transforms()
    like = inputs.get("x")
    like = inputs["logits"] if like is None else like
    assert like is not None
    if like.shape[0] == 0:
        return _routed_nothing(engine, like, params, training)
    absent = like.new_empty([0])
    found = (inputs.get(name) for name in _INPUTS)
    given = [absent if tensor is None else tensor.contiguous() for tensor in found]
    routed: list[Tensor] = _route(engine.key, given, params, training, seed)
    return routed
