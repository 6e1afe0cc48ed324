"""Routing worked in plain Python doubles, for tests of the router and of `moe route`: routing.json.

Each case: recipe, top_k, logits [T][E], optional noise (added to the logits), capacity_factor or capacity; and the answer: experts and
weights [T][k] in choice order (weights as they are before a drop), kept [T][k], counts [E] (before drops), capacity (null = dropless), balance
in the recipe's own convention, balance_canonical (uniform = 1), z, max_vio. Ties go to the lower index.
"""
import math
import os
import random

import common

# recipes.md section E: worked there by hand, asserted below.
WORKED = [[2, 1, 0, -1], [1.5, 1.5, 0.5, 0], [3, -1, 2, 0], [0.2, 0.1, 0, 2.2]]


def softmax(values):
    top = max(values)
    powers = [math.exp(v - top) for v in values]
    total = sum(powers)
    return [p / total for p in powers]


def logsumexp(values):
    top = max(values)
    return top + math.log(sum(math.exp(v - top) for v in values))


def best(values, k):
    return sorted(range(len(values)), key=lambda e: (-values[e], e))[:k]


def capacity_of(recipe, tokens, experts, k, factor):
    """nanomoe: max(4, floor(k f T/E) made even); switch: max(4, min(T, trunc(f T/E))); the others drop nothing."""
    if recipe == "nanomoe":
        c = math.floor(k * factor * tokens / experts)
        return max(4, c + c % 2)
    if recipe == "switch":
        return max(4, min(tokens, int(factor * tokens / experts)))
    return None


def keep_choice_major(experts, experts_count, capacity):
    """All first choices in token order, then all second choices; a pair stays while its expert has room."""
    kept = [[1] * len(row) for row in experts]
    if capacity is not None:
        used = [0] * experts_count
        for choice in range(len(experts[0])):
            for token, row in enumerate(experts):
                kept[token][choice] = int(used[row[choice]] < capacity)
                used[row[choice]] += 1
    return kept


def balance_of(recipe, k, counts, experts, weights, full):
    """(own convention, canonical). counts of top-k choices (switch: k = 1); p full except nanomoe's, masked to the choice."""
    tokens, width = len(full), len(full[0])
    if recipe == "nanomoe":
        mean = [0.0] * width
        for row, chosen in zip(weights, experts):
            for w, e in zip(row, chosen):
                mean[e] += w / tokens
    else:
        mean = [sum(row[e] for row in full) / tokens for e in range(width)]
    multi_hot = width * sum(c / tokens * m for c, m in zip(counts, mean))  # k when uniform
    return (multi_hot if recipe in ("nanomoe", "mixtral") else multi_hot / k), multi_hot / k


def route(name, recipe, logits, k, noise=None, factor=None, capacity=None):
    case = {"name": name, "recipe": recipe, "top_k": k, "logits": logits}
    if noise is not None:
        case["noise"] = noise
        logits = [[a + b for a, b in zip(x, y)] for x, y in zip(logits, noise)]
    if factor is not None:
        case["capacity_factor"] = factor
        capacity = capacity_of(recipe, len(logits), len(logits[0]), k, factor)
    elif capacity is not None:
        case["capacity_given"] = capacity
    full = [softmax(row) for row in logits]
    experts = [best(row, k) for row in logits]
    if recipe in ("nanomoe", "mixtral"):
        weights = [softmax([row[e] for e in chosen]) for row, chosen in zip(logits, experts)]
    else:  # olmoe, switch: the probability itself; dense: one expert, whose probability is 1
        weights = [[row[e] for e in chosen] for row, chosen in zip(full, experts)]
    counts = [sum(chosen.count(e) for chosen in experts) for e in range(len(logits[0]))]
    kept = keep_choice_major(experts, len(counts), capacity)
    own, canonical = balance_of(recipe, k, counts, experts, weights, full)
    mean = sum(counts) / len(counts)
    case.update(experts=experts, weights=[[common.number(w) for w in row] for row in weights], kept=kept, counts=counts, capacity=capacity,
                dropped=sum(1 - flag for row in kept for flag in row), balance=common.number(own), balance_canonical=common.number(canonical),
                z=common.number(sum(logsumexp(row) ** 2 for row in logits) / len(logits)), max_vio=common.number((max(counts) - mean) / mean))
    return case


def draw(seed, tokens, experts, skew=0.0):
    """Logits on a grid of 1/64, exact in f32 and in decimal; skew leans them to the low experts so that capacity binds."""
    rng = random.Random(seed)
    return [[round(64 * (rng.gauss(0, 1.5) - skew * e)) / 64 for e in range(experts)] for _ in range(tokens)]


def assert_worked(cases):
    by_name = {c["name"]: c for c in cases}

    def near(case, key, want):
        assert abs(by_name[case][key] - want) < 1e-6, (case, key, by_name[case][key], want)

    near("worked olmoe", "balance", 1.275060)
    near("worked mixtral", "balance", 2.550119)
    near("worked nanomoe", "balance", 2.753225)
    near("worked switch", "balance", 1.589734)
    near("worked olmoe", "z", 7.397051)
    near("worked olmoe", "max_vio", 1.0)
    assert by_name["worked olmoe"]["experts"] == [[0, 1], [0, 1], [0, 2], [3, 0]] and by_name["worked olmoe"]["counts"] == [4, 2, 1, 1]
    assert by_name["worked capacity 2"]["kept"] == [[1, 1], [1, 1], [0, 1], [1, 0]]
    assert by_name["choice-major"]["kept"] == [[1, 0], [1, 0]]
    assert by_name["nanomoe even capacity"]["capacity"] == 32 and by_name["nanomoe even capacity"]["dropped"] > 0


def make_all(folder):
    noise = [[round(64 * random.Random(90 + t * 8 + e).gauss(0, 0.7)) / 64 for e in range(8)] for t in range(24)]
    cases = [
        route("worked olmoe", "olmoe", WORKED, 2),
        route("worked mixtral", "mixtral", WORKED, 2),
        route("worked nanomoe", "nanomoe", WORKED, 2, factor=2.0),
        route("worked switch", "switch", WORKED, 1, factor=1.25),
        route("worked capacity 2", "nanomoe", WORKED, 2, capacity=2),
        route("choice-major", "nanomoe", [[2, 1], [1, 2]], 2, capacity=1),
        route("dense", "dense", [[0.0]] * 5, 1),
        route("olmoe 8 of 16", "olmoe", draw(1, 24, 16), 8),
        route("mixtral 2 of 8", "mixtral", draw(2, 24, 8), 2),
        route("mixtral all of 4", "mixtral", draw(3, 6, 4), 4),
        route("nanomoe drops", "nanomoe", draw(4, 24, 8, skew=0.4), 2, factor=1.25),
        route("nanomoe noise", "nanomoe", draw(5, 24, 8), 2, noise=noise, factor=1.0),
        route("nanomoe even capacity", "nanomoe", draw(6, 100, 8, skew=0.3), 2, factor=1.25),
        route("switch drops", "switch", draw(7, 48, 4, skew=0.5), 1, factor=1.25),
        route("ties", "olmoe", [[1.0] * 6] * 3 + [[0.5, 0.75, 0.75, 0.5, 0.75, 0.5]], 3),
        route("large logits", "mixtral", [[300.0, 299.0, -300.0, 0.0], [-500.0, -501.5, -500.25, -502.0]], 2),
    ]
    assert_worked(cases)
    with open(os.path.join(folder, "routing.json"), "w", encoding="utf-8") as out:
        out.write(common.dump({"cases": cases}))
