"""The options of `train` as keyword arguments: those of `moe train`, whose --help says what each does. python/tests/package_test.py holds the two together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from moe_cpp._inputs import Folder


class TrainOptions(TypedDict, total=False):
    """Keyword arguments of `train` beside data, out, preset and on_step. Losses in nats; sizes in tokens, steps or elements."""

    # the run
    eval_data: Folder | Sequence[Folder]
    hold_out: float
    mix: Mapping[str, float]
    tokenizer: str
    from_: Folder
    config: Folder
    eval_every: int
    keep_best: bool
    save_every: int
    resume: bool
    # model
    architecture: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_width: int
    dense_width: int
    activation: str
    qk_norm: str
    norm_placement: str
    bias: bool
    tied: bool
    rope_theta: float
    dropout: float
    # routing
    recipe: str
    stages: str | Mapping[str, Any]
    experts: int
    top_k: int
    capacity_factor: float
    capacity_factor_eval: float
    norm_topk_prob: bool
    expert_groups: int
    groups_kept: int
    routed_scaling_factor: float
    balance_over: str
    expert_width: int
    shared_experts: int
    shared_width: int
    shared_gate: bool
    moe_every: int
    dense_first: int
    moe_layers: Sequence[int]
    balance: float
    z_loss: float
    importance_loss: float
    load_loss: float
    device_loss: float
    communication_loss: float
    no_router_noise: bool
    # training
    context: int
    batch: int
    accumulate: int
    steps: int
    lr: float
    min_lr: float
    warmup: int
    lr_times: Mapping[str, float]
    schedule: str
    weight_decay: float
    decay_all: bool
    beta1: float
    beta2: float
    eps: float
    clip: float
    seed: int
    dtype: str
    recompute: bool
    tune: str
    lora_rank: int
    lora_alpha: float
    teacher: Folder
    teacher_weight: float
    minutes: float
    shuffle: str
    threads: int
    memory: str
    pack_memory: str
