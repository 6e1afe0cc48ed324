"""Seconds of a step that `moe plan` estimates against those that `mpirun moe train` takes, on this
machine: scripts/plan_check.sh runs it. What a process and the network reach is measured first, with
one model; the layouts that are then estimated are those of other models and shapes.

    plan_check.py MOE TEXT WORK [PROCESSES]

Prints a line for each layout, and ends with status 1 where one is off by more than 15%.
"""

import json
import os
import statistics
import subprocess
import sys

STEPS, FIRST = 14, 4  # the first ones pack weights and open connections
CALIBRATION = ("olmoe-mini", 4, 256)
SHAPES = [("olmoe-mini", 2, 256), ("olmoe-mini", 8, 128), ("deepseekmoe-mini", 4, 256)]
DTYPE = "bf16"


def run(words):
    done = subprocess.run(words, capture_output=True, text=True, env=ENVIRONMENT)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}:\n{done.stderr}")
    return done.stdout


def values(text):
    """The JSON objects that processes printed one behind the other."""
    decoder, found = json.JSONDecoder(), []
    while text := text.lstrip():
        value, end = decoder.raw_decode(text)
        found.append(value)
        text = text[end:]
    return found


def mpirun(*words):
    return ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(PROCESSES), MOE, *words]


def shape(preset, batch, context):
    words = ["--preset", preset, "--batch", str(batch), "--context", str(context)]
    return words + ["--dtype", DTYPE]


def imbalance(steps, spread):
    """Rows of the process with most over the mean, less 1: the mean of steps and layers."""
    found = []
    for step in steps:
        for layer in step["layers"]:
            load, share = layer["load"], []
            for p in range(spread):
                first, last = p * len(load) // spread, (p + 1) * len(load) // spread
                share.append(sum(load[first:last]))
            found.append(max(0.0, max(share) * spread - 1))  # loads add up to 1 but for rounding
    return statistics.fmean(found)


def measured(name, words, spread):
    out = os.path.join(WORK, name)
    run(
        mpirun("train", "--data", TEXT, "--out", out, "--steps", str(STEPS), "--no-report")
        + ["--threads", "1", "--accumulate", str(PROCESSES), "--expert-parallel", str(spread)]
        + words
    )
    with open(os.path.join(out, "metrics.jsonl")) as lines:
        steps = [json.loads(line) for line in lines]
    seconds = [b["seconds"] - a["seconds"] for a, b in zip(steps[FIRST - 1 :], steps[FIRST:])]
    return statistics.median(seconds), imbalance(steps[FIRST:], spread)


def main():
    # As many at a time as will train: each prints what it reached while the others worked too.
    trained = values(
        run(mpirun("bench", "train", *shape(*CALIBRATION), "--threads", "1", "--json"))
    )
    flops = statistics.fmean(one["peak_flops"] for one in trained)
    reached = statistics.fmean(one["share_of_peak"] for one in trained)
    read = values(run(mpirun("bench", "peak", "--threads", "1", "--json")))
    read = statistics.fmean(one["read_bytes_per_second"] for one in read)
    network = values(run(mpirun("bench", "network", "--json")))[0]
    rates = [
        *("--flops", f"{flops:.4g}", "--reached", f"{reached:.4g}", "--read", f"{read:.4g}"),
        *("--network", f"{network['bytes_per_second'] / 1e9:.4g}"),
        *("--latency", f"{network['latency_seconds'] * 1e6:.4g}"),
    ]
    print("measured:", " ".join(rates))
    worst = 0
    for number, one in enumerate(SHAPES):
        for spread in [s for s in (1, 2, 4) if PROCESSES % s == 0]:
            words = shape(*one)
            took, more = measured(f"{number}-{spread}", words, spread)
            plan = values(
                run(
                    [MOE, "plan", *words, *rates, "--processes", str(PROCESSES)]
                    + ["--imbalance", f"{more:.4g}", "--json"]
                )
            )[0]
            layout = [x for x in plan["layouts"] if x["expert_parallel"] == spread][0]
            off = layout["step_seconds"] / took - 1
            worst = max(worst, abs(off))
            parts = ", ".join(
                f"{part} {1e3 * layout[part + '_seconds']:.0f}"
                for part in ("compute", "waiting", "update", "gradients", "rows")
            )
            print(
                f"{one[0]}, {one[1]} x {one[2]}, {PROCESSES} processes, experts over {spread}: "
                f"{1e3 * took:.0f} ms, estimated {1e3 * layout['step_seconds']:.0f} "
                f"({100 * off:+.1f}%): {parts}; imbalance {more:.2f}",
                flush=True,
            )
    print(f"largest difference {100 * worst:.1f}%")
    return 1 if worst > 0.15 else 0


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    MOE, TEXT, WORK = sys.argv[1:4]
    PROCESSES = int(sys.argv[4]) if len(sys.argv) > 4 else 2
    ENVIRONMENT = os.environ | {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    sys.exit(main())
