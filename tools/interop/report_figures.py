#!/usr/bin/env python3
"""Works the figures of `moe inspect MODEL --text ... --tokens 0 --json` out again: in NumPy from
the routing records of `moe score --record`, after the definitions of OLMoE (arXiv 2409.02060,
equations 5 to 8) and MaxVio (arXiv 2408.15664); and what a record does not hold (scores, likeliest
next ids) from transformers, f32. The largest difference of each figure is printed."""

import argparse
import json
import sys

import numpy as np
import torch
import transformers
from safetensors import safe_open
from transformers import AutoModelForCausalLM

EXACT = 1e-9  # counts in, doubles out
SCORES = 1e-5  # two programs' f32 forwards
PREDICTED = 5e-3  # an id or two at a near tie
LEAST_OCCURRENCES, LISTED = 10, 15


class Trace:
    """One domain's record. An entry e >= 0 was chosen and sent, -1 is no choice, -2 - e was chosen
    but not sent."""

    def __init__(self, path):
        with safe_open(path, framework="numpy") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}
        self.ids, self.bounds = tensors["ids"], tensors["bounds"]
        self.layers = sorted(
            int(name.split(".")[1]) for name in tensors if name.endswith(".experts")
        )
        self.experts = {l: tensors[f"layers.{l}.experts"] for l in self.layers}
        self.weights = {l: tensors[f"layers.{l}.weights"].astype(np.float64) for l in self.layers}
        self.next = np.append(self.ids[1:], -1)
        self.next[self.bounds[1:] - 1] = -1
        self.windows = list(zip(self.bounds[:-1], self.bounds[1:]))

    def chosen(self, layer, experts):
        """[N, E] of 0 and 1: the set of experts that each token chose."""
        entries = self.experts[layer]
        sets = np.zeros((len(entries), experts))
        for column in entries.T:
            expert = np.where(column < -1, -2 - column, column)
            tokens = np.flatnonzero(expert >= 0)
            sets[tokens, expert[tokens]] = 1
        return sets


def load_figures(traces, layer, experts):
    sets = [t.chosen(layer, experts) for t in traces]
    everything = np.concatenate(sets)
    tokens_of = everything.sum(0)
    load = tokens_of / tokens_of.sum()
    sent_weight, sent, lost = np.zeros(experts), 0, []
    for t in traces:
        entries = t.experts[layer]
        np.add.at(sent_weight, entries[entries >= 0], t.weights[layer][entries >= 0])
        sent += (entries >= 0).sum()
        lost.append((entries >= 0).sum(1) == 0)
    window_loads = [s[a:b].sum(0) for t, s in zip(traces, sets) for a, b in t.windows]
    entropy = -sum(q * np.log(q) for q in load if q > 0)
    together = everything.T @ everything
    return {
        "counts": tokens_of,
        "load": load,
        "mass": sent_weight / sent_weight.sum(),
        "max_vio": (tokens_of.max() - tokens_of.mean()) / tokens_of.mean(),
        "max_vio_batch": np.mean(
            [(w.max() - w.mean()) / w.mean() for w in window_loads if w.sum() > 0]
        ),
        "cv2": (tokens_of.std() / tokens_of.mean()) ** 2,
        "load_entropy": entropy / np.log(experts),
        "effective_experts": np.exp(entropy),
        "dead": (tokens_of < 0.01 * tokens_of.mean()).sum(),
        "dropped": 1 - sent / tokens_of.sum(),
        "unrouted": np.concatenate(lost).mean(),
        "domain": np.stack([s.mean(0) for s in sets]),  # equation 7: N_(e,D) / N_D
        "coactivation": np.divide(
            together, tokens_of[:, None], out=np.zeros_like(together), where=tokens_of[:, None] > 0
        ),  # equation 6: N_ij / N_i
    }


def specialisation(ids, sets):
    """Equation 8 as OLMoE's script averages it: for each id its most frequent expert's share of the
    occurrences, all ids weighing the same."""
    values = []
    for v in np.unique(ids[ids >= 0]):
        chosen = sets[ids == v]
        values.append((chosen.sum(0) / len(chosen)).max())
    return float(np.mean(values))


def favourites(ids, sets, experts):
    lists = [[] for _ in range(experts)]
    for v in np.unique(ids):
        chosen = sets[ids == v]
        counts = chosen.sum(0)
        if len(chosen) >= LEAST_OCCURRENCES and counts.max() > 0:
            lists[int(counts.argmax())].append((counts.max() / len(chosen), len(chosen), int(v)))
    return [
        [
            (v, n, share)
            for share, n, v in sorted(items, key=lambda x: (-x[0], -x[1], x[2]))[:LISTED]
        ]
        for items in lists
    ]


