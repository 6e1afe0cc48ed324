"""The rows of the recipe table, transcribed from the papers and codebases that docs/recipes.md
names, in the JSON form of the stages and apart from src/moe/recipes/recipe_table.cpp: a row there
that misreads its source disagrees with this one. `stages_of(row, options)` gives the stages for a
user's options: of training, or of an evaluation where options["eval"] says so."""


def softmax_row(**stages):
    return {"score": "softmax", "select": "top_k", "weigh": "scores", **stages}


def mesh_capacity(options, factor, order="choice_major", **more):
    """Mesh TensorFlow: max(4, min(S, trunc(f S / E))), no factor k even at top-2."""
    return {
        "type": "buffer",
        "factor": options.get("capacity_factor", factor),
        "count_choices": False,
        "rounding": "floor",
        "minimum": 4,
        "at_most_tokens": True,
        "order": order,
        **more,
    }


def balance(counts="all_choices", probs="scores", **more):
    return {"counts": counts, "probs": probs, **more}


def shazeer(options):
    return {
        "noise": {"type": "learned", "floor": 0.01},
        "score": "raw",
        "weigh": "softmax",
        "losses": {"importance": True, "load": True},
    }


def gshard(options):
    """Groups are sequences; C = 2 S/E; 2 g2 > u."""
    return softmax_row(
        weigh={"type": "scores", "renormalise": "before_drop"},
        second={"type": "random", "full": 0.5},
        capacity=mesh_capacity(options, 2.0, scope="sequence"),
        losses={"balance": balance("first_choice", scope="sequence")},
    )


def switch(options):
    return softmax_row(
        noise={"type": "jitter", "eps": 0.01},
        capacity=mesh_capacity(options, 1.25, order="token_major"),
        losses={"balance": balance("first_choice")},
    )


def glam(options):
    return {**gshard(options), "second": {"type": "all"}}


def st_moe(options):
    """Mesh's threshold on the normalised weight; the paper's text has 1/5 of the first's."""
    return softmax_row(
        weigh={"type": "scores", "renormalise": "before_drop"},
        second={"type": "threshold", "least": 0.2, "relative": False},
        capacity=mesh_capacity(options, 1.25, scope="sequence"),
        losses={"balance": balance("first_choice", scope="sequence")},
    )


def expert_choice(options):
    return softmax_row(
        select={
            "type": "expert_choice",
            "factor": options.get("capacity_factor", float(options["top_k"])),
        },
        losses={},
    )


def expert_choice_notes(options):
    return {**expert_choice(options), "score": "raw", "weigh": "token_softmax"}


def nanomoe(options):
    return {
        "noise": {"type": "learned", "floor": 0.0},
        "score": "raw",
        "weigh": "softmax",
        "capacity": {
            "type": "buffer",
            "factor": options.get("capacity_factor", 1.25),
            "count_choices": True,
            "rounding": "floor_to_even",
            "minimum": 4,
            "at_most_tokens": False,
            "order": "choice_major",
        },
        "losses": {"balance": balance(probs="chosen_weights")},
    }


def deepseek_moe(options):
    return softmax_row(losses={"balance": balance()})


def deepseek_v2(options):
    groups, keep = options["expert_groups"], options["groups_kept"]
    device = {"devices": groups, "at_most": min(keep, options["top_k"]), "scope": "sequence"}
    over_devices = (
        {"device": device, "communication": device} if groups > 1 else {}
    )  # on one device both are 1 whatever the routing
    return softmax_row(
        select={"type": "grouped_top_k", "groups": groups, "keep": keep, "group_top": 1},
        weigh={"type": "scores", "scale": options.get("routed_scale", 16.0)},
        losses={"balance": balance(scope="sequence"), **over_devices},
    )


def deepseek_v3(options):
    return {
        "score": "sigmoid",
        "select": {
            "type": "grouped_top_k",
            "groups": options["expert_groups"],
            "keep": options["groups_kept"],
            "group_top": 2,
            "bias": {"rate": 0.001},
        },
        "weigh": {
            "type": "scores",
            "renormalise": "before_drop",
            "scale": options.get("routed_scale", 2.5),
        },
        "losses": {"balance": balance("unbiased_choices", "normalised_scores", scope="sequence")},
    }


def deepseek_v4(options):
    """As V3 without groups, by sqrt(softplus)."""
    return {
        **deepseek_v3({"expert_groups": 1, "groups_kept": 1}),
        "score": "sqrt_softplus",
        "select": {"type": "top_k", "bias": {"rate": 0.001}},
        "weigh": {
            "type": "scores",
            "renormalise": "before_drop",
            "scale": options.get("routed_scale", 1.5),
        },
    }


def olmoe(options):
    renormalise = "before_drop" if options.get("norm_topk_prob") else "never"
    return softmax_row(
        weigh={"type": "scores", "renormalise": renormalise}, losses={"balance": balance()}
    )


def mixtral(options):
    return softmax_row(
        weigh={"type": "scores", "renormalise": "before_drop"}, losses={"balance": balance()}
    )


def ernie_moe(options):
    """As mixtral, with a bias on the choice."""
    return {
        **mixtral(options),
        "select": {"type": "top_k", "bias": {"rate": 0.001}},
        "losses": {"balance": balance("unbiased_choices")},
    }


