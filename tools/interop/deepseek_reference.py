"""The first DeepSeekMoE in PyTorch, f32, as the paper and the code that lies with its weights
define it (arXiv 2401.06066; huggingface deepseek-ai/deepseek-moe-16b-base, modeling_deepseek.py):
Llama's attention; a dense first layer or several; then softmax over the routed experts, the K
largest, not renormalised unless the config says so, plus shared experts that are one FFN. Written
for this project; names of tensors and keys are the checkpoint's."""

import json
import math
import os

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional


class RmsNorm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


class Ffn(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Gate(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config["n_routed_experts"], config["hidden_size"]))
        self.k, self.renormalise = config["num_experts_per_tok"], config["norm_topk_prob"]

    def forward(self, x):
        probs = functional.linear(x, self.weight).softmax(-1)
        weights, experts = probs.topk(self.k, -1)
        if self.renormalise and self.k > 1:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return probs, weights, experts


class Moe(nn.Module):
    def __init__(self, config):
        super().__init__()
        inner = config["moe_intermediate_size"]
        self.experts = nn.ModuleList(
            Ffn(config["hidden_size"], inner) for _ in range(config["n_routed_experts"])
        )
        self.gate = Gate(config)
        if config.get("n_shared_experts"):
            self.shared_experts = Ffn(config["hidden_size"], inner * config["n_shared_experts"])
        self.probs = None  # [N,E] of the last forward

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        self.probs, weights, experts = self.gate(flat)
        y = torch.zeros_like(flat)
        for e, expert in enumerate(self.experts):
            token, slot = (experts == e).nonzero(as_tuple=True)
            if len(token):
                y.index_add_(0, token, expert(flat[token]) * weights[token, slot, None])
        if hasattr(self, "shared_experts"):
            y = y + self.shared_experts(flat)
        return y.reshape(x.shape)


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        width, self.heads, self.groups = (
            config["hidden_size"],
            config["num_attention_heads"],
            config["num_key_value_heads"],
        )
        self.head = width // self.heads
        bias = config["attention_bias"]
        self.q_proj = nn.Linear(width, self.heads * self.head, bias=bias)
        self.k_proj = nn.Linear(width, self.groups * self.head, bias=bias)
        self.v_proj = nn.Linear(width, self.groups * self.head, bias=bias)
        self.o_proj = nn.Linear(self.heads * self.head, width, bias=bias)
        self.theta = config["rope_theta"]

    def rotate(self, x):  # [B,H,T,C]: the halves of a head are the two coordinates
        half = self.head // 2
        angles = torch.outer(
            torch.arange(x.shape[2], dtype=torch.float32),
            self.theta ** (-torch.arange(half, dtype=torch.float32) / half),
        )
        cos, sin = angles.cos(), angles.sin()
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def forward(self, x):
        batch, tokens, _ = x.shape
        split = lambda y, heads: y.view(batch, tokens, heads, self.head).transpose(1, 2)
        q, k = (
            self.rotate(split(self.q_proj(x), self.heads)),
            self.rotate(split(self.k_proj(x), self.groups)),
        )
        v = split(self.v_proj(x), self.groups)
        k, v = (y.repeat_interleave(self.heads // self.groups, 1) for y in (k, v))
        scores = q @ k.transpose(2, 3) / math.sqrt(self.head)
        scores = scores.masked_fill(
            torch.ones(tokens, tokens, dtype=torch.bool).triu(1), float("-inf")
        )
        return self.o_proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, tokens, -1))


class Layer(nn.Module):
    def __init__(self, config, index):
        super().__init__()
        width, eps = config["hidden_size"], config["rms_norm_eps"]
        routes = index >= config["first_k_dense_replace"] and index % config["moe_layer_freq"] == 0
        self.self_attn = Attention(config)
        self.mlp = Moe(config) if routes else Ffn(width, config["intermediate_size"])
        self.input_layernorm, self.post_attention_layernorm = (
            RmsNorm(width, eps),
            RmsNorm(width, eps),
        )

    def forward(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed_tokens = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.layers = nn.ModuleList(Layer(config, i) for i in range(config["num_hidden_layers"]))
        self.norm = RmsNorm(config["hidden_size"], config["rms_norm_eps"])


class DeepSeekMoe(nn.Module):
    """forward(ids [B,T]) gives logits [B,T,V]; router_probs() what the MoE layers' routers said in
    it, {layer: [B*T,E]}."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.model = Body(config)
        self.lm_head = nn.Linear(config["hidden_size"], config["vocab_size"], bias=False)

    def forward(self, ids):
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x)
        return self.lm_head(self.model.norm(x))

    def router_probs(self):
        return {
            i: layer.mlp.probs
            for i, layer in enumerate(self.model.layers)
            if isinstance(layer.mlp, Moe)
        }


def load(folder):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    model = DeepSeekMoe(config)
    model.load_state_dict(
        {
            name: tensor.float()
            for name, tensor in load_file(os.path.join(folder, "model.safetensors")).items()
        }
    )
    return model.eval()
