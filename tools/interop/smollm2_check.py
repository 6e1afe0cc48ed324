#!/usr/bin/env python3
"""Compares `moe` with llama.cpp on the same files and the same tokens.

smollm2_check.py score   --bin MOE MODEL.gguf TEXT   perplexity of a GGUF file, and that both cut the
                                                     text into the same tokens
smollm2_check.py greedy  --bin MOE MODEL.gguf        32 tokens after each of five prompts
smollm2_check.py export  --bin MOE FOLDER TEXT       a model trained here, converted to several types:
                                                     llama.cpp runs them, with equal perplexity
smollm2_check.py adapter --bin MOE MODEL TEXT        an adapter trained here, as llama.cpp's --lora
smollm2_check.py read    --bin MOE MODEL TEXT        files of llama.cpp's quantiser in types that are
                                                     only read here: equal perplexity
smollm2_check.py quality --bin MOE MODEL TEXT        what quantising costs: our quantiser in our
                                                     engine, llama.cpp's in llama.cpp
"""

import argparse
import json
import math
import pathlib
import subprocess
import sys
import tempfile

import gguf
import numpy as np

import llama_engine

TOLERANCE = 0.005  # of perplexities, relative
GAP = 0.05  # of logits, where the greedy token may differ
CACHE = "f16"  # what llama.cpp keeps keys and values in
TOKENS = 32
PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "<|im_start|>user\nWhat is a mixture of experts?<|im_end|>\n<|im_start|>assistant\n",
    "def fibonacci(n):\n",
    "Water boils at 100 degrees Celsius because",
]


