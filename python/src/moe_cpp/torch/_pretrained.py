"""Sparse layers of known models as a MoE, and back: one row for each class."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor, nn

from moe_cpp._errors import refuse
from moe_cpp.recipes import recipes
from moe_cpp.torch import _activations

if TYPE_CHECKING:
    from moe_cpp.torch._module import MoE

View = Callable[[Tensor], Tensor]  # of the same storage, so that it can be written through


def _whole(t: Tensor) -> Tensor:
    return t


def _one(t: Tensor) -> Tensor:
    """The bank [1, ...] of a layer's only shared expert."""
    return t.unsqueeze(0)


def _turned(t: Tensor) -> Tensor:
    """[E, out, in] of a bank [E, in, out]."""
    return t.transpose(1, 2)


def _flat(t: Tensor) -> Tensor:
    """[E, out] of biases [E, 1, out]."""
    return t.squeeze(1)


@dataclass(frozen=True)
class _Piece:
    """A tensor of the MoE, and those of the layer that it is made of, one behind another along
    dimension 1. Layers may lack one that is optional in the MoE."""

    name: str
    paths: tuple[str, ...]
    view: View = _whole


@dataclass(frozen=True)
class _Row:
    """How a layer of one class is read. A path is a chain of attributes; one that is not there
    reads as None."""

    recipe: str
    activation: str  # path of the experts' activation
    pieces: tuple[_Piece, ...]
    settings: Mapping[str, str]  # options of the MoE, by the path of their value
    fixed: Mapping[str, object] = field(default_factory=dict)  # further options
    # Attributes that only some values of can be told to a MoE, and the options that each means.
    # "stages" are changes to those of the recipe.
    means: Mapping[str, Mapping[object, Mapping[str, Any]]] = field(default_factory=dict)


_ROUTER = _Piece("router.weight", ("gate.weight",))
_CORRECTION = _Piece("router.e_score_correction_bias", ("gate.e_score_correction_bias",))
_BANKS = (
    _Piece("experts.gate_up_proj", ("experts.gate_up_proj",)),
    _Piece("experts.down_proj", ("experts.down_proj",)),
)


def _shared(path: str) -> tuple[_Piece, ...]:
    """A gated feed-forward network of three nn.Linear, with or without biases."""
    gate_up = (f"{path}.gate_proj", f"{path}.up_proj")
    return tuple(
        _Piece(f"shared_experts.{name}{bias}", tuple(f"{p}.{kind}" for p in paths), _one)
        for name, paths in (("gate_up_proj", gate_up), ("down_proj", (f"{path}.down_proj",)))
        for bias, kind in (("", "weight"), ("_bias", "bias"))
    )


_TOP_K = {"top_k": "gate.top_k"}
_OPEN_WEIGHTS = _TOP_K | {"norm_topk_prob": "gate.norm_topk_prob"}
_GROUPED = _TOP_K | {
    "expert_groups": "gate.num_group",
    "groups_kept": "gate.topk_group",
    "routed_scaling_factor": "gate.routed_scaling_factor",
}
_DEEPSEEK_V3 = _Row(
    recipe="deepseek-v3",
    activation="experts.act_fn",
    pieces=(_ROUTER, _CORRECTION, *_BANKS, *_shared("shared_experts")),
    settings=_GROUPED,
    means={
        "gate.norm_topk_prob": {True: {}},
        "config.scoring_func": {None: {}, "sigmoid": {}},
        "config.topk_method": {None: {}, "noaux_tc": {}},
    },
)

