"""Routing worked in float64 torch from the papers' formulas (docs/recipes.md), for the golden cases
and the live comparison with `moe route`.

`answer(spec, case)` takes the stages in the JSON form of `moe recipes --json` (complete_spec fills
in what is left out) and one input of `moe route`; it gives the command's reply, with "dlogits" and
so on from autograd over the formulas, everything discrete being a constant. Numbers stay Python
floats of full precision. Ties: higher score first, then the lower index.

A near tie, which f32 could decide otherwise, raises NearTie with the tokens to draw again. An exact
tie is wanted and allowed where the two values come from the same numbers by the same steps, which
their `origin` tells: the same logit (and bias) of one token, or equal rows.
"""

import math
from fractions import Fraction

import torch
from torch.nn import functional as F

import philox
from routing_logits import Logits, NearTie, double

MARGIN = 1e-3
RENORM_FLOOR = 1e-20

DEFAULTS = {
    "none": {},
    "jitter": {"eps": 1e-2},
    "learned": {"floor": 0.0},
    "linear": {"bias": False},
    "analytic": {"fixed": False},
    "softmax": {},
    "sigmoid": {},
    "raw": {},
    "sqrt_softplus": {},
    "top_k": {"bias": None, "sorted": True},
    "grouped_top_k": {"groups": 1, "keep": 1, "group_top": 1, "bias": None},
    "expert_choice": {"factor": 2.0, "scope": "micro_batch"},
    "threshold_choice": {},
    "hash": {"map": "random", "seed": 0},
    "near_best": {"eps": 0.01, "draw": True},
    "scores": {"renormalise": "never", "scale": 1.0},
    "token_softmax": {},
    "one": {},
    "one_plus_scaled": {},
    "scaled_scores": {},
    "near_softmax": {"eps": 0.01},
    "sigmoids": {"renormalise": False},
    "all": {},
    "threshold": {"least": 0.2, "relative": False},
    "random": {"full": 0.5},
    "dropless": {},
    "buffer": {
        "factor": 1.25,
        "count_choices": True,
        "rounding": "floor",
        "minimum": 4,
        "at_most_tokens": False,
        "order": "choice_major",
        "scope": "micro_batch",
        "skipped_take_room": False,
    },
}
STAGES = {
    "noise": "none",
    "logits": "linear",
    "score": "softmax",
    "select": "top_k",
    "weigh": "scores",
    "second": "all",
    "capacity": "dropless",
}
LOSSES = {
    "balance": {
        "counts": "all_choices",
        "probs": "scores",
        "scope": "micro_batch",
        "shares": "own",
    },
    "device": {"devices": 1, "at_most": 1, "scope": "micro_batch"},
    "communication": {"devices": 1, "at_most": 1, "scope": "micro_batch"},
}


def complete_spec(given):
    """Every stage as {"type": ..., every parameter}; losses as objects."""
    spec = {}
    for stage, usual in STAGES.items():
        value = given.get(stage, usual)
        value = {"type": value} if isinstance(value, str) else dict(value)
        name = (
            "threshold_choice"
            if stage == "select" and value["type"] == "threshold"
            else value["type"]
        )
        spec[stage] = {**DEFAULTS[name], **value}
    losses = {}
    for name, value in given.get("losses", {}).items():
        if value is False or value is None:
            continue
        losses[name] = {**LOSSES[name], **value} if name in LOSSES else True
    spec["losses"] = losses
    return spec


def settled(values):
    """Numbers to decide by: equal inputs may differ in the last bit, where a vector loop and its
    remainder round differently."""
    return [settled(v) for v in values] if isinstance(values, list) else float(f"{values:.12g}")


# ---- near ties
# ----------------------------------------------------------------------------------------------------------------------------


def check_gap(a, b, what):
    """a, b: (value, origin, token)."""
    if a[1] != b[1] and abs(a[0] - b[0]) < MARGIN * max(abs(a[0]), abs(b[0]), 1e-3):
        raise NearTie({a[2], b[2]}, what)


def ranked(entries, what, first=None):
    """Indices of entries [(value, origin, token)] by falling value, then index; the order of the
    `first` first ones must be sure."""
    order = sorted(range(len(entries)), key=lambda i: (-entries[i][0], i))
    tied = False
    for at, (i, j) in enumerate(zip(order, order[1:])):
        if first is None or at < first or tied:
            check_gap(entries[i], entries[j], what)
            tied = entries[i][0] == entries[j][0]
    return order


