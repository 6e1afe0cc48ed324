"""Models of transformers, tiny and random, whose experts moe_cpp computes, against transformers'
own implementations: logits, gradients, generation, and what is refused."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
transformers: Any = pytest.importorskip("transformers")

import moe_cpp.transformers  # noqa: E402

_SIZES: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "intermediate_size": 48,
    "num_experts_per_tok": 2,
}
_LATENT: dict[str, Any] = {
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "first_k_dense_replace": 0,
    "n_group": 2,
    "topk_group": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "moe_intermediate_size": 48,
}
_GROUPED: dict[str, Any] = {
    "n_routed_experts": 8,
    "moe_intermediate_size": 48,
    "first_k_dense_replace": 0,
    "n_group": 1,
    "topk_group": 1,
    "head_dim": 16,
}
_MODELS: dict[str, dict[str, Any]] = {
    "Mixtral": {"num_local_experts": 8},
    "Olmoe": {"num_experts": 8},
    "Qwen2Moe": {
        "num_experts": 8,
        "moe_intermediate_size": 48,
        "shared_expert_intermediate_size": 32,
        "decoder_sparse_step": 1,
    },
    "Qwen3Moe": {"num_experts": 8, "moe_intermediate_size": 48, "head_dim": 16},
    "DeepseekV2": _LATENT | {"q_lora_rank": None, "topk_method": "group_limited_greedy"},
    "DeepseekV3": _LATENT | {"q_lora_rank": 24},
    "Glm4Moe": _GROUPED,
    "Dots1": _GROUPED | {"n_shared_experts": 1},
    # Its banks lie transposed, gate and up in turns, with biases and a gate of its own.
    "GptOss": {"num_local_experts": 8, "head_dim": 16},
    "GraniteMoe": {"num_local_experts": 8},
    "Phimoe": {"num_local_experts": 8},
    "Ernie4_5_Moe": {
        "moe_num_experts": 8,
        "moe_k": 2,
        "moe_intermediate_size": 48,
        "moe_num_shared_experts": 1,
        "moe_layer_start_index": 0,
    },
    # Not gated, with an activation of its own.
    "NemotronH": {
        "layers_block_type": ["attention", "moe"],
        "n_routed_experts": 8,
        "moe_intermediate_size": 48,
        "moe_shared_expert_intermediate_size": 48,
        "n_group": 1,
        "topk_group": 1,
        "head_dim": 16,
    },
}
_IDS = torch.randint(3, 100, (2, 33), generator=torch.Generator().manual_seed(1))


@pytest.fixture(autouse=True)
def quiet() -> None:
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()


def model_of(name: str) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, name + "Config")(**(_SIZES | _MODELS[name]))
    model = transformers.AutoModelForCausalLM.from_config(config)
    for param in model.parameters():
        if param.dim() > 1:
            torch.nn.init.normal_(param, std=0.08)
    return model


def results(model: Any, implementation: str) -> tuple[Any, dict[str, Any]]:
    model.set_experts_implementation(implementation)
    model.zero_grad()
    torch.manual_seed(1)
    out = model(input_ids=_IDS, labels=_IDS)
    out.loss.backward()
    grads = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return out.logits.detach().clone(), grads


def logits_of(model: Any, implementation: str) -> Any:
    model.set_experts_implementation(implementation)
    with torch.no_grad():
        return model(input_ids=_IDS).logits


def worst(got: Any, want: Any) -> float:
    return float((got - want).detach().abs().max() / want.abs().max().clamp(min=1e-6))


@pytest.mark.parametrize("name", _MODELS)
def test_logits_and_gradients_are_the_models_own(name: str) -> None:
    model = model_of(name).train()
    logits, grads = results(model, "eager")
    ours, our_grads = results(model, "moe_cpp")
    assert worst(ours, logits) < 1e-5
    assert our_grads.keys() == grads.keys()
    assert any("experts" in n for n in grads)
    for parameter, grad in grads.items():
        assert worst(our_grads[parameter], grad) < 1e-5, parameter


@pytest.mark.parametrize("name", ["Olmoe", "GptOss", "NemotronH"])
def test_bf16_is_as_near_to_f32_as_the_models_own(name: str) -> None:
    """The experts alone, whose routing cannot turn on a rounding."""
    model = model_of(name)
    experts = next(m for m in model.modules() if type(m).__name__.endswith("Experts"))
    experts.config._experts_implementation_internal = "eager"
    x = torch.randn(40, 64)
    weights, chosen = torch.rand(40, 8).topk(2)
    precise = experts(x, chosen, weights).detach()
    half = copy.deepcopy(experts).to(torch.bfloat16)
    half.config = copy.deepcopy(experts.config)
    errors = {}
    for implementation in ("eager", "moe_cpp"):
        half.config._experts_implementation_internal = implementation
        y = half(x.bfloat16(), chosen, weights.bfloat16())
        assert y.dtype == torch.bfloat16
        errors[implementation] = worst(y.float(), precise)
    assert errors["moe_cpp"] < 1.5 * errors["eager"] + 1e-3


def test_changed_weights_are_seen() -> None:
    model = model_of("Olmoe").eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    for _ in range(3):
        results(model, "moe_cpp")
        optimizer.step()
    logits, _ = results(model, "eager")
    assert worst(results(model, "moe_cpp")[0], logits) < 1e-5
    with torch.no_grad():
        for param in model.parameters():
            param.mul_(0.9)
    logits, _ = results(model, "eager")
    assert worst(results(model, "moe_cpp")[0], logits) < 1e-5
    model.load_state_dict(model_of("Olmoe").state_dict())
    logits, _ = results(model, "eager")
    assert worst(results(model, "moe_cpp")[0], logits) < 1e-5


@pytest.mark.parametrize("name", ["Olmoe", "GptOss"])
def test_fused_optimizers_are_seen_wherever_a_forward_stands(name: str) -> None:
    """They move no version counter: an evaluation between steps, and one ahead of a step."""
    model = model_of(name).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    for step in range(4):
        results(model, "moe_cpp")
        if step % 2:
            logits_of(model, "moe_cpp")
        optimizer.step()
        assert worst(logits_of(model, "moe_cpp"), logits_of(model, "eager")) < 1e-5


@pytest.mark.parametrize("name", ["Olmoe", "GptOss"])
def test_weights_loaded_in_inference_mode_are_seen(name: str) -> None:
    with torch.inference_mode():
        model = model_of(name).eval()
        other = {n: t * 0.9 for n, t in model.state_dict().items()}
        before = logits_of(model, "moe_cpp")
        model.load_state_dict(other)
        after = logits_of(model, "moe_cpp")
        assert worst(after, logits_of(model, "eager")) < 1e-5
        assert worst(after, before) > 1e-3


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("name", ["Olmoe", "Qwen3Moe", "GptOss"])
def test_compiled_models_compute_the_same(name: str, warm: bool) -> None:
    model = model_of(name).eval()
    torch.compiler.reset()
    logits = logits_of(model, "eager")
    if warm:
        logits_of(model, "moe_cpp")
    model.set_experts_implementation("moe_cpp")
    compiled = torch.compile(model, backend="aot_eager")
    with torch.no_grad():
        assert worst(compiled(input_ids=_IDS).logits, logits) < 1e-5


@pytest.mark.parametrize("name", ["Qwen3Moe", "GptOss"])
def test_generation_is_the_models_own(name: str) -> None:
    model = model_of(name).eval()
    texts = []
    for implementation in ("eager", "moe_cpp"):
        model.set_experts_implementation(implementation)
        texts.append(model.generate(_IDS[:1, :9], max_new_tokens=12, do_sample=False))
    assert torch.equal(*texts)


@pytest.mark.parametrize("name", ["Olmoe", "DeepseekV3", "GptOss"])
def test_accelerated_models_say_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(name).eval()
    want = logits_of(model, "eager")
    text = model.generate(_IDS[:1, :9], max_new_tokens=12, do_sample=False)
    monkeypatch.setattr("moe_cpp.transformers._FEWEST_NUMBERS", 0)
    linears = sum(type(m) is torch.nn.Linear for m in model.modules())
    assert moe_cpp.transformers.accelerate(model) == linears > 8
    assert model.config._experts_implementation == "moe_cpp"
    for _ in range(2):
        with torch.no_grad():
            assert worst(model(input_ids=_IDS).logits, want) < 1e-5
    assert torch.equal(model.generate(_IDS[:1, :9], max_new_tokens=12, do_sample=False), text)
    moe_cpp.transformers.restore(model)
    assert torch.equal(logits_of(model, "eager"), want)


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on texts long enough, and on a processor that multiplies no bf16."""
    monkeypatch.setattr("moe_cpp.torch._norm._FEWEST_NUMBERS", 0)
    monkeypatch.setattr("moe_cpp.torch._linear._emulates_bf16", lambda: True)


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("name", _MODELS)
def test_accelerated_models_train_the_same(name: str) -> None:
    model = model_of(name).train()
    logits, grads = results(model, "eager")
    attention = model.config._attn_implementation
    moe_cpp.transformers.accelerate(model)
    norms = [m for m in model.modules() if "RMSNorm" in type(m).__name__]
    assert not any("Gated" not in type(m).__name__ for m in norms)
    assert model.config._attn_implementation == ("moe_cpp" if attention == "sdpa" else attention)
    ours, our_grads = results(model, "moe_cpp")
    assert worst(ours, logits) < 1e-5
    assert our_grads.keys() == grads.keys()
    for parameter, grad in grads.items():
        assert worst(our_grads[parameter], grad) < 2e-5, parameter
    moe_cpp.transformers.restore(model)
    assert model.config._attn_implementation == attention
    again, _ = results(model, "eager")
    assert torch.equal(again, logits)