def saturation(now, before):
    """Equation 5: mean over tokens of |E(t) and E(T)| / k."""
    return float(((now * before).sum(1) / now.sum(1)).mean())


def score_figures(model, traces):
    """What a record does not hold: per layer the mean entropy over ln E, margin and largest of the
    softmax scores; and the likeliest next ids of each domain."""
    k, layers = model.config.num_experts_per_tok, model.config.num_hidden_layers
    sums, tokens, predicted = np.zeros((layers, 3)), 0, []
    for t in traces:
        ids = []
        for a, b in t.windows:
            with torch.no_grad():
                out = model(
                    torch.from_numpy(t.ids[a:b].astype(np.int64))[None],
                    use_cache=False,
                    output_router_logits=True,
                )
            ids.append(out.logits[0].argmax(-1).numpy())
            tokens += b - a
            for layer, logits in enumerate(out.router_logits):
                scores = logits.reshape(b - a, -1).double()
                # Newer versions give probabilities under this name; the logarithms of those are
                # logits too.
                if bool((scores >= 0).all() and ((scores.sum(-1) - 1).abs() < 1e-4).all()):
                    scores = scores.log()
                p = scores.softmax(-1).numpy()
                ranked = np.sort(p, -1)[:, ::-1]
                entropy = -(p * np.log(p)).sum(-1) / np.log(p.shape[1])
                sums[layer] += (
                    entropy.sum(),
                    (ranked[:, k - 1] - ranked[:, k]).sum(),
                    ranked[:, 0].sum(),
                )
        predicted.append(np.concatenate(ids))
    return sums / tokens, np.concatenate(predicted)


class Differences:
    def __init__(self):
        self.largest, self.allowed = {}, {}

    def add(self, name, ours, theirs, allowed=EXACT):
        ours, theirs = np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
        gap = (
            float(np.abs(ours - theirs).max(initial=0))
            if ours.shape == theirs.shape
            else float("inf")
        )
        self.largest[name] = max(self.largest.get(name, 0), gap)
        self.allowed[name] = allowed

    def report(self):
        for name, gap in self.largest.items():
            print(f"{name:<22}{gap:.1e} (allowed {self.allowed[name]:.0e})")
        return [name for name, gap in self.largest.items() if not gap <= self.allowed[name]]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="model folder, olmoe")
    parser.add_argument("report", help="what `moe inspect --json` printed")
    parser.add_argument(
        "records", nargs="+", help="routing records of its domains, in the report's order"
    )
    parser.add_argument(
        "--earlier", nargs="+", help="those of the checkpoint it was held --against"
    )
    args = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with open(args.report, encoding="utf-8") as file:
        report = json.load(file)["routing"]
    model = AutoModelForCausalLM.from_pretrained(
        args.model, dtype=torch.float32, local_files_only=True
    ).eval()
    traces = [Trace(path) for path in args.records]
    before = [Trace(path) for path in args.earlier or []]
    experts = report["experts"]
    differences = Differences()
    differences.add(
        "tokens", [d["tokens"] for d in report["domains"]], [len(t.ids) for t in traces]
    )
    scores, predicted = score_figures(model, traces)
    ids, following = (
        np.concatenate([t.ids for t in traces]),
        np.concatenate([t.next for t in traces]),
    )
    for place, stats in enumerate(report["moe_layers"]):
        layer = stats["layer"]
        for name, value in load_figures(traces, layer, experts).items():
            differences.add(name, stats[name], value)
        sets = np.concatenate([t.chosen(layer, experts) for t in traces])
        differences.add("vocabulary_input", stats["vocabulary_input"], specialisation(ids, sets))
        differences.add(
            "vocabulary_target", stats["vocabulary_target"], specialisation(following, sets)
        )
        differences.add(
            "vocabulary_predicted",
            stats["vocabulary_predicted"],
            specialisation(predicted, sets),
            PREDICTED,
        )
        for ours, theirs in zip(stats["favourites"], favourites(ids, sets, experts)):
            differences.add(
                "favourites", [(t["id"], t["occurrences"], t["share"]) for t in ours], theirs
            )
        if before:
            differences.add(
                "saturation",
                stats["saturation"],
                saturation(sets, np.concatenate([t.chosen(layer, experts) for t in before])),
            )
        for name, value in zip(("router_entropy", "margin", "top_score"), scores[place]):
            differences.add(name, stats[name], value, SCORES)
    wrong = differences.report()
    print(
        f"{len(ids)} tokens of {len(traces)} domains, {len(report['moe_layers'])} layers: {len(differences.largest)} figures"
        + (f", WRONG: {', '.join(wrong)}" if wrong else " alike")
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
