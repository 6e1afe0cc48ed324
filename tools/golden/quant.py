"""Golden blocks of GGUF's formats, by the gguf package (whose simple quantisers equal ggml's
reference byte for byte): quant.json.

"rows" are f32 rows of 256 numbers, each with what is hard about it; "quantised" what gguf makes of
them; "blocks" drawn bytes with what gguf reads out of them, the K formats too, which it reads but
does not make. All as hexadecimal of little-endian memory, so that equal means equal bits.
"""

import os

import gguf
import numpy as np

import common

WIDTH = 256
MADE = ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"]
READ = MADE + ["Q4_K", "Q5_K", "Q6_K", "MXFP4", "IQ4_NL", "IQ4_XS", "Q3_K", "Q2_K"]
READ += ["IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "TQ1_0", "TQ2_0"]
HALVES = {
    "Q8_0": [0],
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
    "IQ4_NL": [0],
    "IQ4_XS": [0],
    "Q3_K": [108],
    "Q2_K": [80, 82],
    "IQ1_S": [0],
    "IQ2_XXS": [0],
    "IQ2_XS": [0],
    "IQ2_S": [0],
    "IQ3_XXS": [0],
    "IQ3_S": [0],
    "TQ1_0": [52],
    "TQ2_0": [64],
}  # bytes of a block
SEED = 20


def rows():
    """One dictionary a row: name, x [256]."""
    rng = np.random.default_rng(SEED)
    draw = lambda: rng.standard_normal(WIDTH)
    outlier = draw() * 0.02
    outlier[::37] = 30
    negative = -np.abs(draw())
    steps = (rng.integers(-16, 17, WIDTH) / 16) * 0.5  # ties of every format
    steps[::32] = -0.5
    some_zero = draw()
    some_zero[:96] = 0
    made = {
        "normal": draw(),
        "weights": draw() * 0.02,
        "outlier": outlier,
        "negative": negative,
        "offset": draw() * 0.1 + 5,
        "ties": steps,
        "zero": np.zeros(WIDTH),
        "some zero": some_zero,
        "constant": np.full(WIDTH, 0.7),
        "subnormal scale": draw() * 1e-6,
        "vanishing": draw() * 1e-9,
        "large": draw() * 3e4,
        "beyond half": draw() * 1e8,
        "heavy": rng.standard_cauchy(WIDTH),
    }
    return [{"name": name, "x": x.astype(np.float32)} for name, x in made.items()]


def drawn_blocks(name):
    """Two rows of bytes: any bytes, but scales that are finite halves of either sign, subnormal
    ones among them."""
    rng = np.random.default_rng(SEED + READ.index(name))
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    count = 2 * WIDTH // block
    data = rng.integers(0, 256, (count, size), dtype=np.uint8)
    if name in ("F16", "BF16"):
        data[:, 1] &= 0xBB  # no exponent of ones
    if name == "MXFP4":
        data[:, 0] = rng.integers(90, 150, count)  # exponents
        data[:3, 0] = 0, 1, 2
    if name == "IQ1_M":  # the last four bits of d are the highest
        data[:, 55] = data[:, 55] & 0x8F | 0x20
    for at in HALVES.get(name, []):
        exponent = rng.integers(-8, 4, count)
        exponent[0] = -22
        halves = (rng.choice([-1.0, 1.0], count) * rng.uniform(1, 2, count) * 2.0**exponent).astype(
            np.float16
        )
        data[:, at : at + 2] = halves.view(np.uint8).reshape(count, 2)
    return data.reshape(2, -1)


def make_all(folder):
    """Writes quant.json."""
    cases = rows()
    stacked = np.stack([row["x"] for row in cases])
    quantised, blocks = [], []
    with np.errstate(over="ignore", invalid="ignore"):
        for name in [*MADE, "MXFP4"]:
            kind = gguf.GGMLQuantizationType[name]
            made = gguf.quants.quantize(stacked, kind)
            quantised += [
                {"dtype": name.lower(), "row": row["name"], "bytes": made[i].tobytes().hex()}
                for i, row in enumerate(cases)
            ]
        for name in READ:
            data = drawn_blocks(name)
            out = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[name]).astype(np.float32)
            assert np.isfinite(out).all()
            blocks.append(
                {"dtype": name.lower(), "bytes": data.tobytes().hex(), "x": out.tobytes().hex()}
            )
    meta = {
        "made_with": f"gguf {gguf_version()}",
        "rows": [{"name": row["name"], "x": row["x"].tobytes().hex()} for row in cases],
        "quantised": quantised,
        "blocks": blocks,
    }
    with open(os.path.join(folder, "quant.json"), "w", encoding="utf-8") as out:
        out.write(common.dump(meta))


def gguf_version():
    from importlib.metadata import version

    return version("gguf")
