"""Training a model from text."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Unpack

from moe_cpp._callbacks import Watched
from moe_cpp._errors import refuse
from moe_cpp._inputs import Folder, as_options, as_path
from moe_cpp._library import LIBRARY, ON_STEP, call_for_json
from moe_cpp.model import Model, load
from moe_cpp.options import TrainOptions, takes_options


@dataclass(frozen=True)
class TrainResult:
    """What a run came to.

    Attributes
    ----------
    out : str
        The model folder, with metrics.jsonl and the checkpoint beside the model.
    step, tokens : int
        Optimizer steps taken and tokens trained on, in all.
    seconds : float
        Of training, in all.
    ce : float or None
        Cross-entropy of the last step in nats per token, auxiliary losses apart; None where
        resume=True found a run that had taken its steps, or the step had nothing to predict.
    eval_ce : float or None
        Of the held-out text, where there is one.
    interrupted : bool
        True where `on_step` ended the run; the same call with resume=True goes on.
    report : dict
        All that `moe train --json` prints.
    """

    out: str
    step: int
    tokens: int
    seconds: float
    ce: float | None
    eval_ce: float | None
    interrupted: bool
    report: Mapping[str, Any] = field(repr=False)

    def load(self, *, threads: int = 0, dtype: str = "f32") -> Model:
        """The trained model: `load(result.out)`."""
        return load(self.out, threads=threads, dtype=dtype)


@takes_options("TrainOptions")
def train(
    data: Folder | Sequence[Folder],
    out: Folder,
    *,
    on_step: Callable[[dict[str, Any]], object] | None = None,
    **options: Unpack[TrainOptions],
) -> TrainResult:
    """Trains a model and writes it to a folder, as `moe train` does with the same options: same
    seed, same weights.

    Parameters
    ----------
    data : path or sequence of paths
        Text files, or folders of them.
    out : path
        Folder for the model, its checkpoint and metrics.jsonl. One that holds a model is refused,
        unless resume=True.
    on_step : callable
        Called after each step with that step's line of metrics.jsonl (losses in nats, load of each
        layer's experts). A true value saves and ends the run; an exception saves, ends it, and is
        raised here. So does Ctrl-C, as KeyboardInterrupt.

    Returns
    -------
    TrainResult
    """
    if on_step is not None and not callable(on_step):
        refuse(f"on_step must be callable, not {type(on_step).__name__}")
    if isinstance(data, (bytes, bytearray, memoryview, Mapping)) or not isinstance(
        data, (str, os.PathLike, Iterable)
    ):
        refuse(
            f"data must be a path (str or pathlib.Path) or a list of paths, not {type(data).__name__}"
        )
    sources = [data] if isinstance(data, (str, os.PathLike)) else list(data)
    for place, source in enumerate(sources):
        as_path(source, f"data[{place}]")
    as_path(out, "out")
    given = as_options({"data": sources, "out": out, **options})
    with Watched() as watched:

        def tell(_user: int | None, line: bytes) -> int:
            return watched.ask(lambda: on_step(json.loads(line)) if on_step is not None else None)

        reply: dict[str, Any] = call_for_json(LIBRARY.moe_train, given, ON_STEP(tell), None)
    return TrainResult(
        out=os.fspath(out),
        step=reply["step"],
        tokens=reply["tokens"],
        seconds=reply["seconds"],
        ce=reply["ce"],
        eval_ce=reply.get("eval_ce"),
        interrupted=reply["interrupted"],
        report=reply,
    )
