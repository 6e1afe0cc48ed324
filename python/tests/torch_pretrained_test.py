"""MoE.from_pretrained_layer and to_pretrained_layer against the layers themselves, in f32.

Which tensor of a layer is which of the MoE's is written down here once more, so that a row of the
module's table that mixes two up is seen.

Not covered: noise of nanoMoE's router, which draws from another generator; whole models.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
pytest.importorskip("transformers")

import moe_cpp as moe
from moe_cpp.torch import MoE

TOLERANCE = 2e-5
D, F, E, K = 24, 16, 8, 3
Of = Callable[[Any], Any]  # a parameter, or its gradient


def block_of(model: str, name: str, config: str, **settings: object) -> Any:
    """A block of random weights."""
    folder = f"transformers.models.{model}"
    made = getattr(importlib.import_module(f"{folder}.configuration_{model}"), config)(**settings)
    made._experts_implementation = "eager"
    return drawn(getattr(importlib.import_module(f"{folder}.modeling_{model}"), name)(made))


def drawn(block: Any) -> Any:
    torch.manual_seed(7)
    with torch.no_grad():
        for tensor in [*block.parameters(), *block.buffers()]:
            tensor.normal_(std=0.3)
    return block.eval()


SIZES: dict[str, Any] = {"hidden_size": D, "num_experts_per_tok": K}
SMALL = SIZES | {"moe_intermediate_size": F}
GROUPS = {"n_group": 4, "topk_group": 3, "routed_scaling_factor": 1.7, "n_shared_experts": 2}


def mixtral(**more: object) -> Any:
    own = {"intermediate_size": F, "num_local_experts": E}
    return block_of("mixtral", "MixtralSparseMoeBlock", "MixtralConfig", **SIZES | own | more)


def olmoe(**more: object) -> Any:
    own = {"intermediate_size": F, "num_experts": E}
    return block_of("olmoe", "OlmoeSparseMoeBlock", "OlmoeConfig", **SIZES | own | more)


def qwen2(**more: object) -> Any:
    own = {"num_experts": E, "shared_expert_intermediate_size": 20}
    return block_of("qwen2_moe", "Qwen2MoeSparseMoeBlock", "Qwen2MoeConfig", **SMALL | own | more)


def qwen3(**more: object) -> Any:
    own = {"num_experts": E}
    return block_of("qwen3_moe", "Qwen3MoeSparseMoeBlock", "Qwen3MoeConfig", **SMALL | own | more)


def deepseek_v2(**more: object) -> Any:
    own = {"n_routed_experts": E, "topk_method": "group_limited_greedy"} | GROUPS
    own |= {"num_attention_heads": 4}  # the config wants them to divide D
    return block_of("deepseek_v2", "DeepseekV2Moe", "DeepseekV2Config", **SMALL | own | more)


def deepseek_v3(**more: object) -> Any:
    own = {"n_routed_experts": E} | GROUPS
    return block_of("deepseek_v3", "DeepseekV3MoE", "DeepseekV3Config", **SMALL | own | more)


def glm4(**more: object) -> Any:
    own = {"n_routed_experts": E} | GROUPS
    return block_of("glm4_moe", "Glm4MoeMoE", "Glm4MoeConfig", **SMALL | own | more)


def nanomoe(**more: Any) -> Any:
    folder = str(Path(__file__).resolve().parents[2] / "tools" / "golden")
    if folder not in sys.path:
        sys.path.append(folder)
    golden = importlib.import_module("nanomoe")
    base: Any = golden.MoE

    class MOELayer(base):
        """The golden layer with the attributes that nanoMoE's own has."""

        def __init__(self, config: Any, eval_capacity: float, dropout: float) -> None:
            super().__init__(config)
            for name in ("top_k", "n_exp", "train_capacity", "min_capacity", "use_noisy_top_k"):
                setattr(self.router, name, getattr(config, name))
            self.router.eval_capacity = eval_capacity
            self.experts.gelu = torch.nn.GELU()
            self.experts.dropout = torch.nn.Dropout(dropout)

        def forward(self, x: Any) -> Any:
            router = self.router
            self.c.train_capacity = router.train_capacity if self.training else router.eval_capacity
            return super().forward(x, False, None)

    own = {"eval_capacity": more.pop("eval_capacity", 0.9), "dropout": more.pop("dropout", 0.0)}
    config = golden.NanoMoEConfig(n_embd=D, n_exp=E, top_k=K, train_capacity=0.6)
    for name, value in more.items():
        setattr(config, name, value)
    return drawn(MOELayer(config, **own))