_LAYERS: dict[str, _Row] = {
    "MixtralSparseMoeBlock": _Row(
        recipe="mixtral",
        activation="experts.act_fn",
        pieces=(_ROUTER, *_BANKS),
        settings=_TOP_K,
        # Its jitter changes what the experts see; no recipe's does.
        means={"jitter_noise": {None: {}, 0: {}}},
    ),
    "OlmoeSparseMoeBlock": _Row(
        recipe="olmoe",
        activation="experts.act_fn",
        pieces=(_ROUTER, *_BANKS),
        settings=_OPEN_WEIGHTS,
    ),
    "Qwen2MoeSparseMoeBlock": _Row(
        recipe="qwen2-moe",
        activation="experts.act_fn",
        pieces=(
            _ROUTER,
            *_BANKS,
            *_shared("shared_expert"),
            _Piece("shared_expert_gate.weight", ("shared_expert_gate.weight",)),
        ),
        settings=_OPEN_WEIGHTS,
    ),
    "Qwen3MoeSparseMoeBlock": _Row(
        recipe="qwen3-moe",
        activation="experts.act_fn",
        pieces=(_ROUTER, *_BANKS),
        settings=_TOP_K,
        # The recipe renormalises, which the config leaves out by default; Qwen2's leaves it open.
        means={
            "gate.norm_topk_prob": {
                True: {},
                False: {"recipe": "qwen2-moe", "norm_topk_prob": False},
            }
        },
    ),
    # The layer itself ignores its config's norm_topk_prob and scoring_func, which tell how the
    # weights were trained.
    "DeepseekV2Moe": _Row(
        recipe="deepseek-v2",
        activation="experts.act_fn",
        pieces=(_ROUTER, *_BANKS, *_shared("shared_experts")),
        settings=_GROUPED,
        means={
            "gate.topk_method": {
                "greedy": {"expert_groups": 1, "groups_kept": 1},
                "group_limited_greedy": {},
            },
            "config.norm_topk_prob": {None: {}, False: {}},
            "config.scoring_func": {None: {}, "softmax": {}},
        },
    ),
    "DeepseekV3MoE": _DEEPSEEK_V3,
    "Glm4MoeMoE": _DEEPSEEK_V3,
    # nanoMoE's. It draws its noise in evaluation too, where a MoE draws none.
    "MOELayer": _Row(
        recipe="nanomoe",
        activation="experts.gelu",
        pieces=(
            _Piece("router.weight", ("router.w_g.weight",)),
            _Piece("router.noise_weight", ("router.w_noise.weight",)),
            _Piece("experts.up_proj", ("experts.c_fc",), _turned),
            _Piece("experts.down_proj", ("experts.c_proj",), _turned),
            _Piece("experts.up_proj_bias", ("experts.fc_bias",), _flat),
            _Piece("experts.down_proj_bias", ("experts.proj_bias",), _flat),
        ),
        settings={
            "top_k": "router.top_k",
            "capacity_factor": "router.train_capacity",
            "capacity_factor_eval": "router.eval_capacity",
        },
        fixed={"eval": "as-trained"},
        means={
            "router.use_noisy_top_k": {
                True: {},
                False: {"recipe": "custom", "stages": {"noise": "none"}},
            },
            "router.min_capacity": {4: {}},
            "experts.dropout.p": {None: {}, 0: {}},
        },
    ),
}


def _at(layer: nn.Module, path: str) -> Any:
    value: Any = layer
    for name in path.split("."):
        value = getattr(value, name, None)
    return value


def _class_of(layer: object) -> str:
    return type(layer).__name__


def _row_of(layer: nn.Module) -> _Row:
    row = _LAYERS.get(_class_of(layer))
    if row is None:
        refuse(
            f"{_class_of(layer)} is not a layer whose weights and routing are known here; those "
            f"are {', '.join(_LAYERS)}: make a MoE(...) of its recipe and copy its weights"
        )
    return row


def _activation_of(row: _Row, layer: nn.Module) -> str:
    given = _at(layer, row.activation)
    name = _activations.name_of(given)
    if name is None:
        refuse(
            f"{_class_of(layer)}.{row.activation} is {given}, which is none of "
            f"{', '.join(_activations.ACTIVATIONS)}; a MoE has no other activation, so keep this "
            "layer"
        )
    return name


def _options_of(row: _Row, layer: nn.Module) -> dict[str, Any]:
    """Of a MoE that routes as the layer does, without its sizes."""
    options: dict[str, Any] = {"recipe": row.recipe, **row.fixed}
    for name, path in row.settings.items():
        value = _at(layer, path)
        if value is not None:
            options[name] = value
    for path, meanings in row.means.items():
        value = _at(layer, path)
        if value not in meanings:
            known = " or ".join(str(v) for v in meanings if v is not None)
            refuse(
                f"{_class_of(layer)} has {path} = {value!r}, which recipe {row.recipe!r} cannot "
                f"say (it has {known}); convert a layer that has {known}, or keep this one"
            )
        options |= meanings[value]
    if "stages" in options:
        stages = next(r["stages"] for r in recipes() if r["name"] == row.recipe)
        options["stages"] = {**copy.deepcopy(stages), **options["stages"]}
    return options


def _pieces_of(row: _Row, layer: nn.Module) -> dict[str, list[Tensor]]:
    """Views of the layer's tensors by the MoE's names, for those that the layer has."""
    pieces: dict[str, list[Tensor]] = {}
    for piece in row.pieces:
        found = [_at(layer, path) for path in piece.paths]
        if all(t is None or t.numel() == 0 for t in found):
            continue
        for path, tensor in zip(piece.paths, found, strict=True):
            if tensor is None or tensor.is_meta:
                refuse(f"{_class_of(layer)}.{path} has no numbers; load the model's weights first")
            if tensor.dtype not in (torch.float32, torch.bfloat16):
                dtype = str(tensor.dtype).removeprefix("torch.")
                refuse(
                    f"{_class_of(layer)}.{path} is {dtype}; moe_cpp computes in float32 and "
                    "bfloat16: call float() on the layer first"
                )
        pieces[piece.name] = [piece.view(t.detach()) for t in found]
    return pieces


