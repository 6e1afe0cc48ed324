"""Experts of transformers' models, computed by moe.cpp on the CPU:

>>> import moe_cpp.transformers
>>> model.set_experts_implementation("moe_cpp")

What stands around them too, where that is faster:

>>> moe_cpp.transformers.accelerate(model)
"""

from __future__ import annotations

import weakref
from typing import Any

from moe_cpp._errors import refuse

try:
    import torch
    from torch import Tensor, nn
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, _default_apply_gate
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask
except ImportError as error:
    raise ImportError(
        f"moe_cpp.transformers needs torch and transformers 5, which have no {error.name}: "
        "pip install torch transformers"
    ) from None

from moe_cpp.torch import _bank
from moe_cpp.torch._activations import name_of
from moe_cpp.torch._attention import attention
from moe_cpp.torch._engine import Engine, forgetful
from moe_cpp.torch._linear import replace_linears, restore_linears
from moe_cpp.torch._norm import replace_norms, restore_norms
from moe_cpp.torch._ops import as_autocast, experts, is_plain, products


class _Banks:
    """A module's weights in the engine's form [E, out, in], whatever form they have there."""

    def __init__(self, module: Any) -> None:
        self.gated, self.biased = bool(module.has_gate), bool(module.has_bias)
        self.transposed = bool(module.is_transposed)
        self.up_name = "gate_up_proj" if self.gated else "up_proj"
        up, down = tuple(getattr(module, self.up_name).shape), tuple(module.down_proj.shape)
        if self.transposed:
            up, down = (up[0], up[2], up[1]), (down[0], down[2], down[1])
        self.experts, self.hidden, self.width = down
        self.rows = up[1]
        if up != (self.experts, (2 if self.gated else 1) * self.width, self.hidden):
            refuse(
                f"{type(module).__name__} has experts of {up} and {down} [experts, out, in], which "
                "do not fit together; choose another experts implementation for this model"
            )
        # Copies that lie the other way round, of what and of which version they were made.
        self._turned: dict[str, tuple[Tensor, int, Tensor]] = {}
        forgetful(self)

    def forget(self) -> None:
        self._turned.clear()

    def bank(self, module: Any, name: str) -> Tensor:
        given: Tensor = getattr(module, name)
        if not self.transposed:
            return given
        if torch.is_grad_enabled() and given.requires_grad:
            self._turned.pop(name, None)  # a training may change it where no version counts that
            return given.transpose(1, 2).contiguous()
        source, version = given.detach(), -1 if given.is_inference() else given._version
        before = self._turned.get(name)
        if before is None or before[0].data_ptr() != source.data_ptr() or before[1] != version:
            before = self._turned[name] = (source, version, source.transpose(1, 2).contiguous())
        return before[2]


