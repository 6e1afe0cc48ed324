"""The same routing by transformers' own modules, the source of truth for the rows that have one.
Each peer gives what its module computes: experts, weights, kept, the balance and z losses in
canonical form, and the gradients to logits, x and the router's weight by autograd through the
module. A module sees logits as hidden states under an identity matrix.

Known deviations, handled here: - torch.topk promises no order of equal values, and equal logits may
get scores that differ in the last bit; inside a module topk and argmax
  are a stable sort of values rounded at the twelfth decimal.
- the modules mask other groups with 0 (DeepSeek-V2, harmless: its scores are positive) or, in this
version, -inf (DeepSeek-V3). - their losses are over the whole call with its own counts, so cases
over sequences or with other counts take only the rest from them;
  load_balancing_loss_func is K when balanced (Mixtral, OLMoE, Qwen); Switch's is 1. Switch's counts
  are taken before its capacity mask here.
- DeepSeekMoE has no module; its gating is DeepSeek-V2's without groups ("greedy"), its expert-level
loss OLMoE's in canonical form. - NLLB-MoE forgets to renormalise under its random second policy, so
it stands for GShard only where every second choice is sent. Its
  capacity is set to ours: its own is 2 ceil(S/E). One call is one group.
- the modules ask for f32 by name (router weights, softmax); inside a module those names mean f64.
"""

import contextlib
from types import SimpleNamespace

import torch
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4TopKRouter
from transformers.models.mixtral import modeling_mixtral as mixtral
from transformers.models.nllb_moe.modeling_nllb_moe import NllbMoeTop2Router
from transformers.models.olmoe import modeling_olmoe as olmoe
from transformers.models.qwen2_moe import modeling_qwen2_moe as qwen2_moe
from transformers.models.qwen3_moe import modeling_qwen3_moe as qwen3_moe
from transformers.models.phimoe import modeling_phimoe as phimoe
from transformers.models.switch_transformers import modeling_switch_transformers as switch

from routing_formulas import capacity_of, double, scopes_of


def stable_topk(values, k, dim=-1, largest=True, sorted=True):
    order = torch.sort(
        values.detach().round(decimals=12), dim=dim, descending=largest, stable=True
    ).indices.narrow(dim, 0, k)
    return torch.return_types.topk((values.gather(dim, order), order))


def first_argmax(values, dim=-1):
    return stable_topk(values, 1, dim)[1].squeeze(dim)


@contextlib.contextmanager
def in_double():
    """Inside, equal values keep their order and single precision is double."""
    replaced = [
        (torch, "topk", stable_topk),
        (torch.Tensor, "topk", stable_topk),
        (torch, "argmax", first_argmax),
        (torch, "float32", torch.float64),
        (torch, "float", torch.float64),
        (torch.Tensor, "float", torch.Tensor.double),
    ]
    kept = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    for owner, name, value in replaced:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in kept:
            setattr(owner, name, value)


def _inputs(case):
    """hidden [N,D] and weight [E,D] as leaves; for given logits an identity matrix."""
    logits = double(case["x"] if "x" in case else case["logits"])
    if "noise" in case:
        logits = logits + double(case["noise"])
    weight = (
        double(case["weight"]) if "x" in case else torch.eye(logits.shape[1], dtype=torch.float64)
    )
    return logits.requires_grad_(), weight


def _set_weight(linear, weight):
    linear.weight = torch.nn.Parameter(weight)
    return linear.weight


def _config(case, k, **more):
    experts = len(case["weight"]) if "x" in case else len(case["logits"][0])
    width = len(case["weight"][0]) if "x" in case else experts
    return SimpleNamespace(
        num_experts=experts,
        num_local_experts=experts,
        hidden_size=width,
        num_experts_per_tok=k,
        **more,
    )


