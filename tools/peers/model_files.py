#!/usr/bin/env python3
"""Writes model files with random weights in the shapes of known MoE models, fewer layers: GGUF in
BF16, Q8_0 and Q4_0 and a Hugging Face folder in bf16, all of the same numbers; experts also in
MXFP4, IQ3_XXS or IQ2_XS, beside Q8_0; of gpt-oss, Mixtral, DeepSeek-V2-Lite and Qwen3-Next only
GGUF. Speed does not depend on the numbers, so the matrices are slices of one pool of normal ones,
quantised once for each format, those of the IQ types drawn.

GGUF's keys and names: github ggml-org/ggml, docs/gguf.md and gguf-py's constants; the folder's:
transformers' olmoe and qwen3_moe.
"""

import argparse
import json
import os
import struct

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter, TokenType, quants

POOL = 1 << 24  # numbers
FORMATS = {  # type, its number as that of a file, numbers and bytes of a block
    "bf16": (Type.BF16, 32, 1, 2),
    "q8_0": (Type.Q8_0, 7, 32, 34),
    "q4_0": (Type.Q4_0, 2, 32, 18),
    "mxfp4": (Type.MXFP4, 38, 32, 17),
    "iq3_xxs": (Type.IQ3_XXS, 23, 256, 98),
    "iq2_xs": (Type.IQ2_XS, 20, 256, 74),
}
OF_EXPERTS = ("mxfp4", "iq3_xxs", "iq2_xs")  # the rest is Q8_0
DRAWN = {"iq3_xxs": 2e-4, "iq2_xs": 4e-4}  # scales of drawn blocks, which make numbers of 0.02

OLMOE = {
    "arch": "olmoe",
    "width": 2048,
    "heads": 16,
    "kv_heads": 16,
    "head_width": 128,
    "experts": 64,
    "top_k": 8,
    "expert_width": 1024,
    "layers": 4,
    "vocab": 49152,
    "context": 65536,
    "theta": 10000.0,
    "eps": 1e-5,
    "qk_norm": 2048,
}
QWEN3MOE = {
    "arch": "qwen3moe",
    "width": 2048,
    "heads": 32,
    "kv_heads": 4,
    "head_width": 128,
    "experts": 128,
    "top_k": 8,
    "expert_width": 768,
    "layers": 4,
    "vocab": 49152,
    "context": 65536,
    "theta": 1000000.0,
    "eps": 1e-6,
    "qk_norm": 128,
}
MIXTRAL = {
    "arch": "llama",
    "width": 4096,
    "heads": 32,
    "kv_heads": 8,
    "head_width": 128,
    "experts": 8,
    "top_k": 2,
    "expert_width": 14336,
    "layers": 2,
    "vocab": 49152,
    "context": 65536,
    "theta": 1000000.0,
    "eps": 1e-5,
    "qk_norm": 0,
}
GPT_OSS = {
    "arch": "gpt-oss",
    "width": 2880,
    "heads": 64,
    "kv_heads": 8,
    "head_width": 64,
    "experts": 32,
    "top_k": 4,
    "expert_width": 2880,
    "layers": 4,
    "vocab": 49152,
    "context": 65536,
    "theta": 150000.0,
    "eps": 1e-5,
    "keys": {"attention.sliding_window": 128},
}
DEEPSEEK2 = {
    "arch": "deepseek2",
    "width": 2048,
    "heads": 16,
    "kv_heads": 1,
    "head_width": 576,
    "value_width": 512,
    "experts": 64,
    "top_k": 6,
    "expert_width": 1408,
    "dense_width": 10944,
    "layers": 4,
    "vocab": 49152,
    "context": 65536,
    "theta": 10000.0,
    "eps": 1e-6,
    "keys": {
        "attention.q_lora_rank": 0,
        "attention.kv_lora_rank": 512,
        "attention.key_length_mla": 192,
        "attention.value_length_mla": 128,
        "rope.dimension_count": 64,
        "leading_dense_block_count": 1,
        "expert_shared_count": 2,
        "expert_gating_func": 1,
    },
}
QWEN3NEXT = {
    "arch": "qwen3next",
    "width": 2048,
    "heads": 16,
    "kv_heads": 2,
    "head_width": 256,
    "experts": 512,
    "top_k": 10,
    "expert_width": 512,
    "layers": 4,
    "vocab": 49152,
    "context": 65536,
    "theta": 10000000.0,
    "eps": 1e-6,
    "keys": {
        "rope.dimension_count": 64,
        "ssm.conv_kernel": 4,
        "ssm.inner_size": 4096,
        "ssm.state_size": 128,
        "ssm.time_step_rank": 32,
        "ssm.group_count": 16,
        "full_attention_interval": 4,
        "expert_shared_feed_forward_length": 512,
    },
}
SHAPES = {
    "olmoe": OLMOE,
    "qwen3moe": QWEN3MOE,
    "mixtral": MIXTRAL,
    "gpt-oss": GPT_OSS,
    "deepseek2": DEEPSEEK2,
    "qwen3next": QWEN3NEXT,
}


