"""Golden runs of transformers' OlmoeForCausalLM: its forward and backward, with the two auxiliary
losses in OLMoE's own (MegaBlocks') form.

transformers adds a balance loss over the logits of all layers concatenated, uniform = k; OLMoE was
trained with the mean over layers, uniform = 1, and a z-loss that transformers lacks. So the model
is asked for its router logits and the losses are computed here.
"""

import os

import torch
from safetensors.torch import load_file
from torch.nn import functional as F
import transformers
from transformers import OlmoeConfig, OlmoeForCausalLM

import common


def config_of(kv_heads, experts):
    # pad_token_id must be null: transformers' embedding gives the padding row no gradient, and its
    # default is row 1.
    return OlmoeConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        num_experts=experts,
        num_experts_per_tok=2,
        max_position_embeddings=16,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
        norm_topk_prob=False,
        tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )


def on_disk(named, config):
    """In-memory names and fused experts to checkpoint names: gate_up_proj [E,2F,D] splits into one
    gate_proj and up_proj an expert."""
    out = {}
    for name, value in named.items():
        if name.endswith("experts.gate_up_proj"):
            for e in range(config.num_experts):
                gate, up = value[e].split(config.intermediate_size, dim=0)
                out[name.replace("gate_up_proj", f"{e}.gate_proj.weight")] = gate
                out[name.replace("gate_up_proj", f"{e}.up_proj.weight")] = up
        elif name.endswith("experts.down_proj"):
            for e in range(config.num_experts):
                out[name.replace("down_proj", f"{e}.down_proj.weight")] = value[e]
        else:
            out[name] = value
    return out


def assert_names(model, weights):
    """What is stored must be, name for name and value for value, what save_pretrained writes."""
    with common.temporary_folder() as folder:
        model.save_pretrained(folder)
        saved = load_file(os.path.join(folder, "model.safetensors"))
    assert set(saved) == set(weights), (
        f"checkpoint names differ: {sorted(set(saved) ^ set(weights))[:6]}"
    )
    assert all(torch.equal(saved[n].double(), w.double()) for n, w in weights.items()), (
        "checkpoint values differ"
    )


def draw_weights(model, seed):
    """Wide enough that experts differ and margins are clear; the norms' weights leave 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if "norm" in name:
                p.copy_(1.0 + 0.1 * noise)
            else:
                p.copy_((0.35 if "gate.weight" in name else 0.2) * noise)


def router_losses(logits, k):
    """One layer's balance E/(N k) sum_e count_e mean_t p[t,e] (1 when uniform) and z mean_t lse^2;
    logits [N,E]."""
    tokens, experts = logits.shape
    probabilities = logits.softmax(-1)
    chosen = probabilities.topk(k, dim=-1).indices
    counts = torch.bincount(chosen.flatten(), minlength=experts)
    balance = experts / (tokens * k) * (counts.to(logits.dtype) * probabilities.mean(0)).sum()
    return balance, logits.logsumexp(-1).square().mean(), chosen, counts


def _losses(model, balance_coef, z_coef):
    k = model.config.num_experts_per_tok

    def evaluate(step, ids, targets):
        out = model(ids, output_router_logits=True, use_cache=False)
        ce = F.cross_entropy(out.logits.flatten(0, 1), targets.flatten())
        layers = [router_losses(logits, k) for logits in out.router_logits]
        balance = sum(layer[0] for layer in layers) / len(layers)
        z = sum(layer[1] for layer in layers) / len(layers)
        routing = [
            {
                "layer": i,
                "experts": chosen.tolist(),
                "kept": torch.ones_like(chosen).tolist(),
                "counts": counts.tolist(),
            }
            for i, (_, _, chosen, counts) in enumerate(layers)
        ]
        return {
            "loss": ce + balance_coef * balance + z_coef * z,
            "ce": ce,
            "balance": balance,
            "z": z,
            "logits": out.logits,
            "balance_per_layer": [layer[0] for layer in layers],
            "z_per_layer": [layer[1] for layer in layers],
            "margin": min(common.choice_margin(logits, k) for logits in out.router_logits),
            "routing": routing,
        }

    return evaluate


def make(folder, name, config, first_seed, batch=4, context=16, steps=10):
    hyper = {
        "steps": steps,
        "batch": batch,
        "context": context,
        "lr": 2e-3,
        "beta1": 0.9,
        "beta2": 0.95,
        "eps": 1e-8,
        "weight_decay": 0.1,
        "decay": "all",
        "clip": 1.0,
        "balance_coef": 0.01,
        "z_coef": 0.001,
        "balance_form": "canonical",
        "layer_reduce": "mean",
    }

    def attempt(seed):
        # Two paths that take any dtype; the fused ones give the same numbers in f32 only.
        config._attn_implementation, config._experts_implementation = "sdpa", "eager"
        model = OlmoeForCausalLM(config)
        draw_weights(model, seed)
        model.double()
        weights = {
            n: w.detach().clone()
            for n, w in on_disk(dict(model.named_parameters()), config).items()
        }
        ids, targets = common.draw_tokens(seed, steps, batch, context, config.vocab_size)
        initial = {n: p.detach().clone() for n, p in model.state_dict().items()}
        records, first = common.run_steps(
            model,
            hyper,
            ids,
            targets,
            _losses(model, hyper["balance_coef"], hyper["z_coef"]),
            lambda n, p: True,
        )
        grads = on_disk(first["grads"], config)
        # A token id that step 0 never reads leaves its embedding row without gradient, not the
        # tensor.
        common.assert_useful(grads, first["routing"])
        final = {
            n: common.number(p.norm())
            for n, p in on_disk(
                {n: p.detach() for n, p in model.named_parameters()}, config
            ).items()
        }
        model.load_state_dict(initial)
        assert_names(model, weights)
        tensors = dict(weights, ids=ids, targets=targets, logits=first["logits"])
        tensors.update({"grad." + n: g for n, g in grads.items()})
        folder_config = {
            k: v
            for k, v in config.to_dict().items()
            if k not in ("transformers_version", "dtype", "_experts_implementation")
        }
        folder_config["architectures"] = ["OlmoeForCausalLM"]
        common.write(
            folder,
            name,
            tensors,
            {
                "golden": name,
                "tensors": name + ".safetensors",
                "recipe": "olmoe",
                "made_with": {"torch": torch.__version__, "transformers": transformers.__version__},
                "seed": seed,
                "config": dict(sorted(folder_config.items())),
                "hyper": hyper,
                "steps": records,
                "routing": first["routing"],
                "final_norm": final,
            },
        )

    common.until_drawn(attempt, first_seed)


def make_all(folder):
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    make(folder, "olmoe_mha", config_of(kv_heads=4, experts=6), first_seed=1)
    make(folder, "olmoe_gqa", config_of(kv_heads=2, experts=8), first_seed=1001)
