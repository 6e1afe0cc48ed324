"""An OLMoE model folder in NumPy, f64, as transformers computes it (modeling_olmoe): what the
engine's logits and routing are held against.

The routing is `moe_cpp.route` on the router's logits, so a model's routing and the recipe worked
out by hand must be one thing.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import moe_cpp as moe

Floats = NDArray[np.float64]


def read_tensors(path: Path) -> dict[str, Floats]:
    """safetensors: the header's length as u64, the header as JSON, then the tensors, here all f32."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    tensors: dict[str, Floats] = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        assert entry["dtype"] == "F32"
        begin, end = entry["data_offsets"]
        tensors[name] = (
            np.frombuffer(content[8 + size + begin : 8 + size + end], "<f4")
            .astype(np.float64)
            .reshape(entry["shape"])
        )
    return tensors


def softmax(z: Floats) -> Floats:
    e = np.exp(z - z.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


class NumpyOlmoe:
    def __init__(self, folder: Path) -> None:
        self.config = json.loads((folder / "config.json").read_text())
        assert self.config["model_type"] == "olmoe"
        self.tensors = read_tensors(folder / "model.safetensors")

    def forward(self, ids: list[int]) -> tuple[Floats, NDArray[np.int32], NDArray[np.float32]]:
        """Logits [N, V], experts and weights [L, N, K]."""
        h = self.tensors["model.embed_tokens.weight"][ids]
        experts, weights = [], []
        for layer in range(self.config["num_hidden_layers"]):
            at = f"model.layers.{layer}."
            h = h + self._attention(at + "self_attn.", self._norm(h, at + "input_layernorm"))
            x = self._norm(h, at + "post_attention_layernorm")
            router = (x @ self.tensors[at + "mlp.gate.weight"].T).astype(np.float32)
            routed = moe.route(
                router,
                "olmoe",
                self.config["num_experts_per_tok"],
                eval="dropless",
                norm_topk_prob=self.config["norm_topk_prob"],
            )
            y = np.zeros_like(h)
            for token, choice in np.ndindex(routed.experts.shape):
                y[token] += routed.weights[token, choice] * self._expert(
                    f"{at}mlp.experts.{routed.experts[token, choice]}.", x[token]
                )
            h = h + y
            experts.append(routed.experts)
            weights.append(routed.weights)
        return (
            self._norm(h, "model.norm") @ self.tensors["lm_head.weight"].T,
            np.stack(experts),
            np.stack(weights),
        )

    def _norm(self, x: Floats, name: str) -> Floats:
        return np.asarray(
            x
            / np.sqrt((x * x).mean(-1, keepdims=True) + self.config["rms_norm_eps"])
            * self.tensors[name + ".weight"]
        )

    def _attention(self, at: str, x: Floats) -> Floats:
        heads = self.config["num_attention_heads"]
        n, width = x.shape
        head = width // heads
        q, k, v = (x @ self.tensors[f"{at}{name}_proj.weight"].T for name in "qkv")
        q, k = self._norm(q, at + "q_norm"), self._norm(k, at + "k_norm")  # over all heads together
        angles = np.arange(n)[:, None] * self.config["rope_theta"] ** (
            -np.arange(0, head, 2) / head
        )
        cos, sin = (np.tile(f(angles), 2)[:, None] for f in (np.cos, np.sin))  # [N, 1, C]

        def rotated(z: Floats) -> Floats:
            z = z.reshape(n, heads, head)
            half = np.concatenate([-z[..., head // 2 :], z[..., : head // 2]], -1)
            return np.asarray(z * cos + half * sin)

        scores = np.einsum("nhc,mhc->hnm", rotated(q), rotated(k)) / np.sqrt(head)
        scores[:, np.triu(np.ones((n, n), bool), 1)] = -np.inf
        mixed = np.einsum("hnm,mhc->nhc", softmax(scores), v.reshape(n, heads, head)).reshape(
            n, width
        )
        return np.asarray(mixed @ self.tensors[at + "o_proj.weight"].T)

    def _expert(self, at: str, x: Floats) -> Floats:
        gate, up = (
            self.tensors[at + "gate_proj.weight"] @ x,
            self.tensors[at + "up_proj.weight"] @ x,
        )
        return np.asarray(self.tensors[at + "down_proj.weight"] @ (gate / (1 + np.exp(-gate)) * up))