def _finish(case, hidden, matrix, logits, weights, kept, experts, value):
    """The reply; logits is a list of pieces along the tokens."""
    reply = {
        "experts": experts,
        "weights": [w.tolist() for w in weights],
        "kept": kept,
        **{n: float(v.detach()) for n, v in value.items()},
    }
    if "dweights" not in case and "coef" not in case or set(case.get("coef", {})) - set(value):
        return (
            reply  # where a loss is asked for that the module does not have: its choice and weights
        )
    total = sum((w * double(d)).sum() for w, d in zip(weights, case.get("dweights", [])))
    total = total + sum(c * value[name] for name, c in case.get("coef", {}).items())
    *pieces, of_hidden, of_matrix = torch.autograd.grad(
        total, logits + [hidden, matrix], allow_unused=True, materialize_grads=True
    )
    reply["dlogits"] = torch.cat([piece.reshape(-1, piece.shape[-1]) for piece in pieces]).tolist()
    if "x" in case:
        reply["dx"], reply["dweight"] = of_hidden.tolist(), of_matrix.tolist()
    return reply


def own_loss(spec, case, scope):
    """Whether the row's balance loss is over the scope given and counts nothing but it."""
    return spec["losses"].get("balance", {}).get("scope") == scope and not case.get("step_counts")


def _token_choice(router_class, loss, **config):
    """Routers of one call: (hidden) -> logits, weights, indices."""

    def peer(spec, case, k):
        more = {**config, "norm_topk_prob": spec["weigh"]["renormalise"] == "before_drop"}
        if "n_group" in more:
            select = spec["select"]
            more.update(
                n_group=select.get("groups", 1),
                topk_group=select.get("keep", 1),
                routed_scaling_factor=spec["weigh"]["scale"],
            )
        hidden, weight = _inputs(case)
        router = router_class(_config(case, k, **more))
        matrix = _set_weight(router, weight)
        if "bias" in case:
            router.e_score_correction_bias = double(case["bias"])
        logits, weights, indices = router(hidden)
        value = {"z": switch.router_z_loss_func(logits.unsqueeze(0))}
        if loss is not None and own_loss(spec, case, "micro_batch"):
            value["balance"] = loss((logits,), logits.shape[1], k) / k
        return _finish(
            case,
            hidden,
            matrix,
            [logits],
            list(weights),
            [[True] * k] * len(indices),
            indices.tolist(),
            value,
        )

    return peer


def switch_peer(spec, case, k):
    if case.get("draw"):  # the module would draw its own jitter
        return None
    hidden, weight = _inputs(case)
    tokens = len(hidden)
    capacity = (
        tokens
        if spec["capacity"]["type"] == "dropless"
        else capacity_of(spec["capacity"], tokens, len(weight), k)
    )
    router = switch.SwitchTransformersTop1Router(
        _config(
            case,
            k,
            expert_capacity=capacity,
            router_bias=False,
            router_jitter_noise=0.0,
            router_ignore_padding_tokens=False,
            router_dtype="float64",
        )
    )
    matrix = _set_weight(router.classifier, weight)
    dispatched, prob, logits = router(hidden.unsqueeze(0))
    chosen = torch.argmax(logits.softmax(-1), -1)
    kept = dispatched[0].sum(-1).bool()
    value = {"z": switch.router_z_loss_func(logits)}
    if own_loss(spec, case, "micro_batch"):
        value["balance"] = switch.load_balancing_loss_func(logits.softmax(-1), chosen)
    weights = list(prob[0] * kept.unsqueeze(-1))
    return _finish(
        case,
        hidden,
        matrix,
        [logits],
        weights,
        kept.unsqueeze(-1).tolist(),
        chosen[0].unsqueeze(-1).tolist(),
        value,
    )