LAYERS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "mixtral": (mixtral, {}),
    "mixtral-gelu": (mixtral, {"hidden_act": "gelu"}),
    "olmoe": (olmoe, {"norm_topk_prob": False}),
    "olmoe-renormalised": (olmoe, {"norm_topk_prob": True}),
    "qwen2": (qwen2, {"norm_topk_prob": False}),
    "qwen2-renormalised": (qwen2, {"norm_topk_prob": True, "hidden_act": "gelu_new"}),
    "qwen3": (qwen3, {"norm_topk_prob": True}),
    "qwen3-not-renormalised": (qwen3, {"norm_topk_prob": False, "hidden_act": "relu"}),
    "deepseek-v2": (deepseek_v2, {}),
    "deepseek-v2-greedy-biased": (deepseek_v2, {"topk_method": "greedy", "mlp_bias": True}),
    "deepseek-v3": (deepseek_v3, {}),
    "deepseek-v3-one-group": (deepseek_v3, {"n_group": 1, "topk_group": 1}),
    "glm4": (glm4, {}),
    "glm4-unscaled": (glm4, {"routed_scaling_factor": 1.0}),
    "nanomoe": (nanomoe, {}),
    "nanomoe-no-bias": (nanomoe, {"bias": False}),
}


def tensors_of(block: Any, of: Of) -> dict[str, Any]:
    """By the MoE's names, in its form."""
    experts = block.experts
    if type(block).__name__ == "MOELayer":
        found = {
            "router.weight": of(block.router.w_g.weight),
            "experts.up_proj": of(experts.c_fc).transpose(1, 2),
            "experts.down_proj": of(experts.c_proj).transpose(1, 2),
        }
        if experts.fc_bias is not None:
            found["experts.up_proj_bias"] = of(experts.fc_bias)[:, 0]
            found["experts.down_proj_bias"] = of(experts.proj_bias)[:, 0]
        return found
    found = {
        "router.weight": of(block.gate.weight),
        "experts.gate_up_proj": of(experts.gate_up_proj),
        "experts.down_proj": of(experts.down_proj),
    }
    shared = getattr(block, "shared_experts", getattr(block, "shared_expert", None))
    if shared is not None:
        gate, up, down = shared.gate_proj, shared.up_proj, shared.down_proj
        both = torch.cat([of(gate.weight), of(up.weight)])
        found["shared_experts.gate_up_proj"] = both.unsqueeze(0)
        found["shared_experts.down_proj"] = of(down.weight).unsqueeze(0)
        if down.bias is not None:
            both = torch.cat([of(gate.bias), of(up.bias)])
            found["shared_experts.gate_up_proj_bias"] = both.unsqueeze(0)
            found["shared_experts.down_proj_bias"] = of(down.bias).unsqueeze(0)
    if hasattr(block, "shared_expert_gate"):
        found["shared_expert_gate.weight"] = of(block.shared_expert_gate.weight)
    return found


def error(got: Any, want: Any) -> float:
    """Largest difference, of the largest magnitude wanted."""
    assert got.shape == want.shape
    assert want.abs().max() > 1e-3
    return float((got - want).abs().max() / want.abs().max())


def run(module: Any, x: Any, dy: Any) -> tuple[Any, Any]:
    """The output and the gradient to x; the module's parameters have theirs."""
    module.zero_grad()
    x = x.clone().requires_grad_()
    y = module(x)
    (y * dy).sum().backward()
    return y.detach(), x.grad


def compare(layer: Any, block: Any) -> dict[str, float]:
    x, dy = torch.randn(2, 3, 17, D, generator=torch.Generator().manual_seed(3))
    y, dx = run(layer, x, dy)
    want_y, want_dx = run(block, x, dy)
    found = {"y": error(y, want_y), "dx": error(dx, want_dx)}
    grads = tensors_of(block, lambda p: p.grad)
    assert sum(g.numel() for g in grads.values()) == sum(p.numel() for p in block.parameters())
    params = dict(layer.named_parameters())
    assert params.keys() == grads.keys()
    for name, grad in grads.items():
        found[name] = error(params[name].grad, grad)
    return found


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_computes_what_the_layer_does(name: str, training: bool) -> None:
    make, settings = LAYERS[name]
    block = make(**settings).train(training)
    layer = MoE.from_pretrained_layer(block)
    assert layer.training == training
    errors = compare(layer, block)
    assert max(errors.values()) < TOLERANCE, errors
    if "nanomoe" in name:
        assert layer.routing is not None and not layer.routing.kept.all()  # some were dropped


@pytest.mark.parametrize("name", LAYERS)
def test_is_a_copy_and_writes_back(name: str) -> None:
    make, settings = LAYERS[name]
    block = make(**settings)
    layer = MoE.from_pretrained_layer(block)
    before = {n: t.clone() for n, t in block.state_dict().items()}
    torch.manual_seed(11)
    with torch.no_grad():
        for tensor in [*layer.parameters(), *layer.buffers()]:
            tensor.add_(torch.randn(tensor.shape), alpha=0.2)
    for key, tensor in block.state_dict().items():
        assert torch.equal(tensor, before[key]), key
    assert compare(layer, block)["y"] > 0.01
    layer.to_pretrained_layer(block)
    for key, tensor in block.state_dict().items():
        assert not torch.equal(tensor, before[key]), key
    errors = compare(layer, block)
    assert max(errors.values()) < TOLERANCE, errors