@pytest.mark.usefixtures("everywhere")
def test_padded_texts_and_autocast_are_trained_as_they_are() -> None:
    model = model_of("Olmoe").train()
    mask = torch.ones_like(_IDS)
    mask[1, :5] = 0  # at the left

    def loss_and_grads() -> tuple[Any, Any]:
        model.zero_grad()
        loss = model(input_ids=_IDS, attention_mask=mask, labels=_IDS).loss
        loss.backward()
        return loss.detach(), model.model.layers[0].self_attn.q_proj.weight.grad.clone()

    want, want_grad = loss_and_grads()
    moe_cpp.transformers.accelerate(model)
    got, got_grad = loss_and_grads()
    assert worst(got, want) < 1e-6 and worst(got_grad, want_grad) < 1e-4
    with torch.autocast("cpu", torch.bfloat16):
        rough, rough_grad = loss_and_grads()
    assert 0 < worst(rough, want) < 1e-2 and worst(rough_grad, want_grad) < 0.2


@pytest.mark.usefixtures("everywhere")
def test_accelerated_models_are_compiled() -> None:
    model = dense()
    torch.compiler.reset()
    want = model(input_ids=_IDS).logits.detach()
    moe_cpp.transformers.accelerate(model)
    compiled = torch.compile(model, backend="aot_eager")
    assert worst(compiled(input_ids=_IDS).logits, want) < 1e-5