def vocabulary(size):
    """GPT-2's alphabet of bytes, then pairs of its letters, each of them a merge."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = [chr(b) for b in kept] + [chr(256 + i) for i in range(256 - len(kept))]
    pairs = [(a, b) for a in alphabet for b in alphabet][: size - 257]
    return alphabet + [a + b for a, b in pairs] + ["<|endoftext|>"], [f"{a} {b}" for a, b in pairs]


def of_ffn(g, part, width, d, experts=None):
    """Gate, up and down of a GGUF's FFN."""
    bank = () if experts is None else (experts,)
    for which, shape in (("gate", (width, d)), ("up", (width, d)), ("down", (d, width))):
        yield f"{g}ffn_{which}{part}.weight", [], (*bank, *shape)


def gpt_oss_layer(s, g):
    d, f, e, q, kv = (
        s["width"],
        s["expert_width"],
        s["experts"],
        s["heads"] * s["head_width"],
        s["kv_heads"] * s["head_width"],
    )
    for name in ("attn_norm", "post_attention_norm"):
        yield f"{g}{name}.weight", [], (d,)
    for name, rows, cols in (("q", q, d), ("k", kv, d), ("v", kv, d), ("output", d, q)):
        yield f"{g}attn_{name}.weight", [], (rows, cols)
        yield f"{g}attn_{name}.bias", [], (rows,)
    yield f"{g}attn_sinks.weight", [], (s["heads"],)
    yield f"{g}ffn_gate_inp.weight", [], (e, d)
    yield f"{g}ffn_gate_inp.bias", [], (e,)
    yield from of_ffn(g, "_exps", f, d, e)
    for which, width in (("gate", f), ("up", f), ("down", d)):
        yield f"{g}ffn_{which}_exps.bias", [], (e, width)


def deepseek2_layer(s, g, dense):
    d, h, keys = s["width"], s["heads"], s["keys"]
    latent, turning = keys["attention.kv_lora_rank"], keys["rope.dimension_count"]
    key, value = keys["attention.key_length_mla"], keys["attention.value_length_mla"]
    for name, width in (("attn_norm", d), ("attn_kv_a_norm", latent), ("ffn_norm", d)):
        yield f"{g}{name}.weight", [], (width,)
    yield f"{g}attn_q.weight", [], (h * key, d)
    yield f"{g}attn_kv_a_mqa.weight", [], (latent + turning, d)
    yield f"{g}attn_k_b.weight", [], (h, latent, key - turning)
    yield f"{g}attn_v_b.weight", [], (h, value, latent)
    yield f"{g}attn_output.weight", [], (d, h * value)
    if dense:
        yield from of_ffn(g, "", s["dense_width"], d)
        return
    yield f"{g}ffn_gate_inp.weight", [], (s["experts"], d)
    yield from of_ffn(g, "_exps", s["expert_width"], d, s["experts"])
    yield from of_ffn(g, "_shexp", 2 * s["expert_width"], d)


