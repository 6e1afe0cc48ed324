#!/usr/bin/env python3
"""Folders whose weights stand in few bits: what `moe convert --dtype` makes of them are, number for
number, the weights that transformers dequantises, of MXFP4 as gpt-oss was published in and of FP8
in blocks as DeepSeek-V3 was. For GPTQ, AWQ, compressed-tensors, ModelOpt, FBGEMM and bitsandbytes
transformers wants packages that are not here; those are packed by what their makers' programs say,
and must become what was packed.
Called by scripts/interop.sh; takes the options of architectures.py.
"""

import argparse
import json
import os
import shutil
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file

import architectures

FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
BLOCK = 32  # of the small matrices here; published ones have 128
LARGEST = 448  # of E4M3


def mxfp4(name, x):
    """[E,I,O] as blocks [E,O,I/32,16] and scales [E,O,I/32]."""
    x = x.transpose(1, 2).contiguous()
    x = x.view(*x.shape[:2], -1, 32)
    exponent = torch.floor(torch.log2(x.abs().amax(-1).clamp_min(1e-30))) - 2
    numbers = x / torch.exp2(exponent)[..., None]
    which = (numbers.abs()[..., None] - FP4).abs().argmin(-1)
    which = torch.where(numbers < 0, which + 8, which).to(torch.uint8)
    return {
        name + "_blocks": which[..., 0::2] | (which[..., 1::2] << 4),
        name + "_scales": (exponent + 127).to(torch.uint8),
    }


