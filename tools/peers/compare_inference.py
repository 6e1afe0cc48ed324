#!/usr/bin/env python3
"""`moe bench MODEL` against llama.cpp, ik_llama.cpp and transformers on the same model files, in
turn within one run: prompts of one or several lengths, then tokens one by one behind each.

Models: MoE shapes with random weights (model_files.py) in BF16, Q8_0, Q4_0 or llama.cpp's mixes, and
SmolLM2-135M. transformers runs the bf16 weights of the same numbers. Each pair runs ours and then
the peer, the next pair the other way round; a pair's figure is the median of its repeats. Prints
for each model, length and peer ours, theirs and ours / theirs: the median over pairs and the worst, and the
shares of what the machine could do that `moe bench` measured in its runs. Above 1 is faster than
the peer. Run it on a quiet machine. bench/compare_inference.sh installs the peers and calls this.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
PARTS = ("prompt", "decode")
MADE = ("bf16", "q8_0", "q4_0", "mxfp4", "iq3_xxs", "iq2_xs")  # by model_files.py
CONVERTED = ("q6_k", "q5_k_m", "q4_k_m", "q3_k_m", "q2_k", "iq4_xs")  # by `moe convert`, of bf16


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", default="build/release/moe")
    parser.add_argument("--llama-python", required=True, help="python that has llama_cpp and gguf")
    parser.add_argument(
        "--peers-python", help="python that has transformers; without it only llama.cpp is compared"
    )
    parser.add_argument(
        "--shapes",
        nargs="*",
        choices=("olmoe", "qwen3moe", "gpt-oss", "deepseek2", "qwen3next"),
        default=["olmoe", "qwen3moe"],
    )
    parser.add_argument(
        "--formats",
        nargs="*",
        choices=MADE + CONVERTED,
        default=["bf16", "q8_0", "q4_0"],
        help="mxfp4, iq3_xxs, iq2_xs: experts in that, the rest in Q8_0; "
        + ", ".join(CONVERTED)
        + ": llama.cpp's mixes, by `moe convert`",
    )
    parser.add_argument(
        "--smollm2", help="SmolLM2's GGUF file, compared too, with prompts of --small-prompt"
    )
    for name, value in (("prompt", 512), ("small-prompt", 256)):
        parser.add_argument(
            "--" + name, type=int, nargs="+", default=[value], help="tokens; several lengths may follow"
        )
    for name, value in (
        ("tokens", 64),
        ("threads", 2),
        ("pairs", 3),
        ("repeats", 2),
        ("layers", 4),
    ):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument(
        "--llama-bench",
        metavar="PATH",
        help="one more peer: the llama-bench of ik_llama.cpp, built by hand; it must know -gp",
    )
    parser.add_argument(
        "--llama-bench-flags",
        default="-rtr 1 -fmoe 1 -fa 1",
        help="what it is given beside model, threads and lengths (default: %(default)s)",
    )
    parser.add_argument(
        "--work", help="where the model files are made, 15 GB; default: a temporary folder"
    )
    parser.add_argument(
        "--keep", action="store_true", help="leave the model files there, and use those that are"
    )
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


class Peer:
    """A program of this folder that has loaded the model and waits to be asked."""

    def __init__(self, python, script, model, args, prompt):
        self.command = [
            python,
            os.path.join(HERE, script),
            model,
            "--threads",
            str(args.threads),
            "--prompt",
            str(prompt),
            "--tokens",
            str(args.tokens),
        ]
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.about = self._read()

    def _read(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(
                f"{' '.join(self.command)} ended with status {self.process.wait()}: {self.process.stderr.read()[-500:]}"
            )
        return json.loads(line)

    def run(self, repeats):
        runs = []
        for _ in range(repeats):
            self.process.stdin.write("run\n")
            self.process.stdin.flush()
            runs.append(self._read())
        return {part: statistics.median(r[part + "_seconds"] for r in runs) for part in PARTS}

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class BenchPeer:
    """llama-bench, which loads the model anew in every turn, as `moe bench` does."""

    def __init__(self, args, model, prompt):
        self.prompt, self.tokens = prompt, args.tokens
        self.command = [args.llama_bench, "-m", model, "-t", str(args.threads), "-o", "json"]
        self.command += ["-p", str(prompt), "-n", "0", "-gp", f"{prompt},{args.tokens}"]
        self.command += args.llama_bench_flags.split()

    def run(self, repeats):
        command = [*self.command, "-r", str(repeats)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(
                f"{' '.join(command)}: status {done.returncode}: {done.stderr[-500:]}"
            )
        prompt, decode = json.loads(done.stdout[done.stdout.index("[") :])
        return {
            "prompt": self.prompt / prompt["avg_ts"],
            "decode": self.tokens / decode["avg_ts"],
        }

    def close(self):
        pass


def run_ours(args, model, prompt):
    command = [
        args.bin,
        "bench",
        model,
        "--prompt",
        str(prompt),
        "--tokens",
        str(args.tokens),
        "--threads",
        str(args.threads),
        "--repeats",
        str(args.repeats),
        "--json",
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: status {done.returncode}")
    (length,) = json.loads(done.stdout)["lengths"]
    return {
        **length,
        **{
            part: statistics.median(length[part + "_tokens_per_second"]["seconds"])
            for part in PARTS
        },
    }


def compare(args, name, model, peer_name, peer, prompt):
    pairs = []
    for pair in range(args.pairs):
        turn = {}
        for who in ("ours", "theirs") if pair % 2 == 0 else ("theirs", "ours"):
            turn[who] = run_ours(args, model, prompt) if who == "ours" else peer.run(args.repeats)
        pairs.append(turn)
    rows = []
    for part, tokens, share in (
        ("prompt", prompt, "share_of_peak"),
        ("decode", args.tokens, "share_of_read_rate"),
    ):
        ratios = [p["theirs"][part] / p["ours"][part] for p in pairs]
        rows.append(
            {
                "model": name,
                "peer": peer_name,
                "part": part,
                "prompt": prompt,
                "ours": statistics.median(tokens / p["ours"][part] for p in pairs),
                "theirs": statistics.median(tokens / p["theirs"][part] for p in pairs),
                "ratio_median": statistics.median(ratios),
                "ratio_worst": min(ratios),
                "share": statistics.median(p["ours"][share] for p in pairs),
                "share_of": share[len("share_of_") :],
            }
        )
    return rows


def show(row, file):
    print(
        f"{row['model']:<15} {row['part']:<7} {row['prompt']:>6} {row['peer']:<13} ours {row['ours']:8.1f}  theirs {row['theirs']:8.1f} tokens/s  "
        f"ours / theirs {row['ratio_median']:5.2f}, worst {row['ratio_worst']:5.2f}  {100 * row['share']:5.1f}% of the {row['share_of'].replace('_', ' ')}",
        file=file,
        flush=True,
    )


def path_of(work, shape, fmt):
    return os.path.join(work, f"{shape}-{fmt}" + ("" if fmt == "hf" else ".gguf"))


def model_file(args, work, shape, fmt):
    path = path_of(work, shape, fmt)
    if not os.path.exists(path) and fmt in CONVERTED:
        whole = model_file(args, work, shape, "bf16")
        command = [args.bin, "convert", whole, path, "--quant", fmt]
        subprocess.run(command, check=True, capture_output=True)
    elif not os.path.exists(path):
        subprocess.run(
            [
                args.llama_python,
                os.path.join(HERE, "model_files.py"),
                "--shape",
                shape,
                "--formats",
                fmt,
                "--layers",
                str(args.layers),
                "--out",
                work,
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )
    return path


def remove(args, path):
    if args.keep:
        return
    shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)


def compare_one(args, log, name, model, folder, prompts):
    """folder: the same weights for transformers, or None"""
    rows = []
    for prompt in prompts:
        peers = {
            "llama.cpp": lambda: Peer(args.llama_python, "llama_peer.py", model, args, prompt)
        }
        if args.llama_bench:
            peers["ik_llama.cpp"] = lambda: BenchPeer(args, model, prompt)
        if folder:
            peers["transformers"] = lambda: Peer(
                args.peers_python, "transformers_peer.py", folder, args, prompt
            )
        for peer_name, make in peers.items():
            peer = make()
            try:
                rows += compare(args, name, model, peer_name, peer, prompt)
            finally:
                peer.close()
            for row in rows[-len(PARTS) :]:
                show(row, log)
    return rows


def compare_all(args, work, log):
    rows = []
    for shape in args.shapes:
        whole = path_of(work, shape, "bf16")  # of which the mixes are made
        for fmt in args.formats:
            model = model_file(args, work, shape, fmt)
            folder = None
            if fmt == "bf16" and args.peers_python and shape in ("olmoe", "qwen3moe"):
                folder = model_file(args, work, shape, "hf")
            rows += compare_one(args, log, f"{shape} {fmt}", model, folder, args.prompt)
            for path in filter(None, (model, folder)):
                if path != whole:
                    remove(args, path)
        if os.path.exists(whole):
            remove(args, whole)
    if args.smollm2:
        rows += compare_one(args, log, "smollm2", args.smollm2, None, args.small_prompt)
    return rows


def main():
    args = arguments()
    if not os.access(args.bin, os.X_OK):
        raise SystemExit(f"{args.bin} is not built; set --bin")
    log = sys.stderr if args.json else sys.stdout
    load = os.getloadavg()[0]
    print(
        f"prompts of {args.prompt} ({args.small_prompt} for smollm2), {args.tokens} tokens, {args.threads} threads, {args.pairs} pairs; "
        f"load average before: {load:.2f}",
        file=log,
        flush=True,
    )
    if args.work:
        os.makedirs(args.work, exist_ok=True)
        rows = compare_all(args, args.work, log)
    else:
        with tempfile.TemporaryDirectory(prefix="moe-compare-") as work:
            rows = compare_all(args, work, log)
    if args.json:
        print(json.dumps({"load_before": load, "rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
