"""nanoMoE's model in PyTorch, written from its description (docs/recipes.md: nanomoe), and the
golden runs made with it.

Facts kept from github.com/wolfecameron/nanoMoE: the state-dict names, pre-norm blocks, layer i is
MoE when i mod stride = 0, softmax over the chosen logits only, choice-major capacity over the whole
micro-batch, no renormalisation after a drop, balance over the top-k-masked probabilities, z-loss on
the noisy logits, both losses summed over the MoE layers. Different on purpose: experts gather their
rows instead of dense dispatch tensors, the noise is an argument, and capacity=None routes without
dropping (what `moe score` does).
"""

import math
from dataclasses import asdict, dataclass

import torch
from torch import nn
from torch.nn import functional as F

import common
import philox


@dataclass
class NanoMoEConfig:
    vocab_size: int = 64
    block_size: int = 16
    n_layer: int = 4
    n_head: int = 4
    n_embd: int = 16
    bias: bool = True
    n_exp: int = 8
    top_k: int = 2
    stride: int = 2
    train_capacity: float = 1.25
    min_capacity: int = 4
    use_noisy_top_k: bool = False


def capacity_of(tokens, top_k, factor, experts, minimum):
    """floor(k f N / E), made even upwards, at least `minimum`."""
    capacity = math.floor(top_k * factor * tokens / experts)
    return max(capacity + capacity % 2, minimum)


class LayerNorm(nn.Module):
    def __init__(self, width, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x):
        return F.layer_norm(x, (x.shape[-1],), self.weight, self.bias, 1e-5)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads = c.n_head
        self.c_attn = nn.Linear(c.n_embd, 3 * c.n_embd, bias=c.bias)
        self.c_proj = nn.Linear(c.n_embd, c.n_embd, bias=c.bias)

    def forward(self, x):
        batch, time, width = x.shape
        q, k, v = (
            part.view(batch, time, self.heads, -1).transpose(1, 2)
            for part in self.c_attn(x).split(width, dim=-1)
        )
        scores = q @ k.transpose(-1, -2) / math.sqrt(width // self.heads)
        future = torch.ones(time, time, dtype=torch.bool).triu(1)
        mixed = scores.masked_fill(future, -math.inf).softmax(-1) @ v
        return self.c_proj(mixed.transpose(1, 2).reshape(batch, time, width))


class DenseFFN(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c_fc = nn.Linear(c.n_embd, 4 * c.n_embd, bias=c.bias)
        self.c_proj = nn.Linear(4 * c.n_embd, c.n_embd, bias=c.bias)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x)))


class Router(nn.Module):
    """Chooses for x [N,D]; self.last holds what the losses and the golden read of the latest
    forward."""

    def __init__(self, c):
        super().__init__()
        self.c = c
        self.w_g = nn.Linear(c.n_embd, c.n_exp, bias=False)
        self.w_noise = nn.Linear(c.n_embd, c.n_exp, bias=False) if c.use_noisy_top_k else None

    def forward(self, x, capacity, noise):
        tokens, experts, k = x.shape[0], self.c.n_exp, self.c.top_k
        logits = self.w_g(x)
        if self.w_noise is not None and noise is not None:
            logits = logits + F.softplus(self.w_noise(x)) * noise
        chosen_logits, chosen = logits.topk(k, dim=-1)  # [N,k]
        weights = chosen_logits.softmax(-1)  # [N,k]
        hits = F.one_hot(chosen, experts)  # [N,k,E]
        # Rank of every pair at its expert: all first choices in token order, then all second
        # choices.
        by_choice = hits.transpose(0, 1).reshape(k * tokens, experts)
        ranks = ((by_choice.cumsum(0) - 1) * by_choice).sum(-1).view(k, tokens).t()  # [N,k]
        kept = torch.ones_like(ranks, dtype=torch.bool) if capacity is None else ranks < capacity
        masked = torch.zeros_like(logits).scatter(
            -1, chosen, weights
        )  # [N,E], zero outside the choice
        load = hits.sum(1).to(logits.dtype).mean(0)  # [E], sums to k; a constant
        self.last = {
            "logits": logits,
            "chosen": chosen,
            "kept": kept,
            "weights": weights,
            "counts": hits.sum((0, 1)),
            "balance": experts * (masked.mean(0) * load).sum(),
            "z": logits.logsumexp(-1).square().mean(),
        }
        return chosen, weights, kept


