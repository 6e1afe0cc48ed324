"""Draws routing cases: for every row the corners one after the other (FEATURES) and random ones
between. Numbers lie on binary grids, so that the logits, and products of x and weights, are exact
in f32 and equal logits stay equal; a near tie is drawn again, token by token.

A case: name, row, options (of `moe route`: recipe, top_k, ...), stages or None, input, want (the
reply of routing_formulas, or of transformers' module where the row has one), peer (whether it was).
"""

import random

from routing_formulas import SCALED, NearTie, answer, complete_spec
from routing_peers import by_transformers
from routing_rows import (
    EXPERTS_CHOOSE,
    FIXED_K,
    GROUPED,
    HAS_BALANCE,
    HAS_CAPACITY,
    OPEN_NORM,
    OVER,
    RENORMALISED,
    SCALED,
    stages_of,
)

FEATURES = [
    "plain",
    "all tied",
    "one token",
    "every expert",
    "no room",
    "all room",
    "sequences",
    "x",
    "dead experts",
    "many experts",
    "some tied",
    "equal tokens",
    "skewed",
    "draws",
    "losses only",
    "weights only",
]
EXPERTS = [2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16]
PEER_TOLERANCE = 1e-9


def grid(rng, spread, steps):
    return round(steps * rng.gauss(0, spread)) / steps