def test_keeps_dtype_and_what_is_frozen() -> None:
    block = deepseek_v3().to(torch.bfloat16)
    block.experts.requires_grad_(False)
    layer = MoE.from_pretrained_layer(block)
    assert layer.experts.down_proj.dtype == torch.bfloat16
    assert layer.router.e_score_correction_bias.dtype == torch.float32
    assert [n for n, p in layer.named_parameters() if not p.requires_grad] == [
        "experts.gate_up_proj",
        "experts.down_proj",
    ]


def test_unnoisy_nanomoe_has_no_noise_and_noisy_has() -> None:
    assert "router.noise_weight" not in MoE.from_pretrained_layer(nanomoe()).state_dict()
    block = nanomoe(use_noisy_top_k=True)
    layer = MoE.from_pretrained_layer(block)
    assert torch.equal(layer.router.noise_weight, block.router.w_noise.weight)
    assert layer.recipe == "nanomoe"
    x = torch.randn(2, 17, D)
    assert error(layer(x).detach(), block(x).detach()) < TOLERANCE  # in evaluation none is drawn


REFUSED: dict[str, tuple[Callable[..., Any], Mapping[str, Any], str]] = {
    "jitter": (mixtral, {"router_jitter_noise": 0.1}, "jitter_noise = 0.1"),
    "scoring": (deepseek_v2, {"scoring_func": "sigmoid"}, "config.scoring_func = 'sigmoid'"),
    "method": (deepseek_v2, {"topk_method": "noaux_tc"}, "gate.topk_method = 'noaux_tc'"),
    "v2 weights": (deepseek_v2, {"norm_topk_prob": True}, "config.norm_topk_prob = True"),
    "v3 weights": (deepseek_v3, {"norm_topk_prob": False}, "gate.norm_topk_prob = False"),
    "v3 scoring": (deepseek_v3, {"scoring_func": "softmax"}, "config.scoring_func = 'softmax'"),
    "activation": (olmoe, {"hidden_act": "quick_gelu"}, "experts.act_fn is QuickGELU"),
    "dropout": (nanomoe, {"dropout": 0.1}, "experts.dropout.p = 0.1"),
    "capacity": (nanomoe, {"min_capacity": 2}, "router.min_capacity = 2"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses_what_no_recipe_says(case: str) -> None:
    make, settings, said = REFUSED[case]
    with pytest.raises(moe.Error) as caught:
        MoE.from_pretrained_layer(make(**settings))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_refuses_unknown_layers_and_weights_it_cannot_read() -> None:
    with pytest.raises(moe.Error, match="Linear is not a layer .*OlmoeSparseMoeBlock, .*MOELayer"):
        MoE.from_pretrained_layer(torch.nn.Linear(2, 2))
    with pytest.raises(moe.Error, match=r"gate.weight is float16; .*float\(\)"):
        MoE.from_pretrained_layer(mixtral().half())
    with pytest.raises(moe.Error, match="gate.weight has no numbers"):
        MoE.from_pretrained_layer(mixtral().to("meta"))


def test_refuses_to_write_where_it_does_not_fit() -> None:
    layer = MoE.from_pretrained_layer(olmoe(norm_topk_prob=False))
    gated = MoE.from_pretrained_layer(qwen2())
    misfits: list[tuple[Any, Any, str]] = [
        (layer, mixtral(), "recipe = 'olmoe'"),
        (layer, olmoe(norm_topk_prob=True), "norm_topk_prob = False"),
        (layer, olmoe(norm_topk_prob=False, num_experts_per_tok=2), "top_k = 3"),
        (layer, olmoe(norm_topk_prob=False, hidden_act="relu"), "activation = 'silu'"),
        (layer, olmoe(norm_topk_prob=False, num_experts=6), r"\(8, 24\) in the MoE and \(6, 24\)"),
        (layer, olmoe(norm_topk_prob=False, intermediate_size=8), "experts.gate_up_proj is"),
        (MoE(D, F, E, K, "olmoe"), olmoe(), "norm_topk_prob = False, the MoE its own default"),
        (gated, qwen2(shared_expert_intermediate_size=8), "shared_experts.gate_up_proj is"),
        (MoE(D, F, E, K, "qwen2-moe", shared_experts=0, norm_topk_prob=False), qwen2(), "has not"),
    ]
    for ours, theirs, said in misfits:
        before = {n: t.clone() for n, t in theirs.state_dict().items()}
        with pytest.raises(moe.Error, match=said):
            ours.to_pretrained_layer(theirs)
        for key, tensor in theirs.state_dict().items():
            assert torch.equal(tensor, before[key]), key
