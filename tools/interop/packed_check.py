#!/usr/bin/env python3
"""Folders whose weights stand in few bits, MXFP4 as gpt-oss was published in and FP8 in blocks as
DeepSeek-V3 was: what `moe convert --dtype` makes of them are, number for number, the weights that
transformers dequantises. Called by scripts/interop.sh; takes the options of architectures.py.
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


def is_expert(name, x):
    return name.endswith(("gate_up_proj", "experts.down_proj"))


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
# The family, its matrices that are packed, how, what config.json and transformers are told, and in
# what type they are compared: FP8 is read as bf16.
CASES = {
    "mxfp4": (
        "gpt_oss",
        is_expert,
        mxfp4,
        {"quant_method": "mxfp4", "modules_to_not_convert": ["model.embed_tokens", "lm_head"]},
        transformers.Mxfp4Config(dequantize=True),
        "f32",
    ),
    "fp8": ("qwen3_moe", is_projection, fp8, *FP8),
    "fp8_of_qwen": ("qwen3_moe", is_projection, fp8_of_qwen, *FP8),
}


def write_packed(source, folder, wanted, pack, told):
    os.makedirs(folder, exist_ok=True)
    tensors = {}
    for name, x in load_file(os.path.join(source, "model.safetensors")).items():
        tensors |= pack(name, x.float()) if wanted(name, x) else {name: x}
    save_file(tensors, os.path.join(folder, "model.safetensors"), {"format": "pt"})
    with open(os.path.join(source, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump({**config, "quantization_config": told}, file, indent=2)
    shutil.copy(os.path.join(source, "tokenizer.json"), folder)


def check(moe, name, tokenizer):
    family, wanted, pack, told, config, dtype = CASES[name]
    plain, packed, ours = (os.path.join(moe.work, f"{name}-{what}") for what in "abc")
    architectures.write(family, plain, tokenizer, llama=True)
    write_packed(plain, packed, wanted, pack, told)
    moe.run("convert", packed, ours, "--dtype", dtype)
    load = transformers.AutoModelForCausalLM.from_pretrained
    how = dict(dtype=torch.float32, local_files_only=True)
    # What it multiplies is f32; as that is stored here.
    theirs = {
        n: x.to(architectures.DTYPES[dtype]).float()
        for n, x in load(packed, quantization_config=config, **how).state_dict().items()
    }
    got, before = load(ours, **how).state_dict(), load(plain, **how).state_dict()
    if sorted(got) != sorted(theirs):
        raise SystemExit(f"{name}: other tensors: {sorted(set(got) ^ set(theirs))[:4]}")
    worst = max(float((got[n] - theirs[n]).abs().max()) for n in got)
    lost = max(float((got[n] - before[n]).abs().max()) for n in got)
    print(
        f"{name} of {family}: {len(got)} tensors, largest difference from what transformers "
        f"{transformers.__version__} dequantises, in {dtype}, {worst:.1e} (allowed 0), from before "
        f"packing {lost:.2f}"
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
