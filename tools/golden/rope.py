"""Golden rotary frequencies, by transformers' ROPE_INIT_FUNCTIONS: rope.json, one case a line with
its settings, frequencies (f32) and factor, and the frequencies of long texts where they are
others."""

import os

from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

import common

# (head width, theta, rope_parameters)
CASES = [
    (128, 10000.0, {"rope_type": "default"}),
    (64, 500000.0, {"rope_type": "default"}),
    (64, 10000.0, {"rope_type": "linear", "factor": 4.0}),
    (
        128,
        500000.0,
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    ),
    (
        64,
        500000.0,
        {
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    ),
    (
        8,
        10000.0,
        {
            "rope_type": "llama3",
            "factor": 2.5,
            "low_freq_factor": 1.5,
            "high_freq_factor": 3.0,
            "original_max_position_embeddings": 64,
        },
    ),
    (
        128,
        1000000.0,
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    ),
    (
        64,
        10000.0,
        {
            "rope_type": "yarn",
            "factor": 40.0,
            "original_max_position_embeddings": 4096,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 0.707,
            "mscale_all_dim": 0.707,
        },
    ),
    (
        64,
        10000.0,
        {
            "rope_type": "yarn",
            "factor": 16.0,
            "original_max_position_embeddings": 2048,
            "beta_fast": 24.0,
            "beta_slow": 2.0,
            "truncate": False,
        },
    ),
    (
        16,
        10000.0,
        {
            "rope_type": "yarn",
            "factor": 8.0,
            "original_max_position_embeddings": 128,
            "attention_factor": 0.75,
        },
    ),
    (
        16,
        10000.0,
        {
            "rope_type": "longrope",
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "short_factor": [1.0, 1.0, 1.125, 1.25, 1.5, 1.5, 2.0, 2.5],
            "long_factor": [1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 13.0, 21.0],
        },
    ),
    (4, 10000.0, {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 4}),
]


def make_all(folder):
    """Writes rope.json."""
    cases = []
    for width, theta, parameters in CASES:
        context = int(
            parameters.get("factor", 1) * parameters.get("original_max_position_embeddings", 2048)
        )
        config = LlamaConfig(
            hidden_size=2 * width,
            num_attention_heads=2,
            head_dim=width,
            max_position_embeddings=context,
            rope_parameters={**parameters, "rope_theta": theta},
        )
        kind = parameters["rope_type"]
        if kind == "default":
            made = LlamaRotaryEmbedding(config)
            frequencies, factor = made.inv_freq, made.attention_scaling
        else:
            frequencies, factor = ROPE_INIT_FUNCTIONS[kind](config, "cpu")
        case = {
            "head_width": width,
            "theta": theta,
            "parameters": parameters,
            "frequencies": [common.number(f) for f in frequencies],
            "factor": common.number(factor),
        }
        if kind == "longrope":
            longer, _ = ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=context)
            case["long_frequencies"] = [common.number(f) for f in longer]
        cases.append(case)
    with open(os.path.join(folder, "rope.json"), "w", encoding="utf-8") as out:
        out.write(common.dump({"cases": cases}))