def first_of(entries, count, what):
    """Indices of the `count` first; only who is in must be sure."""
    order = sorted(range(len(entries)), key=lambda i: (-entries[i][0], i))
    for i in order[:count]:
        for j in order[count:]:
            check_gap(entries[i], entries[j], what)
    return order[:count]


# ---- scopes
# -------------------------------------------------------------------------------------------------------------------------------


def scopes_of(scope, sequences, tokens):
    """[(begin, end)]: the whole micro-batch, every sequence, or groups of so many tokens."""
    if scope == "micro_batch":
        return [(0, tokens)]
    lengths = (
        sequences if scope == "sequence" else [scope["group"]] * (-(-tokens // scope["group"]))
    )
    ends = [min(sum(lengths[: i + 1]), tokens) for i in range(len(lengths))]
    return list(zip([0] + ends[:-1], ends))


# ---- select
# -------------------------------------------------------------------------------------------------------------------------------


def top_k(spec, scores, bias, k, origins):
    """[N][k]: DeepSeek-V3 eq. 16 (bias), DeepSeek-V2 sec. 2.2.2 (groups; members of other groups
    are -inf)."""
    rows = []
    for n, row in enumerate(scores):
        entries = [(s + b, (o, b), n) for s, b, o in zip(row, bias, origins[n])]
        allowed = list(range(len(row)))
        if spec["type"] == "grouped_top_k":
            size, groups = len(row) // spec["groups"], []
            for g in range(spec["groups"]):
                best = sorted(entries[g * size : (g + 1) * size], key=lambda entry: -entry[0])
                best_now = best[: spec["group_top"]]
                groups.append(
                    (sum(entry[0] for entry in best_now), tuple(entry[1] for entry in best_now), n)
                )
            kept = first_of(groups, spec["keep"], "groups")
            allowed = [e for e in allowed if e // size in kept]
        order = ranked([entries[e] for e in allowed], "scores", k)
        chosen = [allowed[i] for i in order[:k]]
        rows.append(chosen if spec.get("sorted", True) else sorted(chosen))
    return rows


def expert_choice(spec, scores, sequences, origins):
    """Sets of tokens for each expert, as rows [N] of chosen experts in falling score order, and the
    mean cutoff (Zhou et al. 2022, sec. 3.2)."""
    tokens, experts = len(scores), len(scores[0])
    taken = [set() for _ in range(tokens)]
    for begin, end in scopes_of(spec["scope"], sequences, tokens):
        n = end - begin
        count = max(1, min(n, math.floor(Fraction(str(spec["factor"])) * n / experts)))
        for e in range(experts):
            entries = [
                (scores[t][e], (tuple(origins[t]), origins[t][e]), t) for t in range(begin, end)
            ]
            for i in first_of(entries, count, "cutoffs"):
                taken[begin + i].add(e)
    return by_score(scores, taken, origins)


def by_score(scores, taken, origins):
    rows = []
    for n, row in enumerate(scores):
        order = ranked([(s, o, n) for s, o in zip(row, origins[n])], "scores")
        rows.append([e for e in order if e in taken[n]])
    return rows


def threshold_choice(scores, threshold, origins):
    taken = []
    for n, row in enumerate(scores):
        for s, t in zip(row, threshold):
            check_gap((s, None, n), (t, "threshold", n), "thresholds")
        taken.append({e for e, (s, t) in enumerate(zip(row, threshold)) if s >= t})
    return by_score(scores, taken, origins)


def hash_choice(spec, ids, experts, k):
    """Roller et al. 2021: (id + i) mod E, or the first k of a permutation of the experts drawn from
    (seed, id)."""
    if spec["map"] == "modulo":
        return [[(token + i) % experts for i in range(k)] for token in ids]
    rows = []
    for token in ids:
        key, order = philox.fold(philox.from_seed(spec["seed"]), token), list(range(experts))
        for i in range(k):
            j = i + philox.uniform_index(key, i, experts - i)
            order[i], order[j] = order[j], order[i]
        rows.append(order[:k])
    return rows


def near_best(scores, left, eps, n, origins):
    """Of the experts `left` those near the best, by index, and the best one: (m - s) / max(|s|, m)
    is at most 2 eps (transformers:phimoe/modeling_phimoe.py, sparsemixer)."""
    best = left[ranked([(scores[e], origins[n][e], n) for e in left], "scores", 1)[0]]
    top, near = scores[best], []
    for e in left:
        over = max(abs(scores[e]), top)
        away = 0.0 if over == 0 else (top - scores[e]) / over
        if e != best:
            check_gap((away, None, n), (2 * eps, "eps", n), "near the best")
        if away <= 2 * eps:
            near.append(e)
    return near, best


def near_best_choice(spec, scores, k, key, origins):
    """[N][k]: choice by choice the best of what is left, or one drawn by the softmax of those near
    it (GRIN, arXiv 2409.12136, sec. 2.2)."""
    rows = []
    for n, row in enumerate(scores):
        left, chosen = list(range(len(row))), []
        while len(chosen) < k:
            near, e = near_best(row, left, spec["eps"], n, origins)
            if key is not None and spec["draw"]:
                u = philox.uniform(philox.fold(key, 3), n * k + len(chosen))
                total, sums = sum(math.exp(row[i] - row[e]) for i in near), 0.0
                for i in near:
                    sums += math.exp(row[i] - row[e]) / total
                    if i != near[-1]:
                        check_gap((sums, "sum", n), (u, "drawn", n), "draws")
                    if u < sums:
                        break
                e = i
            chosen.append(e)
            left.remove(e)
        rows.append(chosen)
    return rows


# ---- weigh
# --------------------------------------------------------------------------------------------------------------------------------


SCALED = {"one_plus_scaled": 0.0, "scaled_scores": 1.0}  # weighings with a learned factor: its first value


def near_softmax(spec, scores, rows, key, origins):
    """The softmax among those near the best, of each choice; a draw leaves a third of it of one that
    is not the best, of which the gradient knows nothing."""
    out = []
    for n, row in enumerate(rows):
        values, left, weights = settled(scores[n].tolist()), list(range(scores.shape[1])), []
        for i, e in enumerate(row):
            near, best = near_best(values, left, spec["eps"], n, origins)
            w = scores[n, near].softmax(0)[near.index(e)] if e in near else 0 * scores[n, e]
            if key is not None and e != best:
                if philox.uniform(philox.fold(key, 4), n * len(row) + i) < 0.75:
                    w = w - 2 / 3 * w.detach()
            weights.append(w)
            left.remove(e)
        out.append(torch.stack(weights))
    return out


def weigh(spec, scores, rows, sequences, scope, scale=None, key=None, origins=None):
    """One tensor of weights per token, before any drop; not yet divided where that happens after
    it. scale [E] of SCALED."""
    if spec["type"] == "near_softmax":
        return near_softmax(spec, scores, rows, key, origins)
    kind = spec["type"]
    if kind == "one":
        return [torch.ones(len(row), dtype=torch.float64) for row in rows]
    if kind == "token_softmax":
        dense = torch.zeros_like(scores)
        for begin, end in scopes_of(scope, sequences, len(rows)):
            for e in range(scores.shape[1]):
                tokens = [n for n in range(begin, end) if e in rows[n]]
                if tokens:
                    dense = dense.index_put(
                        (torch.tensor(tokens), torch.full((len(tokens),), e)),
                        scores[tokens, e].softmax(0),
                    )
        return [dense[n, row] for n, row in enumerate(rows)]
    weights = [scores[n, row] for n, row in enumerate(rows)]
    if kind == "one_plus_scaled":
        return [1 + scale[row] * w for row, w in zip(rows, weights)]
    if kind == "scaled_scores":
        return [
            scale[row] * w / (w.sum() + RENORM_FLOOR) for row, w in zip(rows, weights)
        ]
    if kind == "softmax":
        return [w.softmax(0) if len(w) else w for w in weights]
    if kind == "sigmoids":
        weights = [w.sigmoid() for w in weights]
        if spec["renormalise"]:
            weights = [w / (w.sum() + RENORM_FLOOR) for w in weights]
        return weights
    weights = [spec["scale"] * w for w in weights]
    if spec["renormalise"] == "before_drop":
        weights = [spec["scale"] * w / (w.sum() + RENORM_FLOOR) for w in weights]
    return weights


# ---- second choice and capacity
# -----------------------------------------------------------------------------------------------------------


def second_goes(spec, weights, n, key):
    """Whether the second choice of token n is sent."""
    first, second = settled(weights.tolist())
    if spec["type"] == "threshold":
        least = spec["least"] * (first if spec["relative"] else 1.0)
        check_gap((second, None, n), (least, "least", n), "second choices")
        return second >= least
    if spec["type"] == "random" and key is not None:
        drawn = philox.uniform(philox.fold(key, 1), n) * spec["full"]
        check_gap((second, None, n), (drawn, "drawn", n), "second choices")
        return drawn < second
    return True


def capacity_of(spec, tokens, experts, k):
    """Pairs an expert takes of a scope (recipes.md, table A17)."""
    exact = Fraction(str(spec["factor"])) * (k if spec["count_choices"] else 1) * tokens / experts
    c = math.floor(exact)
    if spec["rounding"] == "floor_to_even":
        c += c % 2
    elif spec["rounding"] == "ceil":
        c = math.ceil(exact)
    elif spec["rounding"] == "round":
        c = round(exact)
    if spec["at_most_tokens"]:
        c = min(c, tokens)
    return max(c, spec["minimum"])


def places(order, rows, weights, begin, end, key, origins):
    """(token, choice) of a scope in the order in which they ask for room."""
    tokens, widest = range(begin, end), max((len(rows[n]) for n in range(begin, end)), default=0)
    pairs = [(n, i) for n in tokens for i in range(len(rows[n]))]
    entries = {
        pair: (
            settled(weights[pair[0]][pair[1]].item()),
            (tuple(origins[pair[0]]), pair[1]),
            pair[0],
        )
        for pair in pairs
    }
    if order == "token_major":
        return pairs
    if order == "by_weight":
        # Only pairs that ask for the same expert compete.
        for e in {rows[n][i] for n, i in pairs}:
            ranked([entries[p] for p in pairs if rows[p[0]][p[1]] == e], "weights")
        return sorted(pairs, key=lambda p: (-entries[p][0], p))
    by_choice = {i: [n for n in tokens if i < len(rows[n])] for i in range(widest)}
    if order == "batch_priority":
        firsts = [entries[(n, 0)] for n in by_choice.get(0, [])]
        sequence = [begin + j for j in ranked(firsts, "first weights")]
        by_choice = {i: [n for n in sequence if n in by_choice[i]] for i in by_choice}
    elif order == "random" and key is not None:
        drawn = philox.fold(key, 2)
        by_choice = {
            i: sorted(by_choice[i], key=lambda n: (philox.uniform(drawn, i * len(rows) + n), n))
            for i in by_choice
        }
    return [(n, i) for i in range(widest) for n in by_choice[i]]


def keep(spec, rows, sent, weights, sequences, experts, k, key, origins):
    """kept [N][*] and the capacity of each scope (None: dropless)."""
    kept = [[bool(s) for s in row] for row in sent]
    if spec["type"] == "dropless":
        return kept, None
    capacities = []
    for begin, end in scopes_of(spec["scope"], sequences, len(rows)):
        capacity, used = capacity_of(spec, end - begin, experts, k), [0] * experts
        capacities.append(capacity)
        for n, i in places(spec["order"], rows, weights, begin, end, key, origins):
            if not sent[n][i] and not spec["skipped_take_room"]:
                continue
            kept[n][i] = sent[n][i] and used[rows[n][i]] < capacity
            used[rows[n][i]] += 1
    return kept, capacities


# ---- losses
# -------------------------------------------------------------------------------------------------------------------------------


def pair_counts(rows, experts):
    counts = [0] * experts
    for row in rows:
        for e in row:
            counts[e] += 1
    return counts


def balance_loss(spec, scores, weights, rows, k, sequences, step_counts, origins):
    """Table A18 in canonical form: E sum_e f_e P_e per scope, f_e the share of the counted choices,
    P_e the mean probability."""
    tokens, experts = scores.shape
    probs = scores
    if spec["probs"] == "chosen_weights":
        probs = torch.zeros_like(scores)
        for n, row in enumerate(rows):
            probs = probs.index_put(
                (torch.full((len(row),), n), torch.tensor(row, dtype=torch.long)), weights[n]
            )
    elif spec["probs"] == "normalised_scores":
        probs = scores / scores.sum(1, keepdim=True)
    elif spec["probs"] == "softmax":
        probs = scores.softmax(1)
    counted = rows
    if spec["counts"] == "first_choice":
        counted = [row[:1] for row in rows]
    elif spec["counts"] == "unbiased_choices":
        counted = top_k({"type": "top_k"}, settled(scores.tolist()), [0.0] * experts, k, origins)
    total = 0
    for begin, end in scopes_of(spec["scope"], sequences, tokens):
        counts = torch.tensor(pair_counts(counted[begin:end], experts), dtype=torch.float64)
        if spec["shares"] != "own" and step_counts:
            given = torch.tensor(step_counts, dtype=torch.float64)
            counts = given + counts if spec["shares"] == "running" else given
        total = (
            total
            + (end - begin) * experts * (counts / counts.sum() * probs[begin:end].mean(0)).sum()
        )
    return total / tokens


def device_loss(spec, scores, rows, sequences, communication):
    """DeepSeekMoE sec. 3.3 (device) and DeepSeek-V2 eq. 29-31 (communication), per scope,
    probabilities s / sum s."""
    tokens, experts = scores.shape
    size, total = experts // spec["devices"], 0
    probs = scores / scores.sum(1, keepdim=True)
    for begin, end in scopes_of(spec["scope"], sequences, tokens):
        n, load = end - begin, []
        counts = pair_counts(rows[begin:end], experts)
        for d in range(spec["devices"]):
            if communication:
                reached = sum(1 for row in rows[begin:end] if any(e // size == d for e in row))
                load.append(spec["devices"] / (spec["at_most"] * n) * reached)
            else:
                load.append(
                    sum(experts * c / sum(counts) for c in counts[d * size : (d + 1) * size]) / size
                )
        per_device = probs[begin:end].mean(0).reshape(spec["devices"], size).sum(1)
        total = total + n * (torch.tensor(load, dtype=torch.float64) * per_device).sum()
    return total / tokens


def cv_squared(v):
    """Shazeer et al. 2017: population variance over squared mean."""
    return ((v - v.mean()) ** 2).mean() / (v.mean() ** 2 + 1e-10)


def importance_loss(weights, rows, experts):
    mass = torch.zeros(experts, dtype=torch.float64)
    for row, w in zip(rows, weights):
        mass = mass.index_add(0, torch.tensor(row, dtype=torch.long), w)
    return cv_squared(mass)


def load_loss(noisy, clean, sigma, rows, k):
    """tensor2tensor's _prob_in_top_k: the chance of being chosen when one expert's noise is drawn
    again, through both thresholds."""
    tokens, experts = noisy.shape
    if sigma is None or k == experts:
        return cv_squared(torch.tensor(pair_counts(rows, experts), dtype=torch.float64))
    chance = []
    for n in range(tokens):
        order = sorted(range(experts), key=lambda e: (-noisy[n, e].item(), e))
        thr_in, thr_out = noisy[n, order[k]], noisy[n, order[k - 1]]
        inside = noisy[n].detach() > thr_in.detach()
        chance.append(
            torch.special.ndtr((clean[n] - torch.where(inside, thr_in, thr_out)) / sigma[n])
        )
    return cv_squared(torch.stack(chance).sum(0))


def z_loss(logits):
    return (torch.logsumexp(logits, 1) ** 2).mean()


# ---- the whole
# ----------------------------------------------------------------------------------------------------------------------------


def metrics(counts):
    if sum(counts) == 0:
        return {"max_vio": None, "cv2": None, "entropy": None}
    mean = sum(counts) / len(counts)
    shares = [c / sum(counts) for c in counts]
    return {
        "max_vio": max(counts) / mean - 1,
        "cv2": sum((c - mean) ** 2 for c in counts) / len(counts) / mean**2,
        "entropy": -sum(q * math.log(q) for q in shares if q > 0) / math.log(len(counts)),
    }


def answer(spec, case, k, experts=None):
    """The reply of `moe route`. k: choices of a token, not read where experts choose; experts: of
    hash routing, which no matrix tells."""
    spec = complete_spec(spec)
    select, losses = spec["select"], spec["losses"]
    key = philox.from_seed(case["seed"]) if case.get("draw") else None
    if select["type"] == "hash":
        return _hash_answer(spec, case, k, experts)
    z = Logits(spec, case, key)
    tokens, experts = z.noisy.shape
    sequences = case.get("sequences") or [tokens]
    kind = spec["score"]["type"]
    scores = {
        "softmax": lambda: z.noisy.softmax(1),
        "sigmoid": z.noisy.sigmoid,
        "raw": lambda: z.noisy,
        "sqrt_softplus": lambda: F.softplus(z.noisy, threshold=1000).sqrt(),
    }[kind]()
    values = settled(scores.tolist())
    origins = z.origins
    bias = case.get("bias") or [0.0] * experts
    scope = select.get("scope", "micro_batch")
    if select["type"] == "expert_choice":
        rows = expert_choice(select, values, sequences, origins)
    elif select["type"] == "threshold":
        rows = threshold_choice(values, case["threshold"], origins)
    elif select["type"] == "near_best":
        rows = near_best_choice(select, values, k, key, origins)
    else:
        rows = top_k(select, values, bias, k, origins)
    if losses.get("load") and k < experts:
        for n in range(tokens):
            ranked([(v, o, n) for v, o in zip(values[n], origins[n])], "load thresholds", k + 1)
    of_weights = {}
    if spec["weigh"]["type"] in SCALED:
        first = [SCALED[spec["weigh"]["type"]]] * experts
        of_weights["dscale"] = double(case.get("scale") or first).requires_grad_()
    weights = weigh(
        spec["weigh"], scores, rows, sequences, scope, of_weights.get("dscale"), key, origins
    )
    own = dict(scores=scores, rows=rows)
    value = {"z": z_loss(z.clean if losses.get("z_of_clean") else z.noisy)}
    if "balance" in losses:
        value["balance"] = balance_loss(
            losses["balance"],
            weights=weights,
            k=k,
            sequences=sequences,
            step_counts=case.get("step_counts"),
            origins=origins,
            **own,
        )
    if "device" in losses:
        value["device"] = device_loss(
            losses["device"], sequences=sequences, communication=False, **own
        )
    if "communication" in losses:
        value["communication"] = device_loss(
            losses["communication"], sequences=sequences, communication=True, **own
        )
    if losses.get("importance"):
        value["importance"] = importance_loss(weights, rows, experts)
    if losses.get("load"):
        value["load"] = load_loss(z.noisy, z.clean, z.sigma, rows, k)
    out = _place(spec, rows, weights, sequences, experts, k, key, origins)
    reply = {**out, **{name: float(v.detach()) for name, v in value.items()}}
    if "dweights" in case or "coef" in case:
        reply.update(z.gradients(_total(reply["returned"], case, value), of_weights))
    del reply["returned"]
    return reply


def _place(spec, rows, weights, sequences, experts, k, key, origins):
    """Second choice, capacity, and the weights as they are returned (a list of tensors under
    "returned")."""
    sent = [[True] * len(row) for row in rows]
    if spec["second"]["type"] != "all":
        for n, row in enumerate(rows):
            sent[n][1] = second_goes(spec["second"], weights[n], n, key)
    counts = pair_counts(
        [[e for e, s in zip(row, flags) if s] for row, flags in zip(rows, sent)], experts
    )
    kept, capacities = keep(
        spec["capacity"], rows, sent, weights, sequences, experts, k, key, origins
    )
    returned = []
    for w, flags in zip(weights, kept):
        w = w * torch.tensor(flags, dtype=torch.float64)
        if spec["weigh"].get("renormalise") == "after_drop":
            w = w / (w.sum() + RENORM_FLOOR)
        returned.append(w)
    capacity = capacities[0] if capacities and len(set(capacities)) == 1 else capacities
    return {
        "experts": rows,
        "weights": [w.tolist() for w in returned],
        "kept": kept,
        "counts": counts,
        "dropped": sum(map(sum, sent)) - sum(map(sum, kept)),
        "capacity": capacity,
        **metrics(counts),
        "returned": returned,
    }


def _total(returned, case, value):
    total = double(0.0)
    if "dweights" in case:
        for w, dw in zip(returned, case["dweights"]):
            total = total + (w * double(dw)).sum()
    for name, coef in case.get("coef", {}).items():
        total = total + coef * value[name]
    return total


def _hash_answer(spec, case, k, experts):
    rows = hash_choice(spec["select"], case["ids"], experts, k)
    weights = weigh(spec["weigh"], None, rows, [len(rows)], "micro_batch")
    reply = _place(
        spec,
        rows,
        weights,
        case.get("sequences") or [len(rows)],
        experts,
        k,
        None,
        [[(n,)] for n in range(len(rows))],
    )
    del reply["returned"]
    return reply