def nllb_peer(spec, case, k):
    """GShard's gating, group by group; the gates are read from the module's combine weights."""
    if (
        case.get("draw")
        and spec["second"]["type"] == "random"
        or spec["second"]["type"] == "threshold"
    ):
        return None
    hidden, weight = _inputs(case)
    matrix, weights, kept, experts, every = torch.nn.Parameter(weight), [], [], [], []
    scope, losses = "sequence", []
    for begin, end in scopes_of(scope, case.get("sequences") or [len(hidden)], len(hidden)):
        capacity = (
            end - begin
            if spec["capacity"]["type"] == "dropless"
            else capacity_of(spec["capacity"], end - begin, len(weight), k)
        )
        router = NllbMoeTop2Router(
            _config(
                case,
                k,
                expert_capacity=capacity,
                router_bias=False,
                router_dtype="float64",
                router_ignore_padding_tokens=False,
                second_expert_policy="all",
                normalize_router_prob_before_dropping=True,
                batch_prioritized_routing=False,
                moe_eval_capacity_token_fraction=-1.0,
            )
        )
        router.classifier.weight = matrix
        _, combine, logits = router(hidden[begin:end])
        probs = logits.softmax(-1)
        chosen = stable_topk(probs, 2)[1]
        # Counts of first choices: NLLB's own loss counts both, GShard's and Mesh's the first only,
        # which is Switch's function.
        losses.append(
            (end - begin)
            / len(hidden)
            * switch.load_balancing_loss_func(probs.unsqueeze(0), chosen[:, :1].T)
        )
        every.append(logits)
        experts += chosen.tolist()
        weights += list(combine.gather(1, chosen))
        kept += (combine.gather(1, chosen) != 0).tolist()
    value = {"z": switch.router_z_loss_func(torch.cat(every).unsqueeze(0))}
    if own_loss(spec, case, "sequence"):
        value["balance"] = sum(losses)
    return _finish(case, hidden, matrix, every, weights, kept, experts, value)


def phimoe_peer(spec, case, k):
    """Of two choices, drawing nothing."""
    if case.get("draw") or k != 2 or spec["select"]["eps"] != spec["weigh"]["eps"]:
        return None
    hidden, matrix = _inputs(case)
    logits = hidden @ matrix.requires_grad_().T
    weights, experts = phimoe.sparsemixer(logits, spec["select"]["eps"], False, k)
    value = {"z": switch.router_z_loss_func(logits.unsqueeze(0))}
    if own_loss(spec, case, "micro_batch"):
        value["balance"] = phimoe.load_balancing_loss_func((logits,), logits.shape[1], k) / k
    return _finish(
        case,
        hidden,
        matrix,
        [logits],
        list(weights),
        [[True] * k] * len(experts),
        experts.tolist(),
        value,
    )


PEERS = {
    "sparsemixer": phimoe_peer,
    "mixtral": _token_choice(mixtral.MixtralTopKRouter, mixtral.load_balancing_loss_func),
    "olmoe": _token_choice(olmoe.OlmoeTopKRouter, olmoe.load_balancing_loss_func),
    "qwen2-moe": _token_choice(qwen2_moe.Qwen2MoeTopKRouter, qwen2_moe.load_balancing_loss_func),
    "qwen3-moe": _token_choice(qwen3_moe.Qwen3MoeTopKRouter, qwen3_moe.load_balancing_loss_func),
    "deepseek-moe": _token_choice(
        DeepseekV2TopkRouter, olmoe.load_balancing_loss_func, n_group=1, topk_method="greedy"
    ),
    "deepseek-v2": _token_choice(
        DeepseekV2TopkRouter, None, n_group=1, topk_method="group_limited_greedy"
    ),
    "deepseek-v3": _token_choice(DeepseekV3TopkRouter, None, n_group=1),
    "deepseek-v4": _token_choice(
        DeepseekV4TopKRouter, None, n_group=1, scoring_func="sqrtsoftplus"
    ),
    "switch": switch_peer,
    "gshard": nllb_peer,
    "glam": nllb_peer,
}


def by_transformers(row, spec, case, k):
    """What the row's module says of a complete spec, or None where it has none or its meaning is
    another."""
    if row not in PEERS:
        return None
    with in_double():
        return PEERS[row](spec, case, k)