def moe(binary, *words):
    """The JSON object that a verb prints."""
    done = subprocess.run([binary, *map(str, words), "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(
            f"moe {' '.join(map(str, words))} ended with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}"
        )
    return json.loads(done.stdout)


def our_score(args, model, per_token=True, adapter=None):
    return moe(
        args.bin,
        "score",
        model,
        "--text",
        args.text,
        "--window",
        args.window,
        "--windows",
        args.windows,
        "--dtype",
        "f32",
        *(["--per-token"] if per_token else []),
        *(["--adapter", adapter] if adapter else []),
    )


def their_perplexity(args, model, ids, adapter=None):
    engine = llama_engine.Engine(model, args.window, adapter=adapter)
    windows = [ids[begin : begin + args.window] for begin in range(0, len(ids), args.window)]
    perplexity = engine.perplexity(windows)
    engine.close()
    return perplexity


def difference(ours, theirs):
    return (
        f"perplexity {ours:.4f} here, {theirs:.4f} in llama.cpp, {100 * (ours / theirs - 1):+.3f}%"
    )


def check_score(args):
    ours = our_score(args, args.model)
    engine = llama_engine.Engine(args.model, 8)
    theirs = engine.tokenize(pathlib.Path(args.text).read_bytes())[: len(ours["ids"])]
    engine.close()
    wrong = next((i for i, (a, b) in enumerate(zip(ours["ids"], theirs)) if a != b), None)
    if wrong is not None or len(theirs) != len(ours["ids"]):
        raise SystemExit(
            f"the texts are cut differently: from token {wrong} on {ours['ids'][wrong : wrong + 5]} here, {theirs[wrong : wrong + 5]} in llama.cpp"
        )
    reference = their_perplexity(args, args.model, ours["ids"])
    print(
        f"{ours['windows']} windows of {ours['window']}, {len(theirs)} equal ids: {difference(ours['perplexity'], reference)} "
        f"(allowed {100 * TOLERANCE}%)"
    )
    return abs(ours["perplexity"] / reference - 1) <= TOLERANCE


def gap_at(path, ids, ours):
    """How far llama.cpp's best token lies above ours after these ids, read in one piece."""
    engine = llama_engine.Engine(path, 256)
    logits = engine.next_logits(ids)
    engine.close()
    return float(logits.max() - logits[ours])


def first_partings(args, path):
    """For each prompt (prompt, its ids, our tokens up to and with the first that differs,
    llama.cpp's there or None, how far its logit lies above ours)."""
    engine = llama_engine.Engine(path, 256)
    for prompt in PROMPTS:
        ours = moe(
            args.bin,
            "generate",
            path,
            "-p",
            prompt,
            "-n",
            TOKENS,
            "--temperature",
            0,
            "--dtype",
            "f32",
            "--cache-dtype",
            CACHE,
        )
        found = prompt, ours["prompt_ids"], ours["ids"], None, 0.0
        logits = engine.next_logits(ours["prompt_ids"])
        for step, token in enumerate(ours["ids"]):
            best = int(logits.argmax())
            if token != best:
                found = (
                    prompt,
                    ours["prompt_ids"],
                    ours["ids"][: step + 1],
                    best,
                    float(logits[best] - logits[token]),
                )
                break
            logits = engine.extend(token)
        yield found
    engine.close()


def check_greedy(args):
    """The same weights as f16 must give llama.cpp's tokens but for ties. In the quantised file both
    engines round the rows of a product to 8 bits, each in its own way, and llama.cpp's own logits
    move by some tenths with the way a text is fed to it: there the gaps are printed, also with its
    text fed in one piece and with the weights as f16, and not judged; perplexity is."""
    good = True
    with tempfile.TemporaryDirectory() as work:
        plain = f"{work}/plain.gguf"
        convert(args, args.model, plain, "--dtype", "f16")
        for prompt, prompt_ids, ours, best, gap in first_partings(args, args.model):
            verdict = f"{len(ours)} tokens equal"
            if best is not None:
                ids = prompt_ids + ours[:-1]
                verdict = (
                    f"{len(ours) - 1} tokens equal, then {ours[-1]} here and {best} in llama.cpp; its logits are {gap:.4f} apart, fed in one piece "
                    f"{gap_at(args.model, ids, ours[-1]):.4f}, with weights of f16 {gap_at(plain, ids, ours[-1]):.4f}"
                )
            print(f"as it is, {prompt[:40]!r}: {verdict}", flush=True)
        for prompt, _, ours, best, gap in first_partings(args, plain):
            verdict = f"{len(ours)} tokens equal"
            if best is not None:
                verdict = f"{len(ours) - 1} tokens equal, then {ours[-1]} here and {best} in llama.cpp; its logits are {gap:.4f} apart (allowed {GAP})"
            good = good and gap < GAP
            print(f"as f16, {prompt[:40]!r}: {verdict}", flush=True)
    print(
        f"{len(PROMPTS)} prompts, {TOKENS} tokens each, as f16: {'equal' if good else 'DIFFERENT'} but for ties"
    )
    return good


def convert(args, source, target, *how):
    return moe(args.bin, "convert", source, target, *how)


def asked(name):
    return ["--dtype" if name in ("f32", "bf16", "f16") else "--quant", name]


def check_export(args):
    good = True
    with tempfile.TemporaryDirectory() as work:
        for name in args.types:
            path = f"{work}/{name}.gguf"
            account = convert(args, args.model, path, *asked(name))
            ours = our_score(args, path)
            theirs = their_perplexity(args, path, ours["ids"])
            good = good and abs(ours["perplexity"] / theirs - 1) <= TOLERANCE
            types = ", ".join(sorted({row["to"] for row in account["tensors"]}))
            print(f"{name} ({types}): {difference(ours['perplexity'], theirs)}")
    print(
        f"{', '.join(args.types)}: perplexities {'within' if good else 'NOT within'} {100 * TOLERANCE}% of llama.cpp's"
    )
    return good


def save_imatrix(args, base, path):
    measured = ["--calibration", args.calibration, "--windows", 48, "--window", min(args.window, 512)]
    convert(args, base, f"{path}.x.gguf", "--quant", "q4_0", *measured, "--save-imatrix", path)


def check_read(args):
    """Of each type the file that llama.cpp's quantiser makes with an importance matrix: both engines
    read it with the same perplexity."""
    good = True
    with tempfile.TemporaryDirectory() as work:
        base, imatrix, path = (f"{work}/{name}.gguf" for name in ("base", "imatrix", "quantised"))
        convert(args, args.model, base, "--dtype", args.base)
        save_imatrix(args, base, imatrix)
        for name in args.types:
            llama_engine.quantise(base, path, name, imatrix=imatrix)
            ours = our_score(args, path)
            theirs = their_perplexity(args, path, ours["ids"])
            good = good and abs(ours["perplexity"] / theirs - 1) <= TOLERANCE
            types = sorted({t.tensor_type.name for t in gguf.GGUFReader(path).tensors})
            print(
                f"{name} ({', '.join(types)}): {difference(ours['perplexity'], theirs)}", flush=True
            )
    print(
        f"{', '.join(args.types)}: perplexities {'within' if good else 'NOT within'} {100 * TOLERANCE}% of llama.cpp's"
    )
    return good


def check_adapter(args):
    """A run of `--tune lora` here, its adapter in llama.cpp's form on the same model's file there."""
    with tempfile.TemporaryDirectory() as work:
        words = f"train --tune lora --context 128 --batch 4 --steps {args.steps} --lr 2e-3 --no-report"
        moe(args.bin, *words.split(), "--from", args.model, "--data", args.text, "--out", f"{work}/a")
        moe(args.bin, "convert", f"{work}/a", f"{work}/a.gguf", "--adapter-only")
        path = args.model
        if not path.endswith(".gguf"):
            path = f"{work}/model.gguf"
            convert(args, args.model, path, "--dtype", "f32")
        before = our_score(args, path)
        ours = our_score(args, path, adapter=f"{work}/a.gguf")
        theirs = their_perplexity(args, path, ours["ids"], adapter=f"{work}/a.gguf")
    moved = abs(ours["perplexity"] / before["perplexity"] - 1)
    good = abs(ours["perplexity"] / theirs - 1) <= TOLERANCE and moved > 10 * TOLERANCE
    print(
        f"perplexity without the adapter {before['perplexity']:.4f}, with it"
        f" {difference(ours['perplexity'], theirs)} (allowed {100 * TOLERANCE}%)"
    )
    return good


def weight_error(path, truth):
    """Root of the mean square of what quantising changed, over the quantised tensors, relative to
    the numbers' own."""
    wrong = total = 0.0
    for tensor in gguf.GGUFReader(path).tensors:
        if tensor.tensor_type in (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16):
            continue
        got = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
        want = truth[tensor.name]
        wrong, total = wrong + float(((got - want) ** 2).sum()), total + float((want**2).sum())
    return math.sqrt(wrong / total)


def other_types(mine, other):
    """(name, type here, type there) of the tensors whose types the two quantisers chose
    differently."""
    here, there = (
        {t.name: t.tensor_type.name for t in gguf.GGUFReader(path).tensors}
        for path in (mine, other)
    )
    return [
        (name, here.get(name), there.get(name))
        for name in sorted(here | there)
        if here.get(name) != there.get(name)
    ]


def excess(args, mine, other):
    """By how many nats a token `mine` is worse than `other`, both in this engine, and the error of
    that: most of a window's loss is the same in both, so their differences say far more than two
    perplexities."""
    means = []
    for path in (mine, other):
        scored = our_score(args, path)
        # a window's first token has no prediction
        tokens = np.asarray([np.nan if x is None else -x for x in scored["logprobs"]])
        means.append(np.nanmean(tokens.reshape(-1, scored["window"]), axis=1))
    apart = means[0] - means[1]
    return float(apart.mean()), float(apart.std(ddof=1) / math.sqrt(len(apart)))


def check_quality(args):
    """Of each type: that it is given to the same tensors, and that our quantiser's file is no worse
    than llama.cpp's, both in this engine, by more than twice the error of their difference. Beside
    it the rise over each engine's own perplexity of the file that both start from."""
    good = True
    with tempfile.TemporaryDirectory() as work:
        base = f"{work}/base.gguf"
        convert(args, args.model, base, "--dtype", args.base)
        truth = {t.name: t.data.astype(np.float64) for t in gguf.GGUFReader(base).tensors}
        start = our_score(args, base)
        ours0, theirs0 = start["perplexity"], their_perplexity(args, base, start["ids"])
        print(f"{args.base}: {difference(ours0, theirs0)}")
        for name in args.types:
            mine, other = f"{work}/ours-{name}.gguf", f"{work}/theirs-{name}.gguf"
            convert(args, base, mine, *asked(name))
            llama_engine.quantise(base, other, name)
            differ = [
                f"{tensor}: {ours} here, {theirs} there"
                for tensor, ours, theirs in other_types(mine, other)
            ]
            good = good and not differ
            ours, theirs = (
                our_score(args, mine, False)["perplexity"],
                their_perplexity(args, other, start["ids"]),
            )
            rise, their_rise = ours / ours0 - 1, theirs / theirs0 - 1
            worse, error = excess(args, mine, other)
            good = good and worse <= 2 * error
            print(
                f"{name}: {ours:.4f} here, {theirs:.4f} in llama.cpp; rises {100 * rise:+.4f}% and {100 * their_rise:+.4f}%; "
                f"our file over llama.cpp's, both here, {worse:+.6f} nats a token, error {error:.6f}; "
                f"error of weights {weight_error(mine, truth):.6f} and {weight_error(other, truth):.6f}; "
                f"{len(differ)} tensors of another type{': ' if differ else ''}{'; '.join(differ[:5])}"
            )
    print(
        f"{', '.join(args.types)} are {'no worse' if good else 'WORSE'} than llama.cpp's"
    )
    return good


def check_calibrated(args):
    """Of each type: that the file whose errors were weighed by another text is better than the one
    that was not, and no worse than what llama.cpp's quantiser makes with the same importance
    matrix; all in this engine, by the differences of the windows and twice their error."""
    good = True
    with tempfile.TemporaryDirectory() as work:
        base, imatrix = f"{work}/base.gguf", f"{work}/imatrix.gguf"
        convert(args, args.model, base, "--dtype", args.base)
        save_imatrix(args, base, imatrix)
        start = our_score(args, base, False)["perplexity"]
        for name in args.types:
            plain, mine, other = (f"{work}/{kind}.gguf" for kind in ("plain", "mine", "other"))
            convert(args, base, plain, *asked(name))
            convert(args, base, mine, *asked(name), "--imatrix", imatrix)
            llama_engine.quantise(base, other, name, imatrix=imatrix)
            differ = other_types(mine, other)
            gain, gain_error = excess(args, mine, plain)
            worse, error = excess(args, mine, other)
            fine = not differ and gain < -2 * gain_error and worse <= 2 * error
            good = good and fine
            perplexities = [
                our_score(args, path, False)["perplexity"] for path in (plain, mine, other)
            ]
            print(
                f"{name}: {start:.4f} in {args.base}, {perplexities[0]:.4f} not calibrated, {perplexities[1]:.4f} calibrated "
                f"({gain:+.5f} nats a token, error {gain_error:.5f}), {perplexities[2]:.4f} by llama.cpp's quantiser "
                f"(ours {worse:+.5f}, error {error:.5f}); {len(differ)} tensors of another type"
                f"{'' if fine else ': NOT AS IT SHOULD BE'}",
                flush=True,
            )
    print(f"{', '.join(args.types)}: calibrating {'pays' if good else 'DOES NOT PAY'}")
    return good


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["score", "greedy", "export", "read", "quality", "calibrated", "adapter"])
    parser.add_argument("model")
    parser.add_argument("text", nargs="?")
    parser.add_argument("--bin", required=True)
    parser.add_argument("--window", type=int, default=2048)
    parser.add_argument("--windows", type=int, default=24)
    parser.add_argument("--types", nargs="+", default=["q8_0", "q5_0"])
    parser.add_argument("--steps", type=int, default=20, help="that an adapter is trained for")
    parser.add_argument("--base", default="f16", help="what is quantised")
    parser.add_argument("--calibration", help="the text that errors are weighed by")
    args = parser.parse_args()
    check = {
        "score": check_score,
        "greedy": check_greedy,
        "export": check_export,
        "read": check_read,
        "quality": check_quality,
        "calibrated": check_calibrated,
        "adapter": check_adapter,
    }[args.what]
    return 0 if check(args) else 1


if __name__ == "__main__":
    sys.exit(main())