class _Whole:
    """Experts that the engine computes as a whole."""

    def __init__(self, module: Any, activation: str) -> None:
        self.banks = banks = _Banks(module)
        self.engine = _bank.engine_of(
            banks.experts,
            banks.hidden,
            banks.width,
            activation=activation,
            gated=banks.gated,
            bias=banks.biased,
        )

    def forget(self) -> None:
        self.banks.forget()
        self.engine.forget()

    def __call__(self, module: Any, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        banks = self.banks
        weights_of = (banks.bank(module, name) for name in (banks.up_name, "down_proj"))
        biases = (
            getattr(module, name + "_bias") if banks.biased else None
            for name in (banks.up_name, "down_proj")
        )
        params = _bank.params_of(self.engine, *weights_of, *biases)
        return experts(self.engine, x, chosen, weights, params)


class _Apart:
    """Experts with something of the model's own between the products: their gate, an activation,
    a norm. The engine computes the products."""

    def __init__(self, module: Any) -> None:
        self.banks = banks = _Banks(module)

        def product(width: int, out: int) -> Engine:
            sizes = {"experts": banks.experts, "hidden_size": width, "moe_intermediate_size": out}
            return Engine({"top_k": 1, "gated": False, **sizes}, ["experts.up.weight"])

        self.up = product(banks.hidden, banks.rows)
        self.down = product(banks.width, banks.hidden)

    def forget(self) -> None:
        for keeper in (self.banks, self.up, self.down):
            keeper.forget()

    def __call__(self, module: Any, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        banks = self.banks
        slots = chosen.shape[1]
        # Beyond the last expert stands what is not sent (expert parallelism).
        expert, order = torch.sort(chosen.reshape(-1).long().clamp(max=banks.experts), stable=True)
        ends = torch.searchsorted(expert, torch.arange(banks.experts), right=True)
        offsets = torch.cat([ends.new_zeros(1), ends])
        if module._is_expert_parallel:
            sent = int(offsets[-1])
            expert, order = expert[:sent], order[:sent]
        rows = products(self.up, x[order // slots], offsets, banks.bank(module, banks.up_name))
        if banks.biased:
            rows = rows + getattr(module, banks.up_name + "_bias")[expert].to(rows.dtype)
        rows = module._apply_gate(rows) if banks.gated else module.act_fn(rows)
        rows = products(self.down, rows.to(x.dtype), offsets, banks.bank(module, "down_proj"))
        if banks.biased:
            rows = rows + module.down_proj_bias[expert].to(rows.dtype)
        if module.has_post_expert_norm:
            rows = module.post_expert_norm(rows)
        weighed = rows * weights.reshape(-1)[order].unsqueeze(-1)
        y = weighed.new_zeros([x.shape[0] * slots, x.shape[1]]).index_copy(0, order, weighed)
        return y.view(x.shape[0], slots, x.shape[1]).sum(dim=1)


def _prepared(module: Any) -> _Whole | _Apart:
    own_gate = module.has_gate and type(module)._apply_gate is not _default_apply_gate
    if own_gate or not module.is_concatenated or module.has_post_expert_norm:
        return _Apart(module)
    activation = name_of(module.act_fn)
    return _Apart(module) if activation is None else _Whole(module, activation)


_KNOWN: weakref.WeakKeyDictionary[nn.Module, _Whole | _Apart] = weakref.WeakKeyDictionary()


def _after_load(module: Any, _: object) -> None:
    """load_state_dict's writes have no version in inference mode."""
    known = _KNOWN.get(module)
    if known is not None:
        known.forget()


# What is kept of a module is beside it, where a graph of torch.compile would not see it change.
@torch.compiler.disable
def experts_forward(
    self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """hidden_states [N,D]; top_k_index, top_k_weights [N,K]: what transformers gives an experts
    module. Computed in bf16 where hidden_states or autocast is."""
    known = _KNOWN.get(self)
    if known is None:
        known = _KNOWN[self] = _prepared(self)
        if _after_load not in self._load_state_dict_post_hooks.values():  # a copy has it already
            self.register_load_state_dict_post_hook(_after_load)
    if hidden_states.shape[0] == 0:
        return hidden_states
    return known(self, as_autocast(hidden_states), top_k_index, top_k_weights.float()).to(
        hidden_states.dtype
    )


ALL_EXPERTS_FUNCTIONS.register("moe_cpp", experts_forward)


def attention_forward(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """query [B,H,T,C], key, value [B,G,U,C]: what transformers gives an attention function. Without
    a mask whole texts and single tokens behind others are the engine's; the rest, padded texts
    among them, PyTorch's."""
    tokens, keys = query.shape[2], key.shape[2]
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    special = dropout != 0 or any(more.get(name) is not None for name in _SPECIAL)
    if attention_mask is None and causal and not special and _fits(query, key, value):
        behind = tokens == 1 and key.numel() >= _FEWEST_NUMBERS and is_plain(query, key, value)
        if 1 < tokens == keys or (behind and keys > 1):
            o = attention(query, key, value, scale=scaling)
            return o.transpose(1, 2).contiguous(), None
    return sdpa_attention_forward(
        module, query, key, value, attention_mask, dropout, scaling, is_causal, **more
    )


def _fits(query: Tensor, key: Tensor, value: Tensor) -> bool:
    return (
        query.dtype in (torch.float32, torch.bfloat16)
        and query.dtype == key.dtype == value.dtype
        and query.shape[3] == key.shape[3]
        and query.device.type == "cpu"
    )


# Of fewer keys' numbers, calling the engine takes longer than PyTorch's attention.
_FEWEST_NUMBERS = 1 << 15
# Arguments that change what attention is.
_SPECIAL = ("position_bias", "cache", "softcap", "s_aux", "output_attentions")

AttentionInterface.register("moe_cpp", attention_forward)
AttentionMaskInterface.register("moe_cpp", sdpa_mask)


def accelerate(model: Any) -> int:
    """Has the engine compute the model's experts, where it has some, its norms and, where it takes
    PyTorch's (sdpa), its attention, in training too, and its linear layers where that is faster;
    returns how many of the latter. restore() undoes it."""
    _BEFORE.setdefault(model, (_implementation(model, "experts"), _implementation(model, "attn")))
    model.set_experts_implementation("moe_cpp")
    if _implementation(model, "attn") == "sdpa":
        model.set_attn_implementation("moe_cpp")
    replace_norms(model)
    return replace_linears(model)


def restore(model: Any) -> None:
    """Undoes accelerate()."""
    experts_before, attention_before = _BEFORE.pop(model, (None, None))
    if experts_before is not None:
        model.set_experts_implementation(experts_before)
    if attention_before is not None:
        model.set_attn_implementation(attention_before)
    restore_norms(model)
    restore_linears(model)


# How models computed before accelerate().
_BEFORE: weakref.WeakKeyDictionary[nn.Module, tuple[str | None, str | None]] = (
    weakref.WeakKeyDictionary()
)


def _implementation(model: Any, of: str) -> str | None:
    name: str | None = getattr(model.config, f"_{of}_implementation", None)
    return name