class Experts(nn.Module):
    """The bank; c_fc is [E,D,4D] and c_proj [E,4D,D], input dimension first, unlike nn.Linear's."""

    def __init__(self, c):
        super().__init__()
        self.c_fc = nn.Parameter(torch.empty(c.n_exp, c.n_embd, 4 * c.n_embd))
        self.c_proj = nn.Parameter(torch.empty(c.n_exp, 4 * c.n_embd, c.n_embd))
        self.fc_bias = nn.Parameter(torch.zeros(c.n_exp, 1, 4 * c.n_embd)) if c.bias else None
        self.proj_bias = nn.Parameter(torch.zeros(c.n_exp, 1, c.n_embd)) if c.bias else None

    def forward(self, e, x):
        hidden = x @ self.c_fc[e]
        if self.fc_bias is not None:
            hidden = hidden + self.fc_bias[e]
        out = F.gelu(hidden) @ self.c_proj[e]
        return out if self.proj_bias is None else out + self.proj_bias[e]


class MoE(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.router = Router(c)
        self.experts = Experts(c)

    def forward(self, x, dropless, noise):
        flat = x.reshape(-1, x.shape[-1])
        c = self.c
        capacity = (
            None
            if dropless
            else capacity_of(flat.shape[0], c.top_k, c.train_capacity, c.n_exp, c.min_capacity)
        )
        chosen, weights, kept = self.router(flat, capacity, noise)
        y = torch.zeros_like(flat)
        for e in range(c.n_exp):
            token, choice = ((chosen == e) & kept).nonzero(as_tuple=True)
            y = y.index_add(0, token, weights[token, choice, None] * self.experts(e, flat[token]))
        return y.view_as(x)


class Block(nn.Module):
    def __init__(self, c, moe):
        super().__init__()
        self.ln_1 = LayerNorm(c.n_embd, c.bias)
        self.attn = Attention(c)
        self.ln_2 = LayerNorm(c.n_embd, c.bias)
        self.mlp = MoE(c) if moe else DenseFFN(c)

    def forward(self, x, dropless, noise):
        x = x + self.attn(self.ln_1(x))
        u = self.ln_2(x)
        return x + (self.mlp(u, dropless, noise) if isinstance(self.mlp, MoE) else self.mlp(u))


class NanoMoE(nn.Module):
    """The language model; the head is the embedding (state dicts list it under both names)."""

    def __init__(self, c):
        super().__init__()
        self.c = c
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(c.vocab_size, c.n_embd),
                "wpe": nn.Embedding(c.block_size, c.n_embd),
                "h": nn.ModuleList(
                    [Block(c, c.n_exp > 1 and i % c.stride == 0) for i in range(c.n_layer)]
                ),
                "ln_f": LayerNorm(c.n_embd, c.bias),
            }
        )
        self.lm_head = nn.Linear(c.n_embd, c.vocab_size, bias=False)
        self.lm_head.weight = self.transformer["wte"].weight

    def moe_layers(self):
        return [
            (i, block.mlp)
            for i, block in enumerate(self.transformer["h"])
            if isinstance(block.mlp, MoE)
        ]

    def forward(self, ids, dropless=False, noise=None):
        """ids [B,T]; noise [MoE layers,N,E] or None. Returns logits [B,T,V]."""
        t = self.transformer
        x = t["wte"](ids) + t["wpe"](torch.arange(ids.shape[1]))
        at = 0
        for block in t["h"]:
            is_moe = isinstance(block.mlp, MoE)
            x = block(x, dropless, noise[at] if noise is not None and is_moe else None)
            at += is_moe
        return self.lm_head(t["ln_f"](x))