def qwen3next_layer(s, g, linear):
    d, h, keys, f = s["width"], s["head_width"], s["keys"], s["expert_width"]
    k, v, heads = (
        keys["ssm.group_count"] * keys["ssm.state_size"],
        keys["ssm.inner_size"],
        keys["ssm.time_step_rank"],
    )
    for name in ("attn_norm", "post_attention_norm"):
        yield f"{g}{name}.weight", [], (d,)
    if linear:
        yield f"{g}attn_qkv.weight", [], (2 * k + v, d)
        yield f"{g}attn_gate.weight", [], (v, d)
        yield f"{g}ssm_ba.weight", [], (2 * heads, d)
        yield f"{g}ssm_conv1d.weight", [], (2 * k + v, keys["ssm.conv_kernel"])
        yield f"{g}ssm_dt.bias", [], (heads,)
        yield f"{g}ssm_a", [], (heads,)
        yield f"{g}ssm_norm.weight", [], (keys["ssm.state_size"],)
        yield f"{g}ssm_out.weight", [], (d, v)
    else:
        q, kv = s["heads"] * h, s["kv_heads"] * h
        for name, rows, cols in (("q", 2 * q, d), ("k", kv, d), ("v", kv, d), ("output", d, q)):
            yield f"{g}attn_{name}.weight", [], (rows, cols)
        for name in ("attn_q_norm", "attn_k_norm"):
            yield f"{g}{name}.weight", [], (h,)
    yield f"{g}ffn_gate_inp.weight", [], (s["experts"], d)
    yield from of_ffn(g, "_exps", f, d, s["experts"])
    yield f"{g}ffn_gate_inp_shexp.weight", [], (d,)
    yield from of_ffn(g, "_shexp", keys["expert_shared_feed_forward_length"], d)


def layer_of(s, i):
    g = f"blk.{i}."
    if s["arch"] == "gpt-oss":
        return gpt_oss_layer(s, g)
    if s["arch"] == "deepseek2":
        return deepseek2_layer(s, g, i == 0)
    return qwen3next_layer(s, g, (i + 1) % s["keys"]["full_attention_interval"] != 0)


def tensors(s):
    """(GGUF's name, transformers' names, shape); a bank has a name for each expert."""
    if s["arch"] in ("gpt-oss", "deepseek2", "qwen3next"):
        yield "token_embd.weight", [], (s["vocab"], s["width"])
        for i in range(s["layers"]):
            yield from layer_of(s, i)
        yield "output_norm.weight", [], (s["width"],)
        yield "output.weight", [], (s["vocab"], s["width"])
        return
    d, f, e, q, kv = (
        s["width"],
        s["expert_width"],
        s["experts"],
        s["heads"] * s["head_width"],
        s["kv_heads"] * s["head_width"],
    )
    yield "token_embd.weight", ["model.embed_tokens.weight"], (s["vocab"], d)
    for i in range(s["layers"]):
        g, h = f"blk.{i}.", f"model.layers.{i}."
        yield g + "attn_norm.weight", [h + "input_layernorm.weight"], (d,)
        for theirs, ours, rows, cols in (
            ("q", "q", q, d),
            ("k", "k", kv, d),
            ("v", "v", kv, d),
            ("output", "o", d, q),
        ):
            yield f"{g}attn_{theirs}.weight", [f"{h}self_attn.{ours}_proj.weight"], (rows, cols)
        for part in ("q", "k") if s["qk_norm"] else ():
            name = f"self_attn.{part}_norm.weight"
            yield f"{g}attn_{part}_norm.weight", [h + name], (s["qk_norm"],)
        yield g + "ffn_norm.weight", [h + "post_attention_layernorm.weight"], (d,)
        yield g + "ffn_gate_inp.weight", [h + "mlp.gate.weight"], (e, d)
        for part, rows, cols in (("gate", f, d), ("up", f, d), ("down", d, f)):
            yield (
                f"{g}ffn_{part}_exps.weight",
                [f"{h}mlp.experts.{x}.{part}_proj.weight" for x in range(e)],
                (e, rows, cols),
            )
    yield "output_norm.weight", ["model.norm.weight"], (d,)
    yield "output.weight", ["lm_head.weight"], (s["vocab"], d)