def gpt_oss(options):
    """As mixtral, of logits with a bias."""
    return {**mixtral(options), "logits": {"type": "linear", "bias": True}}


def gemma4(options):
    """As mixtral, each expert's weight times a factor of its own."""
    return {**mixtral(options), "weigh": "scaled_scores"}


def sparsemixer(options):
    """Phi-3.5-MoE's; balanced as Switch, over the whole softmax."""
    return {
        "score": "raw",
        "select": {"type": "near_best", "eps": 0.01},
        "weigh": {"type": "near_softmax", "eps": 0.01},
        "losses": {"balance": balance(probs="softmax")},
    }


def qwen3_moe(options):
    """Balanced over the global batch: the counts of the step so far."""
    return softmax_row(
        weigh={"type": "scores", "renormalise": "before_drop"},
        losses={"balance": balance(shares="running")},
    )


def hash_row(options):
    return {"select": {"type": "hash", "map": "random", "seed": 0}, "weigh": "one", "losses": {}}


def cmoe(options):
    """Eq. 7-9: the representative neuron's |hidden state| as the logit, softmax, top-k of s + b,
    gates 1 + s u with b moved by gamma = 1e-3."""
    return {
        "logits": "analytic",
        "score": "softmax",
        "select": {"type": "top_k", "bias": {"rate": 0.001}},
        "weigh": "one_plus_scaled",
        "losses": {},
    }


def carved(options):
    """As cmoe, with a linear map in the place of the neurons."""
    return {**cmoe(options), "logits": {"type": "linear", "bias": True}}


def sketch(options):
    """Neurons by the size of what a fixed copy of their rows says that they put out, each taken
    for what it is; a set, by rising index."""
    return {
        "logits": {"type": "analytic", "fixed": True},
        "score": "raw",
        "select": {"type": "top_k", "sorted": False},
        "weigh": "one",
        "losses": {},
    }


def custom(options):
    return options["stages"]


ROWS = {
    "shazeer": shazeer,
    "gshard": gshard,
    "switch": switch,
    "glam": glam,
    "st-moe": st_moe,
    "expert-choice": expert_choice,
    "expert-choice-notes": expert_choice_notes,
    "nanomoe": nanomoe,
    "deepseek-moe": deepseek_moe,
    "deepseek-v2": deepseek_v2,
    "deepseek-v3": deepseek_v3,
    "deepseek-v4": deepseek_v4,
    "olmoe": olmoe,
    "mixtral": mixtral,
    "gpt-oss": gpt_oss,
    "gemma4": gemma4,
    "sparsemixer": sparsemixer,
    "ernie-moe": ernie_moe,
    "qwen2-moe": olmoe,
    "qwen3-moe": qwen3_moe,
    "hash": hash_row,
    "cmoe": cmoe,
    "carved": carved,
    "sketch": sketch,
    "custom": custom,
}
FIXED_K = {"gshard": 2, "switch": 1, "glam": 2, "st-moe": 2}
RENORMALISED = {
    "shazeer",
    "mixtral",
    "gpt-oss",
    "gemma4",
    "ernie-moe",
    "nanomoe",
    "qwen3-moe",
    "deepseek-v3",
    "deepseek-v4",
}  # K = 1 is refused: the weight would be 1 whatever the logits
EXPERTS_CHOOSE = {"expert-choice", "expert-choice-notes"}
GROUPED = {"deepseek-v2", "deepseek-v3"}
SCALED = GROUPED | {"deepseek-v4"}
HAS_CAPACITY = {"gshard", "switch", "glam", "st-moe", "nanomoe"}
OPEN_NORM = {"olmoe", "qwen2-moe"}
HAS_BALANCE = set(ROWS) - EXPERTS_CHOOSE - {"shazeer", "hash", "cmoe", "carved", "sketch", "custom"}
EVAL_CAPACITY = 2.0  # the capacity factor of all of them when evaluated as trained


OVER = {
    "micro_batch": ("micro_batch", "own"),
    "sequence": ("sequence", "own"),
    "running": ("micro_batch", "running"),
    "step": ("micro_batch", "step"),
}


def stages_of(row, options):
    """Evaluation draws nothing: no noise, and only a threshold sends a second choice away. It drops
    nothing unless `as-trained`."""
    mode = options.get("eval")
    factor = {"capacity_factor": EVAL_CAPACITY} if mode and row in HAS_CAPACITY else {}
    stages = ROWS[row]({**options, **factor})
    if "balance_over" in options:
        scope, shares = OVER[options["balance_over"]]
        stages["losses"]["balance"].update(scope=scope, shares=shares)
    if mode is None:
        return stages
    stages["noise"] = "none"
    stages["losses"] = {
        name: loss for name, loss in stages.get("losses", {}).items() if name != "load"
    }  # of noise that could be drawn again
    if mode == "threshold":
        stages["select"] = "threshold"
    if mode == "dropless":
        stages["capacity"] = "dropless"
        if stages.get("second", {"type": "all"})["type"] == "random":
            stages["second"] = {"type": "all"}
    return stages