def dense() -> Any:
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**_SIZES))


def test_a_dense_model_is_accelerated_too() -> None:
    model = dense().eval()
    with torch.no_grad():
        want = model(input_ids=_IDS).logits
        assert moe_cpp.transformers.accelerate(model) == 2 * 7 + 1
        assert worst(model(input_ids=_IDS).logits, want) < 1e-5


def test_autocast_computes_in_bf16_and_trains_f32_weights() -> None:
    model = model_of("Olmoe").train()
    _, grads = results(model, "eager")
    with torch.autocast("cpu", torch.bfloat16):
        _, ours = results(model, "moe_cpp")
    name = "model.layers.0.mlp.experts.gate_up_proj"
    assert ours[name].dtype == torch.float32
    assert 1e-4 < worst(ours[name], grads[name]) < 0.1


def test_gradient_checkpointing() -> None:
    model = model_of("Olmoe").train()
    logits, grads = results(model, "moe_cpp")
    model.activation_checkpointing_enable()
    again, grads_again = results(model, "moe_cpp")
    assert torch.equal(again, logits)
    for name, grad in grads.items():
        assert worst(grads_again[name], grad) < 1e-6, name


def test_frozen_experts_and_copies() -> None:
    model = model_of("Olmoe").train()
    for name, param in model.named_parameters():
        param.requires_grad_("experts" not in name)
    _, grads = results(model, "eager")
    _, ours = results(copy.deepcopy(model), "moe_cpp")
    assert grads.keys() == ours.keys() and not any("experts" in n for n in ours)
    for name, grad in grads.items():
        assert worst(ours[name], grad) < 1e-5, name


def test_what_is_not_computed_is_refused() -> None:
    model = model_of("Olmoe").eval().half()
    model.set_experts_implementation("moe_cpp")
    with pytest.raises(moe_cpp.Error, match="float16; moe_cpp computes in float32 and bfloat16"):
        model(input_ids=_IDS)


def test_the_programs_of_the_page_run() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "pytorch.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 3
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", "\n".join(blocks)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
