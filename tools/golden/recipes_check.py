#!/usr/bin/env python3
"""Routes the same random cases by `moe route` and by the oracles of routing_cases.py, and compares:
experts, kept, counts, dropped and capacity exactly; weights, losses, metrics and every gradient
within 2e-5 of the norm. One line a row; fails on any difference.

    recipes_check.py --bin build/release/moe [--cases 200] [--rows switch,gshard] [--seed 1] [--jobs
    2]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

import torch

from routing_cases import EXACT, largest_difference, make_case
from routing_rows import ROWS

TOLERANCE = 2e-5
FLAGS = {
    "recipe": "--recipe",
    "top_k": "--top-k",
    "capacity_factor": "--capacity-factor",
    "expert_groups": "--expert-groups",
    "groups_kept": "--groups-kept",
    "routed_scale": "--routed-scaling-factor",
    "experts": "--experts",
    "eval": "--eval",
    "norm_topk_prob": "--norm-topk-prob",
    "balance_over": "--balance-over",
}
GROUPS = {
    "weights": ("weights",),
    "losses": ("balance", "z", "device", "communication", "importance", "load"),
    "metrics": ("max_vio", "cv2", "entropy"),
    "dlogits": ("dlogits", "dclean", "dsigma", "dscale"),
    "dx": ("dx", "dweight", "dup_weight", "dlogit_bias", "dnoise_weight"),
}


def command(binary, options, stages, folder):
    line = [binary, "route"]
    for name, value in options.items():
        line += [FLAGS[name], str(value).lower()]
    if stages is not None:
        path = os.path.join(folder, "stages.json")
        with open(path, "w", encoding="utf-8") as out:
            json.dump(stages, out)
        line += ["--stages", path]
    return line


def routed(binary, options, stages, inputs):
    """The replies of one process to all inputs that share their options."""
    with tempfile.TemporaryDirectory(prefix="moe-route-") as folder:
        path = os.path.join(folder, "cases.json")
        with open(path, "w", encoding="utf-8") as out:
            json.dump({"cases": inputs}, out)
        line = command(binary, options, stages, folder) + ["--logits", path, "--json"]
        done = subprocess.run(
            line,
            capture_output=True,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=False,
        )
        if done.returncode != 0:
            return None, " ".join(line) + "\n" + done.stderr.strip()
        return json.loads(done.stdout)["cases"], ""


def compare(case, got):
    """({group: largest difference}, what is wrong)."""
    want, worst, wrong = case["want"], {group: 0.0 for group in GROUPS}, []
    for name in EXACT:
        if got.get(name) != want[name]:
            wrong.append(f"{name} {got.get(name)}, expected {want[name]}")
    for group, names in GROUPS.items():
        for name in names:
            if (name in got) != (name in want):
                wrong.append(f"{name} {'replied' if name in got else 'missing'}")
            elif name in want:
                value = largest_difference(got[name], want[name])
                worst[group] = max(worst[group], value)
                if not value <= TOLERANCE:
                    wrong.append(f"{name} differs by {value:.1e}")
    extra = set(got) - set(want)
    if extra:
        wrong.append(f"unknown {sorted(extra)}")
    return worst, wrong


def check_row(row, binary, cases, seed):
    torch.set_num_threads(1)
    batches, peers, corners = {}, 0, Counter()
    for index in range(cases):
        case = make_case(row, index, seed)
        peers += case["peer"]
        corners.update(corners_of(case))
        batches.setdefault(json.dumps([case["options"], case["stages"]]), []).append(case)
    worst, wrong = {group: 0.0 for group in GROUPS}, []
    for group in batches.values():
        replies, error = routed(
            binary, group[0]["options"], group[0]["stages"], [case["input"] for case in group]
        )
        if replies is None or len(replies) != len(group):
            wrong.append((group[0]["name"], [error or "not as many replies as cases"]))
            continue
        for case, got in zip(group, replies):
            found, faults = compare(case, got)
            worst = {name: max(value, found[name]) for name, value in worst.items()}
            if faults:
                wrong.append((case["name"], faults))
    return row, cases, peers, corners, worst, wrong


def corners_of(case):
    """The corners that the case does reach, whatever was asked of it."""
    want, given = case["want"], case["input"]
    tokens, counts = len(want["experts"]), want["counts"]
    rows = given.get("logits") or given.get("x") or []
    return [
        name
        for name, there in {
            "T=1": tokens == 1,
            "K=E": all(len(row) == len(counts) for row in want["experts"]),
            "idle expert": 0 in counts,
            "equal logits": any(len(set(row)) < len(row) for row in given.get("logits", [])),
            "equal tokens": len({tuple(r) for r in rows}) < len(rows),
            "drops": want["dropped"] > 0,
            "no room": want["capacity"] == 0,
            "sequences": len(given.get("sequences", [0])) > 1,
            "draws": "draw" in given,
            "x": "x" in given,
        }.items()
        if there
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default="build/release/moe")
    parser.add_argument("--cases", type=int, default=200, help="of each row")
    parser.add_argument("--rows", help="names, separated by commas; default all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    rows = args.rows.split(",") if args.rows else list(ROWS)
    failed, total = 0, 0
    with ProcessPoolExecutor(args.jobs) as pool:
        for row, cases, peers, corners, worst, wrong in pool.map(
            check_row, rows, *([v] * len(rows) for v in (args.bin, args.cases, args.seed))
        ):
            total, failed = total + cases, failed + len(wrong)
            shown = "  ".join(f"{name} {value:.0e}" for name, value in worst.items())
            print(
                f"{'same' if not wrong else 'DIFFERENT'}  {row:19} {cases} cases, {peers} by transformers  {shown}",
                flush=True,
            )
            print(
                f"      {'':19} " + ", ".join(f"{name} {count}" for name, count in corners.items()),
                flush=True,
            )
            for name, faults in wrong[:8]:
                print(f"      {name}: {'; '.join(faults)[:1500]}", flush=True)
    print(f"{total - failed} of {total} routings by moe route equal the oracles'")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