def draw_weights(model, seed):
    """Weights wide enough that experts differ and margins are clear; no parameter stays at 0 or 1,
    so that each is tested."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if ".ln_" in name and name.endswith("weight"):
                p.copy_(1.0 + 0.1 * noise)
            elif name.endswith("bias"):
                p.copy_(0.1 * noise)
            elif "w_g" in name:
                p.copy_(0.4 * noise)
            elif "w_noise" in name:
                p.copy_(0.2 * noise)
            else:
                p.copy_(0.25 * noise)


def _losses(model, balance_coef, z_coef, noise):
    """loss = CE + a sum_l B_l + b sum_l Z_l, as nanoMoE adds them."""

    def evaluate(step, ids, targets):
        logits = model(ids, noise=None if noise is None else noise[step].double())
        last = [(i, moe.router.last) for i, moe in model.moe_layers()]
        ce = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        balance = sum(r["balance"] for _, r in last)
        z = sum(r["z"] for _, r in last)
        routing = [
            {
                "layer": i,
                "experts": r["chosen"].tolist(),
                "kept": r["kept"].int().tolist(),
                "counts": r["counts"].tolist(),
            }
            for i, r in last
        ]
        return {
            "loss": ce + balance_coef * balance + z_coef * z,
            "ce": ce,
            "balance": balance,
            "z": z,
            "logits": logits,
            "balance_per_layer": [r["balance"] for _, r in last],
            "z_per_layer": [r["z"] for _, r in last],
            "margin": min(common.choice_margin(r["logits"], model.c.top_k) for _, r in last),
            "routing": routing,
        }

    return evaluate


def _folder_config(c):
    """The model's config in the key names of a model folder; "nanomoe" repeats it in nanoMoE's own
    names."""
    return {
        "model_type": "moe_cpp",
        "recipe": "nanomoe",
        "vocab_size": c.vocab_size,
        "hidden_size": c.n_embd,
        "num_hidden_layers": c.n_layer,
        "num_attention_heads": c.n_head,
        "num_key_value_heads": c.n_head,
        "intermediate_size": 4 * c.n_embd,
        "moe_intermediate_size": 4 * c.n_embd,
        "max_position_embeddings": c.block_size,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "attention_bias": c.bias,
        "mlp_bias": c.bias,
        "norm_bias": c.bias,
        "num_experts": c.n_exp,
        "num_experts_per_tok": c.top_k,
        "moe_every": c.stride,
        "capacity_factor": c.train_capacity,
        "min_capacity": c.min_capacity,
        "noisy_top_k": c.use_noisy_top_k,
        "nanomoe": asdict(c),
    }


def _engine_noise(seed, steps, layers, tokens, experts):
    """[steps, MoE layers, N, E]: what the engine draws under the key from_seed(seed).fold(step) for
    the router of each layer (src/moe/pass.h, Site)."""
    router_noise = 2
    out = torch.empty(steps, len(layers), tokens, experts)
    for step in range(steps):
        for at, layer in enumerate(layers):
            key = philox.fold(
                philox.fold(philox.fold(philox.from_seed(seed), step), layer), router_noise
            )
            out[step, at] = torch.tensor(
                [philox.normal(key, i) for i in range(tokens * experts)]
            ).view(tokens, experts)
    return out


def make(folder, name, config, first_seed, batch=4, steps=10):
    hyper = {
        "steps": steps,
        "batch": batch,
        "context": config.block_size,
        "lr": 2e-3,
        "beta1": 0.9,
        "beta2": 0.95,
        "eps": 1e-8,
        "weight_decay": 0.1,
        "decay": "matrices",
        "clip": 1.0,
        "balance_coef": 0.01,
        "z_coef": 0.001,
        "balance_form": "nanomoe",
        "layer_reduce": "sum",
    }

    def attempt(seed):
        model = NanoMoE(config)
        draw_weights(model, seed)
        model.double()
        weights = {n: p.detach().clone() for n, p in model.named_parameters()}
        ids, targets = common.draw_tokens(seed, steps, batch, config.block_size, config.vocab_size)
        noise = None
        if config.use_noisy_top_k:
            noise = _engine_noise(
                seed,
                steps,
                [i for i in range(config.n_layer) if i % config.stride == 0],
                batch * config.block_size,
                config.n_exp,
            )
        records, first = common.run_steps(
            model,
            hyper,
            ids,
            targets,
            _losses(model, hyper["balance_coef"], hyper["z_coef"], noise),
            # nanoGPT's groups; the bank's biases are 3-D and still biases.
            lambda n, p: p.dim() >= 2 and not n.endswith("bias"),
        )
        common.assert_useful(first["grads"], first["routing"])
        if records[0]["dropped"] == 0:
            raise common.MarginTooSmall("no pair is dropped at step 0")
        capacity = capacity_of(
            batch * config.block_size,
            config.top_k,
            config.train_capacity,
            config.n_exp,
            config.min_capacity,
        )
        assert all(
            sum(row[j] for row in layer["kept"] for j in range(config.top_k))
            == sum(min(n, capacity) for n in layer["counts"])
            for layer in first["routing"]
        ), "kept pairs are not those under capacity"
        tensors = dict(weights, ids=ids, targets=targets, logits=first["logits"])
        tensors.update({"grad." + n: g for n, g in first["grads"].items()})
        common.write(
            folder,
            name,
            tensors,
            {
                "golden": name,
                "tensors": name + ".safetensors",
                "recipe": "nanomoe",
                "made_with": {"torch": torch.__version__},
                "seed": seed,
                "config": _folder_config(config),
                "hyper": dict(hyper, capacity=capacity),
                "steps": records,
                "routing": first["routing"],
                "final_norm": {n: common.number(p.norm()) for n, p in model.named_parameters()},
            },
        )

    common.until_drawn(attempt, first_seed)


def make_all(folder):
    make(folder, "nanomoe_bias", NanoMoEConfig(train_capacity=0.85), first_seed=1)
    make(
        folder,
        "nanomoe_nobias",
        NanoMoEConfig(bias=False, n_head=2, n_exp=6, train_capacity=1.0),
        first_seed=1001,
    )
    make(
        folder,
        "nanomoe_noise",
        NanoMoEConfig(
            vocab_size=32, n_layer=1, n_exp=4, n_head=2, train_capacity=0.9, use_noisy_top_k=True
        ),
        first_seed=2001,
    )