def fp8(name, x, dtype=torch.float32):
    """[O,I] as E4M3 and a scale for each block."""
    rows, cols = (-(-n // BLOCK) for n in x.shape)
    scales = torch.empty(rows, cols)
    numbers = torch.empty_like(x)
    for r in range(rows):
        for c in range(cols):
            at = slice(r * BLOCK, (r + 1) * BLOCK), slice(c * BLOCK, (c + 1) * BLOCK)
            scales[r, c] = x[at].abs().max() / LARGEST
            numbers[at] = x[at] / scales[r, c]
    return {name: numbers.to(torch.float8_e4m3fn), name + "_scale_inv": scales.to(dtype)}


def fp8_of_qwen(name, x):
    """The same with scales of bf16."""
    return fp8(name, x, torch.bfloat16)


# Published ones have 32 to 128. With 16, half a block of GGUF's types, numbers become 16 bits.
GROUP = 16
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def words(numbers, bits):
    """Rows of whole numbers in int32, the first in the lowest bits; a row's last word may be less
    than full."""
    in_word = 32 // bits
    padded = torch.nn.functional.pad(numbers.long(), (0, -numbers.shape[-1] % in_word))
    places = torch.arange(in_word) * bits
    wide = (padded.unflatten(-1, (-1, in_word)) << places).sum(-1)
    return torch.where(wide >= 1 << 31, wide - (1 << 32), wide).to(torch.int32).contiguous()


def held(numbers, zeros, steps, bits, symmetric, dtype):
    """What numbers [O,G,..] are read as: in 16 bits the product rounded once, in q4_0 and q8_0
    exactly it, in q4_1 a multiple of the step above the lowest number, which is rounded to f16."""
    in_blocks = numbers.shape[2] % BLOCK == 0
    if in_blocks and symmetric:
        return (numbers - zeros) * steps
    if in_blocks and bits == 4:
        return numbers * steps - (zeros * steps).half().float()
    return ((numbers - zeros).to(dtype) * steps.to(dtype)).float()


def in_grid(x, bits, symmetric, group=GROUP, dtype=torch.float16):
    """[O,I] as numbers from 0 to 2^bits - 1, zero points [O,G], scales [O,G] and what they are
    read as."""
    rows = x.view(x.shape[0], -1, group)
    most = 2**bits - 1
    if symmetric:
        scales = rows.abs().amax(-1) / (most // 2)
        zeros = torch.full_like(scales, most // 2 + 1)
    else:
        low, high = rows.amin(-1).clamp_max(0), rows.amax(-1).clamp_min(0)
        scales = (high - low) / most
        zeros = (-low / scales).round()
    scales = scales.clamp_min(1e-4).to(dtype)
    steps = scales.float()[..., None]
    numbers = ((rows / steps).round() + zeros[..., None]).clamp(0, most)
    meant = held(numbers, zeros[..., None], steps, bits, symmetric, dtype)
    return numbers.view(x.shape), zeros, scales, meant.view(x.shape)


def gptq(bits=4, v2=False, symmetric=True, act_order=False, group=GROUP):
    def pack(name, x):
        layer = name.removesuffix(".weight")
        order = torch.arange(x.shape[1])
        if act_order:
            order = torch.randperm(x.shape[1], generator=torch.Generator().manual_seed(3))
        numbers, zeros, scales, meant = in_grid(x[:, order], bits, symmetric, group)
        back = order.argsort()
        packed_zeros = words(zeros.T, bits)
        if not v2:  # one less, borrowing within a word as GPTQModel has it
            packed_zeros = packed_zeros - (0x11111111 if bits == 4 else 0x01010101)
        return {
            layer + ".qweight": words(numbers[:, back], bits).T.contiguous(),
            layer + ".qzeros": packed_zeros,
            layer + ".scales": scales.T.contiguous(),
            layer + ".g_idx": (back // group).to(torch.int32),
            # AutoGPTQ's of layers without a bias
            layer + ".bias": torch.zeros(x.shape[0], dtype=torch.float16),
        }, meant[:, back]

    return pack


def awq(group=GROUP):
    def interleaved(t):
        return words(t.T.unflatten(-1, (-1, 8))[..., AWQ_ORDER].flatten(-2), 4)

    def pack(name, x):
        layer = name.removesuffix(".weight")
        numbers, zeros, scales, meant = in_grid(x, 4, False, group)
        return {
            layer + ".qweight": interleaved(numbers),
            layer + ".qzeros": interleaved(zeros),
            layer + ".scales": scales.T.contiguous(),
        }, meant

    return pack


def pack_quantized(bits, symmetric, group=GROUP):
    def pack(name, x):
        layer = name.removesuffix(".weight")
        numbers, zeros, scales, meant = in_grid(
            x, bits, symmetric, group or x.shape[1], torch.bfloat16
        )
        tensors = {
            layer + ".weight_packed": words(numbers, bits),
            layer + ".weight_scale": scales,
            layer + ".weight_shape": torch.tensor(x.shape),
        }
        if not symmetric:
            tensors[layer + ".weight_zero_point"] = words(zeros.T, bits).T.contiguous()
        return tensors, meant

    return pack


def int_quantized(name, x):
    numbers, _, scales, meant = in_grid(x, 8, True, x.shape[1], torch.bfloat16)
    return {name: (numbers - 128).to(torch.int8), name + "_scale": scales}, meant


def float_quantized(strategy):
    def pack(name, x):
        high, wide = {"tensor": x.shape, "channel": (1, x.shape[1])}.get(strategy, (BLOCK, BLOCK))
        blocks = [[b.abs().amax() for b in r.split(wide, 1)] for r in x.split(high, 0)]
        scales = (torch.tensor(blocks) / LARGEST).to(torch.bfloat16)
        each = scales.repeat_interleave(high, 0).repeat_interleave(wide, 1)
        each = each[: x.shape[0], : x.shape[1]]
        numbers = (x / each.float()).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
        tensors = {
            name: numbers,
            name + "_scale": scales[0] if strategy == "tensor" else scales,
            name.removesuffix("weight") + "input_scale": torch.ones(1),
        }
        return tensors, (numbers.to(torch.bfloat16) * each).float()

    return pack


NF4 = torch.tensor(
    [
        -1.0,
        -0.6961928009986877,
        -0.5250730514526367,
        -0.39491748809814453,
        -0.28444138169288635,
        -0.18477343022823334,
        -0.09105003625154495,
        0.0,
        0.07958029955625534,
        0.16093020141124725,
        0.24611230194568634,
        0.33791524171829224,
        0.44070982933044434,
        0.5626170039176941,
        0.7229568362236023,
        1.0,
    ]
)
TWELFTHS = torch.tensor([0, 0.0625, 8, 12, 4, 6, 2, 3])
CODES = {"nf4": NF4, "fp4": torch.cat([TWELFTHS, -TWELFTHS]) / 12}
# What codes of scales mean; bitsandbytes' own map is finer at 0.
LINEAR = torch.linspace(-1, 1, 256)


def in_codes(x, block, meanings):
    """The flattened numbers as codes, the scale of each block, and which block each is of."""
    flat = x.flatten()
    scales = torch.stack([part.abs().amax() for part in flat.split(block)])
    of = torch.arange(flat.numel()) // block
    return (flat[:, None] / scales[of, None] - meanings).abs().argmin(-1), scales, of


def bitsandbytes4(kind, nested=False, dtype=torch.bfloat16, block=64):
    def pack(name, x):
        codes, scales, of = in_codes(x, block, CODES[kind])
        state = {
            "quant_type": kind,
            "blocksize": block,
            "dtype": str(dtype).removeprefix("torch."),
            "shape": list(x.shape),
        }
        tensors = {name + ".absmax": scales, name + ".quant_map": CODES[kind].clone()}
        if nested:
            offset = scales.mean()
            inner, outer, group = in_codes(scales - offset, 256, LINEAR)
            scales = LINEAR[inner] * outer[group] + offset
            tensors |= {
                name + ".absmax": inner.to(torch.uint8),
                name + ".nested_absmax": outer,
                name + ".nested_quant_map": LINEAR.clone(),
            }
            state |= {
                "nested_blocksize": 256,
                "nested_dtype": "float32",
                "nested_offset": offset.item(),
            }
        even = torch.nn.functional.pad(codes, (0, codes.numel() % 2)).to(torch.uint8)
        tensors[name] = ((even[0::2] << 4) | even[1::2])[:, None].contiguous()
        text = json.dumps(state).encode()
        tensors[f"{name}.quant_state.bitsandbytes__{kind}"] = torch.tensor(list(text)).byte()
        return tensors, (CODES[kind][codes] * scales[of]).to(dtype).float().view(x.shape)

    return pack


def bitsandbytes8(name, x):
    layer = name.removesuffix(".weight")
    scales = x.half().float().abs().amax(-1)
    numbers = (x / scales[:, None] * 127).round().to(torch.int8)
    tensors = {
        name: numbers,
        layer + ".SCB": scales,
        layer + ".weight_format": torch.tensor(0, dtype=torch.uint8),
    }
    return tensors, (numbers * scales[:, None] * 7.874015718698502e-3).half().float()


def of_bitsandbytes(bits, kind="nf4", nested=False):
    return {
        "quant_method": "bitsandbytes",
        "load_in_4bit": bits == 4,
        "load_in_8bit": bits == 8,
        "bnb_4bit_quant_type": kind,
        "bnb_4bit_use_double_quant": nested,
        "bnb_4bit_quant_storage": "uint8",
        "llm_int8_threshold": 6.0,
        "llm_int8_skip_modules": ["lm_head"],
    }


def nvfp4(divided):
    """Two of E2M1 a byte, the first in the lower half, beside E4M3 for each 16 and one f32."""

    def pack(name, x):
        layer = name.removesuffix(".weight")
        of_all = x.abs().amax() / (FP4[-1] * LARGEST)
        of_all = of_all.reciprocal() if divided else of_all

        def times(scales):
            return scales / of_all if divided else scales * of_all

        rows = x.view(x.shape[0], -1, 16)
        scales = (rows.abs().amax(-1) / FP4[-1] / times(torch.ones(()))).clamp(2**-9, LARGEST)
        scales = scales.to(torch.float8_e4m3fn)
        steps = times(scales.float())[..., None]
        which = (rows.abs()[..., None] / steps[..., None] - FP4).abs().argmin(-1)
        meant = (torch.where(rows < 0, -FP4[which], FP4[which]) * steps).to(torch.bfloat16)
        codes = (which + 8 * (rows < 0)).to(torch.uint8).view(x.shape)
        return {
            layer + (".weight_packed" if divided else ".weight"): codes[:, 0::2]
            | (codes[:, 1::2] << 4),
            layer + ".weight_scale": scales,
            layer + (".weight_global_scale" if divided else ".weight_scale_2"): of_all[None],
            layer + (".input_global_scale" if divided else ".input_scale"): torch.ones(1),
        }, meant.float().view(x.shape)

    return pack


def mxfp4_rows(name, x):
    """As compressed-tensors has MXFP4: a matrix of rows, two numbers a byte."""
    rows = x.view(x.shape[0], -1, 32)
    exponent = torch.floor(torch.log2(rows.abs().amax(-1).clamp_min(1e-30))) - 2
    steps = torch.exp2(exponent)[..., None]
    which = (rows.abs()[..., None] / steps[..., None] - FP4).abs().argmin(-1)
    meant = torch.where(rows < 0, -FP4[which], FP4[which]) * steps
    codes = (which + 8 * (rows < 0)).to(torch.uint8).view(x.shape)
    layer = name.removesuffix(".weight")
    return {
        layer + ".weight_packed": codes[:, 0::2] | (codes[:, 1::2] << 4),
        layer + ".weight_scale": (exponent + 127).to(torch.uint8),
    }, meant.view(x.shape)


def nvfp4_bank(name, x):
    """[E,I,O] as ModelOpt has gpt-oss's experts: numbers of a column together, one scale of all."""
    of_all = x.abs().amax() / (FP4[-1] * LARGEST)
    blocks = x.unflatten(1, (-1, 16))
    scales = (blocks.abs().amax(2) / FP4[-1] / of_all).clamp(2**-9, LARGEST)
    scales = scales.to(torch.float8_e4m3fn)
    steps = (scales.float() * of_all)[:, :, None]
    which = (blocks.abs()[..., None] / steps[..., None] - FP4).abs().argmin(-1)
    meant = (torch.where(blocks < 0, -FP4[which], FP4[which]) * steps).to(torch.bfloat16)
    codes = (which + 8 * (blocks < 0)).to(torch.uint8).flatten(1, 2)
    return {
        name: (codes[:, 0::2] | (codes[:, 1::2] << 4)).contiguous(),
        name + "_weight_scale": scales,
        name + "_weight_scale_2": of_all,
        name + "_input_scale": torch.ones(()),
    }, meant.float().flatten(1, 2)


def fp8_bank(name, x):
    scale = x.abs().amax() / LARGEST
    numbers = (x / scale).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
    meant = (numbers.float() * scale).to(torch.bfloat16).float()
    return {name: numbers, name + "_weight_scale": scale}, meant


def one_by_one(name, x):
    """gpt-oss's experts and router as unsloth calls them, the matrices in NF4."""
    if ".router." in name:
        return {name.replace(".router.", ".router.linear."): x}, x
    if name.endswith("_bias"):
        bank = name.removesuffix("_bias")
        return {f"{bank}s.{e}.bias": b.contiguous() for e, b in enumerate(x)}, x
    pack, tensors, meant = bitsandbytes4("nf4"), {}, []
    for e, matrix in enumerate(x):
        of_one, numbers = pack(f"{name}s.{e}.weight", matrix.T.contiguous())
        tensors |= of_one
        meant.append(numbers.T)
    return tensors, torch.stack(meant)


def fp8_of(shape):
    """E4M3 beside scales of f32: one, one of each row, or a column of them."""

    def pack(name, x):
        scales = (x.abs().amax(-1, keepdim=True) if shape else x.abs().amax()[None]) / LARGEST
        numbers = (x / scales).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
        meant = (numbers.float() * scales).to(torch.bfloat16).float()
        tensors = {name: numbers, name + "_scale": scales[:, 0] if shape == "rows" else scales}
        return {n: t.contiguous() for n, t in tensors.items()}, meant

    return pack


def modelopt(algo, **weights):
    return {
        "quant_method": "modelopt",
        "quant_algo": algo,
        "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }


def compressed(form, **weights):
    scheme = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "ignore": ["lm_head"],
        "config_groups": {"group_0": scheme},
    }


def is_expert(name, x):
    return name.endswith(("gate_up_proj", "experts.down_proj"))


def is_of_experts(name, x):
    return ".mlp." in name


def is_projection(name, x):
    return x.dim() == 2 and name.endswith("proj.weight")


FP8 = (
    {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [BLOCK, BLOCK],
    },
    transformers.FineGrainedFP8Config(dequantize=True, weight_block_size=(BLOCK, BLOCK)),
    "bf16",
)
OF_GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": True, "desc_act": False}
IN_BLOCKS = {"group_size": BLOCK}
OF_AWQ = {
    "quant_method": "awq",
    "bits": 4,
    "group_size": GROUP,
    "version": "gemm",
    "zero_point": True,
}
# How matrices are packed, and what config.json is told.
WITHOUT_TRANSFORMERS = {
    "gptq": (gptq(), OF_GPTQ),
    "gptq_act_order": (
        gptq(symmetric=False, act_order=True),
        {**OF_GPTQ, "sym": False, "desc_act": True, "checkpoint_format": "gptq"},
    ),
    "gptq_v2": (
        gptq(v2=True, symmetric=False),
        {**OF_GPTQ, "sym": False, "checkpoint_format": "gptq_v2"},
    ),
    "gptq_8": (gptq(bits=8), {**OF_GPTQ, "bits": 8}),
    "gptq_blocks": (gptq(group=BLOCK), {**OF_GPTQ, **IN_BLOCKS}),
    "gptq_8_blocks": (gptq(bits=8, group=BLOCK), {**OF_GPTQ, **IN_BLOCKS, "bits": 8}),
    "awq": (awq(), OF_AWQ),
    "awq_blocks": (awq(BLOCK), {**OF_AWQ, **IN_BLOCKS}),
    "pack_quantized": (
        pack_quantized(4, True),
        compressed("pack-quantized", num_bits=4, type="int", strategy="group", group_size=GROUP),
    ),
    "pack_quantized_zeros": (
        pack_quantized(4, False),
        compressed("pack-quantized", num_bits=4, type="int", strategy="group", group_size=GROUP),
    ),
    "pack_quantized_blocks": (
        pack_quantized(4, True, BLOCK),
        compressed("pack-quantized", num_bits=4, type="int", strategy="group", **IN_BLOCKS),
    ),
    "pack_quantized_8": (
        pack_quantized(8, True, None),
        compressed("pack-quantized", num_bits=8, type="int", strategy="channel"),
    ),
    "int_quantized": (
        int_quantized,
        compressed("int-quantized", num_bits=8, type="int", strategy="channel"),
    ),
    **{
        f"float_quantized_{strategy}": (
            float_quantized(strategy),
            compressed("float-quantized", num_bits=8, type="float", strategy=strategy, **more),
        )
        for strategy, more in {
            "tensor": {},
            "channel": {},
            "block": {"block_structure": [BLOCK, BLOCK]},
        }.items()
    },
    "nvfp4": (nvfp4(False), modelopt("NVFP4", num_bits=4, type="float", group_size=16)),
    "nvfp4_divided": (
        nvfp4(True),
        compressed(
            "nvfp4-pack-quantized",
            num_bits=4,
            type="float",
            strategy="tensor_group",
            group_size=16,
        ),
    ),
    "mxfp4_rows": (
        mxfp4_rows,
        compressed(
            "mxfp4-pack-quantized", num_bits=4, type="float", strategy="group", group_size=32
        ),
    ),
    "fp8_of_modelopt": (fp8_of(None), modelopt("FP8", num_bits=8, type="float")),
    "fp8_rows": (
        fp8_of("rows"),
        modelopt("FP8_PER_CHANNEL_PER_TOKEN", num_bits=8, type="float", strategy="channel"),
    ),
    "fbgemm_fp8": (
        fp8_of("column"),
        {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0},
    ),
    "nf4": (bitsandbytes4("nf4"), of_bitsandbytes(4)),
    "nf4_nested": (bitsandbytes4("nf4", nested=True), of_bitsandbytes(4, nested=True)),
    "fp4": (bitsandbytes4("fp4", dtype=torch.float16), of_bitsandbytes(4, "fp4")),
    "int8": (bitsandbytes8, of_bitsandbytes(8)),
}
OF_BANKS = {
    algo: {"quant_method": "modelopt", "quant_algo": algo, "exclude_modules": ["lm_head"]}
    for algo in ("NVFP4", "FP8")
}
# The family, its matrices that are packed, how, what config.json and transformers are told, and in
# what type they are compared: FP8 is read as bf16. Where transformers is told nothing, it loads the
# numbers that were packed.
CASES = {
    "mxfp4": (
        "gpt_oss",
        is_expert,
        mxfp4,
        {"quant_method": "mxfp4", "modules_to_not_convert": ["model.embed_tokens", "lm_head"]},
        transformers.Mxfp4Config(dequantize=True),
        "f32",
    ),
    "nvfp4_bank": ("gpt_oss", is_expert, nvfp4_bank, OF_BANKS["NVFP4"], None, "f32"),
    "fp8_bank": ("gpt_oss", is_expert, fp8_bank, OF_BANKS["FP8"], None, "f32"),
    "one_by_one": ("gpt_oss", is_of_experts, one_by_one, of_bitsandbytes(4), None, "f32"),
    "fp8": ("qwen3_moe", is_projection, fp8, *FP8),
    "fp8_of_qwen": ("qwen3_moe", is_projection, fp8_of_qwen, *FP8),
    **{
        name: ("qwen3_moe", is_projection, pack, told, None, "f32")
        for name, (pack, told) in WITHOUT_TRANSFORMERS.items()
    },
}


def write_folder(source, folder, tensors, **told):
    os.makedirs(folder, exist_ok=True)
    save_file(tensors, os.path.join(folder, "model.safetensors"), {"format": "pt"})
    with open(os.path.join(source, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump({**config, **told}, file, indent=2)
    shutil.copy(os.path.join(source, "tokenizer.json"), folder)


def write_packed(source, packed, meant, wanted, pack, told):
    """The folder packed, and where packing says what its numbers mean another one of those."""
    tensors, numbers = {}, {}
    for name, x in load_file(os.path.join(source, "model.safetensors")).items():
        of_packing = pack(name, x.float()) if wanted(name, x) else {name: x}
        if not isinstance(of_packing, tuple):
            of_packing = of_packing, x
        tensors |= of_packing[0]
        numbers[name] = of_packing[1].contiguous()
    write_folder(source, packed, tensors, quantization_config=told)
    write_folder(source, meant, numbers)


def check(moe, name, tokenizer):
    family, wanted, pack, told, config, dtype = CASES[name]
    plain, packed, meant, ours = (os.path.join(moe.work, f"{name}-{what}") for what in "abcd")
    architectures.write(family, plain, tokenizer, llama=True)
    write_packed(plain, packed, meant, wanted, pack, told)
    moe.run("convert", packed, ours, "--dtype", dtype)
    load = transformers.AutoModelForCausalLM.from_pretrained
    how = dict(dtype=torch.float32, local_files_only=True)
    reference = load(packed, quantization_config=config, **how) if config else load(meant, **how)
    # What it multiplies is f32; as that is stored here.
    theirs = {
        n: x.to(architectures.DTYPES[dtype]).float() for n, x in reference.state_dict().items()
    }
    got, before = load(ours, **how).state_dict(), load(plain, **how).state_dict()
    if sorted(got) != sorted(theirs):
        raise SystemExit(f"{name}: other tensors: {sorted(set(got) ^ set(theirs))[:4]}")
    worst = max(float((got[n] - theirs[n]).abs().max()) for n in got)
    lost = max(float((got[n] - before[n]).abs().max()) for n in got)
    whose = f"transformers {transformers.__version__} dequantises" if config else "was packed"
    print(
        f"{name} of {family}: {len(got)} tensors, largest difference from what {whose}, in "
        f"{dtype}, {worst:.1e} (allowed 0), from before packing {lost:.2f}"
    )
    return worst == 0 and lost > 0


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    architectures.add_arguments(parser)
    args = parser.parse_args()
    moe = architectures.Moe(args)
    good = [check(moe, name, args.tokenizer) for name in CASES]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