def _joined(views: list[Tensor]) -> Tensor:
    return views[0] if len(views) == 1 else torch.cat(views, dim=1)


def _shape(views: list[Tensor]) -> tuple[int, ...]:
    shape = list(views[0].shape)
    if len(views) > 1:
        shape[1] = sum(v.shape[1] for v in views)
    return tuple(shape)


def _tensors_of(moe: MoE) -> dict[str, Tensor]:
    return {**dict(moe.named_parameters()), **dict(moe.named_buffers())}


def _misfit(layer: nn.Module, what: str) -> NoReturn:
    refuse(
        f"{what}; make the MoE with MoE.from_pretrained_layer() of such a {_class_of(layer)}, or "
        "give both the same sizes and options"
    )


def _check_fit(moe: MoE, layer: nn.Module, pieces: dict[str, list[Tensor]]) -> None:
    tensors, name_of = _tensors_of(moe), _class_of(layer)
    for name in tensors:
        if name not in pieces:
            _misfit(layer, f"the MoE has {name}, for which {name_of} has no place")
    for name, views in pieces.items():
        if name not in tensors:
            _misfit(layer, f"{name_of} has weights for {name}, which the MoE has not")
        if _shape(views) != tuple(tensors[name].shape):
            ours, theirs = tuple(tensors[name].shape), _shape(views)
            _misfit(layer, f"{name} is {ours} in the MoE and {theirs} in {name_of}")


def read(layer: nn.Module) -> MoE:
    """See MoE.from_pretrained_layer."""
    from moe_cpp.torch._module import Experts, MoE

    row = _row_of(layer)
    options, activation = _options_of(row, layer), _activation_of(row, layer)
    pieces = _pieces_of(row, layer)
    for name in ("router.weight", "experts.down_proj"):
        if name not in pieces:
            refuse(f"{_class_of(layer)} has no weights for {name}; load the model's weights first")
    experts, hidden, width = _shape(pieces["experts.down_proj"])
    bank: dict[str, Any] = {
        "activation": activation,
        "gated": "experts.gate_up_proj" in pieces,
        "bias": "experts.down_proj_bias" in pieces,
    }
    moe = MoE(hidden, width, experts, shared_experts=0, **bank, **options)
    # Of any width and with biases of their own, which a number of experts cannot say.
    if "shared_experts.down_proj" in pieces:
        width = _shape(pieces["shared_experts.down_proj"])[2]
        bank["bias"] = "shared_experts.down_proj_bias" in pieces
        moe.shared_experts = Experts(1, hidden, width, drawn=False, **bank)
    if "shared_expert_gate.weight" in pieces:
        moe.shared_expert_gate = nn.Linear(hidden, 1, bias=False)
    _check_fit(moe, layer, pieces)
    trained = dict(moe.named_parameters())
    wanted = {p.name: _at(layer, p.paths[0]).requires_grad for p in row.pieces if p.name in pieces}
    for name, tensor in _tensors_of(moe).items():
        value = _joined(pieces[name]).to("cpu")
        if name in trained:  # of the layer's dtype; buffers are f32
            tensor.data = value.clone(memory_format=torch.contiguous_format)
            tensor.requires_grad_(wanted[name])
        else:
            tensor.copy_(value)
    return moe.train(layer.training)


@torch.no_grad()
def write(moe: MoE, layer: nn.Module) -> None:
    """See MoE.to_pretrained_layer. Nothing is written where something does not fit."""
    row = _row_of(layer)
    ours: dict[str, Any] = {
        **moe.router.engine.options,
        "recipe": moe.recipe,
        "top_k": moe.top_k,
        "activation": moe.experts.engine.options["activation"],
    }
    theirs = {**_options_of(row, layer), "activation": _activation_of(row, layer)}
    for name, value in theirs.items():
        if name not in ours:
            _misfit(layer, f"{_class_of(layer)} has {name} = {value!r}, the MoE its own default")
        if ours[name] != value:
            _misfit(layer, f"the MoE has {name} = {ours[name]!r}, {_class_of(layer)} {value!r}")
    pieces = _pieces_of(row, layer)
    _check_fit(moe, layer, pieces)
    for name, tensor in _tensors_of(moe).items():
        first, *more = pieces[name]
        begin = first.shape[1] if more else 0
        first.copy_(tensor.narrow(1, 0, begin) if more else tensor)
        for view in more:
            view.copy_(tensor.narrow(1, begin, view.shape[1]))
            begin += view.shape[1]
