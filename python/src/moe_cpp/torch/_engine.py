"""A moe_layer of the C interface (include/moe/moe.h) over torch's tensors."""

from __future__ import annotations

import ctypes
import json
import os
import threading
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from moe_cpp._errors import refuse
from moe_cpp._handle import Turns
from moe_cpp._inputs import as_options
from moe_cpp._library import LIBRARY, Array, check, take_bytes, version

_DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.int32: 2, torch.int64: 3}
Named = Sequence[tuple[str, torch.Tensor]]


def _arrays(named: Named) -> Any:
    arrays = (Array * len(named))()
    for array, (name, tensor) in zip(arrays, named, strict=True):
        if tensor.device.type != "cpu":
            refuse(
                f"{name} lies on {tensor.device}; moe_cpp computes on the CPU: move the layer and "
                "its input there"
            )
        dtype = _DTYPES.get(tensor.dtype)
        if dtype is None:
            refuse(
                f"{name} is {str(tensor.dtype).removeprefix('torch.')}; moe_cpp computes in "
                "float32 and bfloat16"
            )
        array.name = name.encode()
        array.data = tensor.data_ptr()
        array.dtype = dtype
        array.rank = tensor.dim()
        array.shape[: array.rank] = tensor.shape
        array.stride[: array.rank] = tensor.stride()
    return arrays


def call_alone(function: str, named: Named, *more: Any) -> None:
    """A function of the library that keeps nothing between its calls."""
    check(getattr(LIBRARY, function)(_arrays(named), len(named), *more, torch.get_num_threads()))


def _version(tensor: torch.Tensor) -> int:
    """Tensors made in inference mode have no counter; nobody may write them outside of it."""
    return -1 if tensor.is_inference() else tensor._version


def _layout(tensor: torch.Tensor) -> tuple[object, ...]:
    """Changes when a tensor in the same living storage has other numbers."""
    place = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
    return (*place, _version(tensor))


def self_contained(options: Mapping[str, Any]) -> dict[str, Any]:
    """With the stages themselves where a file of them was named, which another call, or process,
    may find changed, or not at all. What cannot be read is left to the library, which says why."""
    given = dict(options)
    stages = given.get("stages")
    if isinstance(stages, os.PathLike) or (isinstance(stages, str) and stages[:1] not in ("", "{")):
        with suppress(OSError, ValueError):
            given["stages"] = json.loads(Path(stages).read_text(encoding="utf-8-sig"))
    return given


# Of one optimizer step; beyond it a training that never ends a step would keep all its calls.
_MOST_FORWARDS = 4096


