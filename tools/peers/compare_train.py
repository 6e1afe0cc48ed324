#!/usr/bin/env python3
"""Training step of `moe bench train` against transformers' OLMoE, or with --dense its Llama
(transformers_train.py), in turn within one run, same shape and threads.

Each pair runs ours and then the peer, the next pair the other way round; a pair's figure is the
median of its steps. Prints every pair, the medians, and ours / peer: the median over pairs and the
worst. Under 1 is faster than the peer. Run it on a quiet machine: OpenMP threads spin while they
wait, and where something else takes a core a step can last ten times as long; the load before the
run is printed for that reason.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
SHAPE = (
    ("layers", 6),
    ("width", 384),
    ("heads", 6),
    ("experts", 8),
    ("top-k", 2),
    ("expert-width", 1024),
    ("context", 256),
    ("batch", 8),
)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", default="build/release/moe")
    for name, value in SHAPE + (("threads", 2), ("pairs", 5), ("steps", 3)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--dtype", choices=("f32", "bf16"), default="f32")
    parser.add_argument(
        "--peer-dtype",
        choices=("f32", "bf16", "bf16-pure"),
        help="default: that of --dtype (bf16 = autocast)",
    )
    parser.add_argument(
        "--experts-implementation", choices=("grouped_mm", "eager"), default="grouped_mm"
    )
    parser.add_argument(
        "--dense",
        action="store_true",
        help="both a Llama whose FFN is as wide as the chosen experts together",
    )
    parser.add_argument("--compile", action="store_true", help="torch.compile the peer")
    parser.add_argument(
        "--at-most", type=float, help="exit 1 when the median ratio ours / peer is above this"
    )
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def shape_of(args, leave_out=()):
    """The words that say the shape to either program."""
    return [
        word
        for name, _ in SHAPE
        if name not in leave_out
        for word in ("--" + name, str(getattr(args, name.replace("-", "_"))))
    ]


class Peer:
    """transformers_train.py, running and waiting to be asked for steps."""

    def __init__(self, args):
        command = [
            sys.executable,
            os.path.join(HERE, "transformers_train.py"),
            *shape_of(args),
            "--threads",
            str(args.threads),
            "--dtype",
            args.peer_dtype or args.dtype,
            "--experts-implementation",
            args.experts_implementation,
        ]
        command += [
            flag
            for flag, wanted in (("--dense", args.dense), ("--compile", args.compile))
            if wanted
        ]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.about = self._read()

    def _read(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the peer ended with status {self.process.wait()}")
        return json.loads(line)

    def step(self):
        self.process.stdin.write("step\n")
        self.process.stdin.flush()
        return self._read()["ms"]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def our_steps(args):
    command = [
        args.bin,
        "bench",
        "train",
        "--dtype",
        args.dtype,
        "--steps",
        str(args.steps),
        "--json",
        "--threads",
        str(args.threads),
    ]
    if args.dense:
        command += [
            "--recipe",
            "dense",
            "--architecture",
            "llama",
            "--dense-width",
            str(args.top_k * args.expert_width),
        ]
        command += shape_of(args, leave_out=("experts", "top-k", "expert-width"))
    else:
        command += ["--recipe", "olmoe", *shape_of(args)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: status {done.returncode}")
    return json.loads(done.stdout)["ms_per_step"]


def main():
    args = arguments()
    if not os.access(args.bin, os.X_OK):
        raise SystemExit(f"{args.bin} is not built; set --bin")
    load = os.getloadavg()[0]
    peer = Peer(args)
    ours, theirs = [], []
    log = sys.stderr if args.json else sys.stdout
    print(f"peer: {json.dumps(peer.about)}; load average before: {load:.2f}", file=log, flush=True)
    for pair in range(args.pairs):

        def run_ours():
            ours.append(statistics.median(our_steps(args)))

        def run_peer():
            theirs.append(statistics.median(peer.step() for _ in range(args.steps)))

        for run in (run_ours, run_peer) if pair % 2 == 0 else (run_peer, run_ours):
            run()
        print(
            f"pair {pair + 1}: ours {ours[-1]:8.1f} ms  peer {theirs[-1]:8.1f} ms  ours / peer {ours[-1] / theirs[-1]:.3f}",
            file=log,
            flush=True,
        )
    peer.close()
    ratios = [a / b for a, b in zip(ours, theirs)]
    result = {
        "dtype": args.dtype,
        "peer": peer.about,
        "load_before": load,
        "ours_ms": statistics.median(ours),
        "peer_ms": statistics.median(theirs),
        "ratio_median": round(statistics.median(ratios), 4),
        "ratio_worst": round(max(ratios), 4),
        "pairs": [list(p) for p in zip(ours, theirs)],
    }
    if args.json:
        print(json.dumps(result))
    else:
        print(
            f"medians: ours {result['ours_ms']:.1f} ms, peer {result['peer_ms']:.1f} ms; "
            f"ours / peer {result['ratio_median']:.3f}, worst {result['ratio_worst']:.3f}"
        )
    return 1 if args.at_most is not None and result["ratio_median"] > args.at_most else 0


if __name__ == "__main__":
    sys.exit(main())