class Pool:
    """Random numbers in every format; a tensor's matrices are runs of it that begin at places of
    their own."""

    def __init__(self):
        self.numbers = np.random.default_rng(1).standard_normal(
            POOL, dtype=np.float32
        ) * np.float32(0.02)
        self.packed = {}

    def quantised(self, fmt):
        packed = quants.quantize(self.numbers.reshape(-1, 256), FORMATS[fmt][0])
        return packed.reshape(-1).view(np.uint8)

    def drawn(self, fmt):
        _, _, numbers, size = FORMATS[fmt]
        blocks = np.random.default_rng(2).integers(0, 256, (POOL // numbers, size), np.uint8)
        blocks[:, :2] = np.array([DRAWN[fmt]], np.float16).view(np.uint8)
        return blocks.reshape(-1)

    def matrix(self, index, rows, cols, fmt):
        if fmt not in self.packed:
            self.packed[fmt] = self.drawn(fmt) if fmt in DRAWN else self.quantised(fmt)
        data = self.packed[fmt]
        unit = len(data) * 256 // POOL  # bytes of 256 numbers
        begin, size = index * 7919 % (POOL // 256) * unit, rows * cols // 256 * unit
        parts = []
        while size > 0:  # the pool is a ring
            part = data[begin : begin + size]
            parts.append(part)
            begin, size = 0, size - len(part)
        return np.concatenate(parts) if len(parts) > 1 else parts[0]


def chunks(pool, index, name, shape, fmt):
    """A tensor's bytes, matrix by matrix; of vectors the numbers, all ones, but decays."""
    if fmt == "f32":
        yield np.full(shape, -0.05 if name.endswith("ssm_a") else 1, np.float32)
    elif len(shape) == 2:
        yield pool.matrix(index * 131, *shape, fmt)
    else:
        for e in range(shape[0]):
            yield pool.matrix(index * 131 + e, *shape[1:], fmt)


def router(pool, index, shape):
    at = index * 524287 % (POOL - shape[0] * shape[1])
    return pool.numbers[at : at + shape[0] * shape[1]]


def is_router(name):
    """A matrix that is kept in f32: of routers, and of convolutions."""
    return "ffn_gate_inp.weight" in name or "ssm_conv1d" in name


def format_of(name, shape, fmt):
    """What a tensor of a file in this format is stored in."""
    if len(shape) == 1 or name.endswith(".bias") or is_router(name):
        return "f32"
    if fmt in OF_EXPERTS and "_exps" not in name:
        return "q8_0"
    return fmt


def write_gguf(path, s, fmt, pool):
    w = GGUFWriter(path, s["arch"])
    words, merges = vocabulary(s["vocab"])
    w.add_context_length(s["context"])
    w.add_embedding_length(s["width"])
    w.add_block_count(s["layers"])
    w.add_feed_forward_length(s.get("dense_width", s["expert_width"]))
    w.add_head_count(s["heads"])
    w.add_head_count_kv(s["kv_heads"])
    w.add_key_length(s["head_width"])
    w.add_value_length(s.get("value_width", s["head_width"]))
    w.add_layer_norm_rms_eps(s["eps"])
    w.add_rope_freq_base(s["theta"])
    w.add_expert_count(s["experts"])
    w.add_expert_used_count(s["top_k"])
    if s["arch"] != "olmoe":  # whose experts have the feed-forward length
        w.add_expert_feed_forward_length(s["expert_width"])
    for key, value in s.get("keys", {}).items():
        w.add_uint32(f"{s['arch']}.{key}", value)
    w.add_file_type(FORMATS[fmt][1])
    w.add_quantization_version(2)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list(words)
    w.add_token_types([TokenType.NORMAL] * (len(words) - 1) + [TokenType.CONTROL])
    w.add_token_merges(merges)
    w.add_bos_token_id(len(words) - 1)
    w.add_eos_token_id(len(words) - 1)
    w.add_add_bos_token(False)
    listed = list(tensors(s))
    for name, _, shape in listed:
        stored, count = format_of(name, shape, fmt), int(np.prod(shape))
        if stored == "f32":
            w.add_tensor_info(name, shape, np.dtype(np.float32), count * 4)
            continue
        kind, _, block, size = FORMATS[stored]
        packed = (*shape[:-1], shape[-1] // block * size)
        w.add_tensor_info(name, packed, np.dtype(np.uint8), count // block * size, kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    out = w.fout[0]
    for index, (name, _, shape) in enumerate(listed):
        w.write_padding(out, out.tell())
        if is_router(name):
            out.write(router(pool, index, shape).tobytes())
            continue
        for part in chunks(pool, index, name, shape, format_of(name, shape, fmt)):
            out.write(part.tobytes())
    w.write_padding(out, out.tell())
    w.close()


def bf16(numbers):
    return quants.quantize(numbers.reshape(1, -1), Type.BF16).reshape(-1).view(np.uint8)


def hf_config(s):
    config = {
        "vocab_size": s["vocab"],
        "hidden_size": s["width"],
        "intermediate_size": s["expert_width"],
        "num_hidden_layers": s["layers"],
        "num_attention_heads": s["heads"],
        "num_key_value_heads": s["kv_heads"],
        "hidden_act": "silu",
        "max_position_embeddings": s["context"],
        "rms_norm_eps": s["eps"],
        "rope_theta": s["theta"],
        "rope_scaling": None,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "num_experts": s["experts"],
        "num_experts_per_tok": s["top_k"],
        "output_router_logits": False,
        "router_aux_loss_coef": 0.01,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "eos_token_id": s["vocab"] - 1,
        "bos_token_id": None,
    }
    if s["arch"] == "olmoe":
        return {
            **config,
            "model_type": "olmoe",
            "architectures": ["OlmoeForCausalLM"],
            "norm_topk_prob": False,
            "clip_qkv": None,
        }
    return {
        **config,
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        "norm_topk_prob": True,
        "head_dim": s["head_width"],
        "moe_intermediate_size": s["expert_width"],
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "use_sliding_window": False,
        "sliding_window": None,
    }


def hf_tokenizer(s):
    words, merges = vocabulary(s["vocab"])
    special = {
        "id": len(words) - 1,
        "content": words[-1],
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [special],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {w: i for i, w in enumerate(words)},
            "merges": merges,
        },
    }


def write_folder(path, s, pool):
    os.makedirs(path, exist_ok=True)
    for name, value in (("config.json", hf_config(s)), ("tokenizer.json", hf_tokenizer(s))):
        with open(os.path.join(path, name), "w", encoding="utf-8") as file:
            json.dump(value, file, ensure_ascii=False)
    header, at = {"__metadata__": {"format": "pt"}}, 0
    listed = list(tensors(s))
    for _, names, shape in listed:
        own = shape[1:] if len(shape) == 3 else shape
        size = 2 * int(np.prod(own))
        for name in names:
            header[name] = {"dtype": "BF16", "shape": list(own), "data_offsets": [at, at + size]}
            at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(path, "model.safetensors"), "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for index, (name, _, shape) in enumerate(listed):
            if is_router(name):
                out.write(bf16(router(pool, index, shape)).tobytes())
                continue
            for part in chunks(
                pool, index, name, shape, "f32" if len(shape) == 1 else "bf16"
            ):
                out.write((bf16(part) if part.dtype == np.float32 else part).tobytes())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument(
        "--formats",
        nargs="+",
        choices=[*FORMATS, "hf"],
        default=["bf16", "q8_0", "q4_0", "mxfp4", "hf"],
    )
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument(
        "--out",
        required=True,
        help="files are called OUT/SHAPE-FORMAT.gguf, the folder OUT/SHAPE-hf",
    )
    args = parser.parse_args()
    shape = {**SHAPES[args.shape], "layers": args.layers}
    os.makedirs(args.out, exist_ok=True)
    pool = Pool()
    for fmt in args.formats:
        path = os.path.join(args.out, f"{args.shape}-{fmt}" + ("" if fmt == "hf" else ".gguf"))
        write_folder(path, shape, pool) if fmt == "hf" else write_gguf(path, shape, fmt, pool)
        print(path, flush=True)


if __name__ == "__main__":
    main()