class Draw:
    """One attempt at a case."""

    def __init__(self, row, feature, rng, small):
        self.row, self.rng, self.small = row, rng, small
        self.features = {feature} | {
            f
            for f in FEATURES[1:]
            if rng.random() < 0.12
            and f not in ("losses only", "weights only", "no room", "all room")
        }
        self._sizes()
        self._options()
        self._input()

    def has(self, feature):
        return feature in self.features

    def _sizes(self):
        rng, row = self.rng, self.row
        self.tokens = (
            1
            if self.has("one token")
            else rng.randint(2, 20)
            if not self.small
            else rng.randint(4, 7)
        )
        self.experts = rng.choice(EXPERTS) if not self.small else rng.choice([4, 5, 6])
        if self.has("many experts") and not self.small:
            self.experts = rng.choice([24, 30, 60])
        self.least_k = 2 if row in RENORMALISED else 1
        self.groups, self.kept_groups = 1, 1
        if row in GROUPED:
            size = rng.randint(2, 5) if not self.small else 2
            self.groups = rng.randint(1, 4) if not self.small else rng.choice([2, 3])
            if self.has("many experts") and not self.small:
                self.groups = rng.choice([12, 15])
            self.experts = size * self.groups
            self.kept_groups = (
                self.groups if self.has("every expert") else rng.randint(1, self.groups)
            )
        most = self.kept_groups * (self.experts // self.groups)
        self.k = FIXED_K.get(row) or (
            most
            if self.has("every expert")
            else rng.randint(self.least_k, max(self.least_k, min(8, most)))
        )
        if row == "sparsemixer" and rng.random() < 0.5:
            self.k = 2  # as transformers' module
        if row in EXPERTS_CHOOSE:
            self.k = (
                self.experts if self.has("every expert") else rng.randint(1, min(4, self.experts))
            )
        if self.has("every expert") and row in FIXED_K:
            self.experts = max(2, self.k)

    def _options(self):
        rng = self.rng
        self.options = {"recipe": self.row, "top_k": self.k}
        if self.row == "hash":
            self.options["experts"] = self.experts
        if self.row in GROUPED:
            self.options.update(expert_groups=self.groups, groups_kept=self.kept_groups)
        if self.row in SCALED and rng.random() < 0.5:
            self.options["routed_scale"] = rng.choice([1.0, 2.5, 16.0])
        if self.row in HAS_CAPACITY and rng.random() < 0.6:
            self.options["capacity_factor"] = rng.choice([0.5, 1.0, 1.25, 1.5, 2.0])
        if self.row in EXPERTS_CHOOSE and rng.random() < 0.5:
            self.options["capacity_factor"] = rng.choice(
                [0.5, 1.0, 1.25, 1.5, 2.0, min(3.0, float(self.experts))]
            )
        if self.row in OPEN_NORM and self.k > 1 and rng.random() < 0.25:
            self.options["norm_topk_prob"] = True
        if self.row in HAS_BALANCE and rng.random() < 0.15:
            self.options["balance_over"] = rng.choice(list(OVER))
        if self.row != "custom" and rng.random() < 0.15:
            self.options["eval"] = (
                rng.choice(["dropless", "as-trained"])
                if self.row != "expert-choice"
                else "threshold"
            )
            if self.row == "expert-choice-notes":
                self.options["eval"] = "as-trained"
        self.stages = custom_stages(rng, self) if self.row == "custom" else None
        if self.row == "hash" and rng.random() < 0.3:
            self.stages = {"select": {"type": "hash", "map": "modulo"}, "weigh": "one"}
        experts_choose = (
            self.row in EXPERTS_CHOOSE
            or self.row == "custom"
            and self.stages["select"]["type"] == "expert_choice"
        )
        if (
            self.row != "hash"
            and not experts_choose
            and (self.has("no room") or self.has("all room"))
        ):
            self._capacity_of_its_own()
        if self.stages is not None:
            self.options = {"recipe": "custom", "top_k": self.k}
            if self.row == "hash":
                self.options["experts"] = self.experts
            if experts_choose:
                self.options["capacity_factor"] = self.stages["select"]["factor"]
        self.spec = complete_spec(
            self.stages if self.stages is not None else stages_of(self.row, self.options)
        )

    def _capacity_of_its_own(self):
        """No room at all, or no end of it: stages of the row with another buffer, since the rows
        have a minimum and no row drops everything."""
        spec = complete_spec(self.stages or stages_of(self.row, {**self.options, "eval": None}))
        usual = spec["capacity"] if spec["capacity"]["type"] == "buffer" else {"type": "buffer"}
        spec["capacity"] = (
            {**usual, "factor": 1e-6, "minimum": 0, "rounding": "floor"}
            if self.has("no room")
            else {**usual, "factor": 1e4}
        )
        self.stages = trimmed(spec)

    def logit_row(self):
        rng, e = self.rng, self.experts
        row = [grid(rng, 1.5, 64) for _ in range(e)]
        if self.has("skewed"):
            row = [v - 0.375 * i for i, v in enumerate(row)]
        if (
            self.has("dead experts") and e > 3
        ):  # never chosen, yet no softmax so near to 1 that its f32 gradient is rounding only
            row = [v - 6.0 * (i % 3 == 1) for i, v in enumerate(row)]
        if self.has("some tied") and rng.random() < 0.5:
            row = [rng.choice([0.5, 0.75, 1.0]) for _ in range(e)]
        return [0.25] * e if self.has("all tied") and rng.random() < 0.7 else row

    def x_row(self):
        return [grid(self.rng, 1.0, 32) for _ in range(self.width)]

    def _input(self):
        rng, row, spec = self.rng, self.row, self.spec
        self.input = {}
        if row == "hash":
            self.input["ids"] = [rng.choice([rng.randint(0, 50256), 7]) for _ in range(self.tokens)]
            return
        noise = spec["noise"]["type"]
        wants_x = self.has("x") or (self.has("draws") and noise != "none")
        if wants_x:
            self.width = 3 if self.small else rng.randint(3, 6)
            self.input["x"] = [self.x_row() for _ in range(self.tokens)]
            weight = [[grid(rng, 0.7, 32) for _ in range(self.width)] for _ in range(self.experts)]
            if (
                self.has("some tied") or self.has("all tied")
            ) and self.experts > 2:  # of two equal rows alone dx is exactly nothing
                weight[-1] = list(weight[0])
            self.input["weight"] = weight
            if noise == "learned":
                self.input["noise_weight"] = [
                    [grid(rng, 0.5, 32) for _ in range(self.width)] for _ in range(self.experts)
                ]
            self._more_of_x(spec["logits"])
        else:
            self.input["logits"] = [self.logit_row() for _ in range(self.tokens)]
        if self.has("equal tokens") and self.tokens > 2:
            rows = self.input.get("x") or self.input["logits"]
            for _ in range(self.tokens // 2):
                rows[rng.randrange(self.tokens)] = list(rows[rng.randrange(self.tokens)])
        self._chance(noise, wants_x)
        select = spec["select"]
        if spec["weigh"]["type"] in SCALED and rng.random() < 0.8:
            first = SCALED[spec["weigh"]["type"]]
            self.input["scale"] = [
                rng.choice([first + grid(rng, 0.5, 64), 0.0]) for _ in range(self.experts)
            ]
        if select.get("bias") and rng.random() < 0.8:
            self.input["bias"] = [
                rng.choice([grid(rng, 0.3, 64), 0.0, 0.25]) for _ in range(self.experts)
            ]
        if select["type"] == "threshold":
            self.input["threshold"] = [
                round(
                    64
                    * (
                        rng.uniform(0.1, 0.6)
                        if spec["score"]["type"] != "raw"
                        else rng.gauss(0.5, 0.5)
                    )
                )
                / 64
                for _ in range(self.experts)
            ]
        if (self.has("sequences") or rng.random() < 0.25) and self.tokens > 1:
            cuts = sorted(
                rng.sample(range(1, self.tokens), min(self.tokens - 1, rng.randint(1, 3)))
            )
            self.input["sequences"] = [b - a for a, b in zip([0] + cuts, cuts + [self.tokens])]
        if spec["losses"].get("balance", {}).get("shares", "own") != "own" and rng.random() < 0.6:
            self.input["step_counts"] = [rng.randint(0, 30) for _ in range(self.experts)]
            self.input["step_counts"][0] += 1
        names = [
            n
            for n in ("balance", "device", "communication", "importance", "load")
            if n in spec["losses"]
        ] + ["z"]
        if not self.has("weights only") and (self.has("losses only") or rng.random() < 0.6):
            self.input["coef"] = {
                n: round(64 * rng.uniform(0.02, 1.0)) / 64
                for n in names
                if self.has("losses only") or rng.random() < 0.8
            }
            if not self.input["coef"]:
                del self.input["coef"]

    def _more_of_x(self, stage):
        rng = self.rng
        if stage["type"] == "analytic" and rng.random() < 0.8:
            self.input["up_weight"] = [
                [grid(rng, 0.7, 32) for _ in range(self.width)] for _ in range(self.experts)
            ]
            if self.input["weight"][-1] == self.input["weight"][0]:
                self.input["up_weight"][-1] = list(self.input["up_weight"][0])
        if stage.get("bias") and rng.random() < 0.8:
            self.input["logit_bias"] = [grid(rng, 0.5, 32) for _ in range(self.experts)]
            if self.input["weight"][-1] == self.input["weight"][0]:
                self.input["logit_bias"][-1] = self.input["logit_bias"][0]

    def _chance(self, noise, wants_x):
        rng, shape = self.rng, (self.tokens, self.experts)
        drawn = self.has("draws") or rng.random() < 0.3
        if noise == "learned" and not (wants_x and drawn) and rng.random() < 0.7:
            self.input["noise"] = [
                [grid(rng, 1.0, 16) for _ in range(shape[1])] for _ in range(shape[0])
            ]
            if not wants_x and rng.random() < 0.8:
                self.input["sigma"] = [
                    [round(16 * rng.uniform(0.25, 1.5)) / 16 for _ in range(shape[1])]
                    for _ in range(shape[0])
                ]
        by_chance = (
            self.spec["second"]["type"] == "random"
            or self.spec["select"]["type"] == "near_best"
            or self.spec["capacity"].get("order") == "random"
        )
        if drawn and (wants_x and noise != "none" or noise == "none" and by_chance):
            self.input.update(draw=True, seed=rng.randint(1, 10**6))

    def redraw(self, tokens):
        for n in tokens:
            if "x" in self.input:
                self.input["x"][n] = self.x_row()
            else:
                self.input["logits"][n] = [grid(self.rng, 1.5, 64) for _ in range(self.experts)]

    def solved(self):
        """The answer, after as many redraws of tokens as it takes; None where it does not settle."""
        for _ in range(60):
            try:
                reply = answer(self.spec, self.input, self.k, self.experts)
            except NearTie as tie:
                self.redraw(tie.tokens)
                continue
            if self.row != "hash" and not self.has("losses only") and "dweights" not in self.input:
                self.input["dweights"] = [
                    [grid(self.rng, 1.0, 16) for _ in row] for row in reply["experts"]
                ]
                return answer(self.spec, self.input, self.k, self.experts)
            return reply
        return None


def trimmed(spec):
    """A complete spec as a user would write it: losses of one name stay true, no bias and plain
    linear logits are left out."""
    out = {name: dict(value) for name, value in spec.items() if name != "losses"}
    if out["select"].get("bias", 1) is None:
        del out["select"]["bias"]
    if out["logits"] == {"type": "linear", "bias": False}:
        del out["logits"]
    out["losses"] = dict(spec["losses"])
    return out


def custom_grouped(rng, k, experts):
    """Groups of experts, of which as many stay as hold k experts."""
    sizes = [g for g in range(1, experts + 1) if experts % g == 0 and experts // g >= 2] or [1]
    groups = rng.choice(sizes)
    least = -(-k * groups // experts)
    return {
        "type": "grouped_top_k",
        "groups": groups,
        "keep": rng.randint(least, groups),
        "group_top": rng.randint(1, experts // groups),
    }


def custom_capacity(rng, scope, all_second):
    """A buffer's room; `all_second`: no second choice is ever skipped."""
    return {
        "type": "buffer",
        "factor": rng.choice([0.5, 0.75, 1.0, 1.25]),
        "count_choices": rng.random() < 0.5,
        "rounding": rng.choice(["floor", "floor_to_even", "round", "ceil"]),
        "minimum": rng.randint(0, 3),
        "at_most_tokens": rng.random() < 0.5,
        "scope": scope,
        "skipped_take_room": rng.random() < 0.3 and not all_second,
        "order": rng.choice(
            ["choice_major", "token_major", "by_weight", "batch_priority", "random"]
        ),
    }


def custom_losses(rng, stages, k, experts, scope):
    """Losses that mean something after these stages."""
    losses = {}
    if rng.random() < 0.7:
        probs = {
            "softmax": ["scores", "normalised_scores"],
            "sigmoid": ["normalised_scores"],
            "sqrt_softplus": ["normalised_scores"],
            "raw": ["softmax"]
            + (["chosen_weights"] if stages["weigh"] == "softmax" else []),
        }[stages["score"]]
        shares = rng.choice(["own", "running", "step"])
        counts = ["first_choice", "all_choices"] + (
            ["unbiased_choices"] if "bias" in stages["select"] else []
        )
        losses["balance"] = {
            "counts": rng.choice(counts),
            "probs": rng.choice(probs),
            "shares": shares,
            "scope": scope if shares == "own" else "micro_batch",
        }
    if stages["score"] != "raw" and rng.random() < 0.4:
        devices = rng.choice([d for d in range(2, experts + 1) if experts % d == 0])
        losses[rng.choice(["device", "communication"])] = {
            "devices": devices,
            "at_most": rng.randint(1, min(k, devices)),
            "scope": scope,
        }
    if rng.random() < 0.3:
        losses["importance"] = True
    if stages["noise"] != "none" and stages["noise"]["type"] == "learned":
        losses["z_of_clean"] = rng.random() < 0.5
        losses["load"] = stages["select"] == {"type": "top_k"} and rng.random() < 0.5
    return losses


def custom_stages(rng, draw):
    """Any stages that go together."""
    k, experts = draw.k, draw.experts
    score = rng.choice(["softmax", "softmax", "sigmoid", "raw", "sqrt_softplus"])
    stages = {
        "noise": rng.choice(
            ["none", "none", {"type": "jitter", "eps": 0.05}, {"type": "learned", "floor": 0.125}]
        ),
        "score": score,
        "second": "all",
        "losses": {},
    }
    scope = rng.choice(["micro_batch", "sequence", {"group": rng.randint(2, 8)}])
    kind = rng.choice(["top_k", "top_k", "grouped_top_k", "expert_choice"])
    if kind == "expert_choice":
        stages["select"] = {"type": kind, "factor": rng.choice([0.5, 1.0, 1.5]), "scope": scope}
        if score == "raw":  # one token an expert has the weight 1 whatever its score
            stages["weigh"], stages["select"] = (
                "token_softmax",
                {"type": kind, "factor": 1.5, "scope": "micro_batch"},
            )
        return stages
    stages["select"] = (
        custom_grouped(rng, k, experts) if kind == "grouped_top_k" else {"type": kind}
    )
    if rng.random() < 0.4:
        stages["select"]["bias"] = {"rate": 0.001}
    renormalise = rng.choice(["never", "before_drop", "after_drop"]) if k > 1 else "never"
    stages["weigh"] = {
        "type": "scores",
        "renormalise": renormalise,
        "scale": 1.0 if renormalise == "after_drop" else rng.choice([1.0, 2.5]),
    }
    if score == "raw" and kind == "top_k" and rng.random() < 0.4:
        eps = rng.choice([0.01, 0.125])
        stages["select"] = {"type": "near_best", "eps": eps}
        stages["weigh"] = {"type": "near_softmax", "eps": eps}
    elif score == "raw" and k > 1:
        stages["weigh"] = "softmax"
    elif score == "raw":
        stages["score"] = "softmax"
    if k == 2 and rng.random() < 0.6:
        stages["second"] = rng.choice(
            [
                {"type": "threshold", "least": 0.25, "relative": False},
                {"type": "threshold", "least": 0.5, "relative": True},
                {"type": "random", "full": rng.choice([0.2, 0.5])},
            ]
        )
    if rng.random() < 0.75:
        stages["capacity"] = custom_capacity(rng, scope, stages["second"] == "all")
    stages["losses"] = custom_losses(rng, stages, k, experts, scope)
    return stages


def flat(value):
    """The numbers of nested lists."""
    return [v for item in value for v in flat(item)] if isinstance(value, list) else [value]


def largest_difference(got, want):
    """Relative and norm-wise; lists of lists flat. What is nearly nothing is compared with 0.01;
    null equals null only."""
    if got is None or want is None:
        return 0.0 if got is want else float("inf")

    a, b = flat(got), flat(want)
    if len(a) != len(b):
        return float("inf")
    norm = sum(v * v for v in b) ** 0.5
    difference = sum((u - v) ** 2 for u, v in zip(a, b)) ** 0.5 / max(norm, 1e-2)
    return difference if difference == difference else float("inf")


GRADIENTS = (
    "dlogits",
    "dclean",
    "dsigma",
    "dx",
    "dweight",
    "dup_weight",
    "dlogit_bias",
    "dnoise_weight",
    "dscale",
)


def can_be_compared(want, scale):
    """Whether no gradient is what remains of larger terms that cancel, where f32 has only rounding
    to show. Nothing at all is fine."""
    norms = [
        sum(v * v for row in want[name] for v in (row if isinstance(row, list) else [row])) ** 0.5
        for name in GRADIENTS
        if name in want
    ]
    return all(norm == 0 or norm >= 0.05 * scale for norm in norms)


EXACT = ("experts", "kept", "counts", "dropped", "capacity")


def apply_peer(case):
    """Replaces the formulas' answer by that of transformers' module, after making sure that the two
    agree."""
    theirs = (
        by_transformers(case["row"], case["spec"], case["input"], case["options"]["top_k"])
        if case["stages"] is None
        else None
    )
    if theirs is None:
        return
    for name, value in theirs.items():
        if name in EXACT:
            assert value == case["want"][name], (case["name"], name, value, case["want"][name])
        else:
            difference = largest_difference(value, case["want"][name])
            assert difference < PEER_TOLERANCE, (case["name"], name, difference)
    case["want"].update(theirs)
    case["peer"] = True


def make_case(row, index, seed, feature=None):
    """Case number `index` of a row, around the corner FEATURES[index mod their number], or a small
    one around the corner given."""
    small, feature = feature is not None, feature or FEATURES[index % len(FEATURES)]
    for attempt in range(100):
        draw = Draw(row, feature, random.Random(f"{seed}/{row}/{index}/{attempt}"), small)
        want = draw.solved()
        if want is not None and can_be_compared(want, draw.spec["weigh"].get("scale", 1.0)):
            case = {
                "name": f"{row} {index} {feature}",
                "row": row,
                "options": draw.options,
                "stages": draw.stages,
                "input": draw.input,
                "want": want,
                "spec": draw.spec,
                "peer": False,
            }
            apply_peer(case)
            return case
    raise AssertionError(f"no case {index} of {row} settles")