class Engine:
    """Keeps the packed copies of one layer's weights. Known to the operators by its key, since an
    operator's arguments are plain values and tensors.

    The key says all that the engine is made of, and its place among the living ones made of the
    same. So what is kept of a graph, by torch.compile's cache on the disk or torch.export, means
    the same in another process, even where nobody has made that layer.
    """

    _known: ClassVar[weakref.WeakValueDictionary[str, Engine]] = weakref.WeakValueDictionary()
    _known_lock: ClassVar[threading.Lock] = threading.Lock()
    # Those of a key alone, which nobody else keeps: until a weight of their program goes.
    _restored: ClassVar[dict[str, Engine]] = {}

    def __init__(
        self,
        options: Mapping[str, Any],
        names: Sequence[str] | None = None,
        *,
        key: str | None = None,
    ) -> None:
        """names: of the arrays that stand for the operators' params, in their order; default: all
        that the layer has. key: that of the engine to restore."""
        self._handle = ctypes.c_void_p()
        check(LIBRARY.moe_layer_open(ctypes.byref(self._handle), as_options(options)))
        weakref.finalize(self, LIBRARY.moe_layer_close, self._handle).atexit = False
        self.options = self_contained(options)
        self.gated = self.options.get("gated") is not False
        self.expert_width = int(self.options.get("moe_intermediate_size", 0))
        reply = ctypes.c_void_p()
        check(LIBRARY.moe_layer_inspect(self._handle, ctypes.byref(reply)))
        self.about: dict[str, Any] = json.loads(take_bytes(reply))
        every = [row["name"] for row in self.about["params"]]
        self.names = tuple(every if names is None else names)
        # What was bound, by name: whether its storage still lives, since after that something else
        # may come to lie at its place, and its layout.
        self._bound: dict[str, tuple[weakref.ref[Any], tuple[object, ...]]] = {}
        self._leaves_with: weakref.ref[Any] | None = None
        self._threads = 0
        # Taken from a bind to the end of the call that it is for.
        self._busy = Turns("layer")
        # The optimizer step's calls so far (_step.py).
        self.forwards: deque[Any] = deque(maxlen=_MOST_FORWARDS)
        forgetful(self)
        # Last, since other threads find it from here on.
        self.key = self._register() if key is None else key

    def _register(self) -> str:
        made_of = {
            "moe_cpp": version(),
            "names": self.names,
            "options": json.loads(as_options(self.options)),
        }
        text, place = json.dumps(made_of, sort_keys=True), 0
        with self._known_lock:
            while f"{text}#{place}" in self._known:
                place += 1
            self._known[f"{text}#{place}"] = self
        return f"{text}#{place}"

    @classmethod
    def of(cls, key: str) -> Engine:
        found = cls._known.get(key)
        return cls._restore(key) if found is None else found

    @classmethod
    def _restore(cls, key: str) -> Engine:
        """That of a graph whose layer this process has not made, or has no more. Its weights come
        with each call."""
        made_of = json.loads(key.rpartition("#")[0])
        engine = Engine(made_of["options"], made_of["names"], key=key)
        with cls._known_lock:
            # Another thread may have restored it meanwhile, or made a layer that has this key now.
            found = cls._known.get(key)
            if found is None:
                found = cls._known[key] = cls._restored[key] = engine
            return found

    def _leave_with(self, weight: torch.Tensor) -> None:
        """A restored engine, and the copies that it has packed, go when this weight goes. One that
        is made anew for each call, as of a router in bf16, has little to pack."""
        restored, key = self._restored, self.key
        self._leaves_with = weakref.ref(weight.untyped_storage(), lambda _: restored.pop(key, None))

    # A layer that is copied or pickled gets a handle of its own.
    def __reduce__(self) -> tuple[type[Engine], tuple[dict[str, object], tuple[str, ...]]]:
        return Engine, (self.options, self.names)

    def _bind(self, weights: Named) -> None:
        """Tells of weights that lie elsewhere now, or whose version has moved."""
        moved = []
        for name, tensor in weights:
            layout, before = _layout(tensor), self._bound.get(name)
            if before is None or before[0]() is None or before[1] != layout:
                moved.append((name, tensor))
                self._bound[name] = (weakref.ref(tensor.untyped_storage()), layout)
        if moved:
            # Not in a step whose calls it remembers: their weights may be of a call each.
            if self.key in self._restored and not self.forwards:
                self._leave_with(weights[0][1])
            try:
                check(LIBRARY.moe_layer_bind(self._handle, _arrays(moved), len(moved)))
            except Exception:
                self._bound.clear()
                raise

    def end_step(self, buffers: Named, counts: torch.Tensor, cutoff: torch.Tensor) -> None:
        """Moves the buffers, in place."""
        with self._busy.take():
            self.forget()
            self.call("moe_layer_end_step", buffers, [("counts", counts), ("cutoff", cutoff)])
            self.forget()

    def forget(self) -> None:
        """The next call binds, and packs, anew. For numbers that may change where no version
        counts it."""
        if self._busy.lost():
            return  # there is no next call; an optimizer's step in a child is of other layers
        with self._busy.take():
            self._bound.clear()

    def call(self, function: str, weights: Named, named: Named, *more: int) -> None:
        """With these weights, whatever other threads call."""
        threads = torch.get_num_threads()
        with self._busy.take():
            self._bind(weights)
            if threads != self._threads:
                check(LIBRARY.moe_layer_threads(self._handle, threads))
                self._threads = threads
            check(getattr(LIBRARY, function)(self._handle, _arrays(named), len(named), *more))


class _Forgets(Protocol):
    def forget(self) -> None: ...


# Whatever keeps copies of weights, and a lock since threads may make layers during a step.
_FORGETFUL: weakref.WeakSet[_Forgets] = weakref.WeakSet()
_FORGETFUL_LOCK = threading.Lock()


def _new_locks() -> None:
    """In a child of fork(), which has none of the threads that may have held them."""
    global _FORGETFUL_LOCK
    Engine._known_lock, _FORGETFUL_LOCK = threading.Lock(), threading.Lock()


os.register_at_fork(after_in_child=_new_locks)


def forgetful(keeper: _Forgets) -> None:
    """keeper.forget() is called wherever weights may have changed and no version counts it."""
    with _FORGETFUL_LOCK:
        _FORGETFUL.add(keeper)


def _after_step(optimizer: torch.optim.Optimizer, *_: object) -> None:
    """PyTorch's fused optimizers move no version."""
    if not any(group.get("fused") for group in optimizer.param_groups):
        return
    with _FORGETFUL_LOCK:
        keepers = list(_FORGETFUL)
    for keeper in keepers:
        keeper.forget()


register_optimizer_step_post_hook(_after_step)


def after_load(module: Any, _: object) -> None:
    """A hook of load_state_dict, whose writes have no version in inference mode."""
    module.engine.forget()
