"""A moe_layer of the C interface (include/moe/moe.h) over torch's tensors."""

from __future__ import annotations

import ctypes
import itertools
import json
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from moe_cpp._errors import refuse
from moe_cpp._inputs import as_options
from moe_cpp._library import LIBRARY, Array, check, take_bytes

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
        for place, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
            array.shape[place] = size
            array.stride[place] = stride
    return arrays


def _version(tensor: torch.Tensor) -> int:
    """Tensors made in inference mode have no counter; nobody may write them outside of it."""
    return -1 if tensor.is_inference() else tensor._version


class Engine:
    """Keeps the packed copies of one layer's weights. Known to the operators by its number, since
    an operator's arguments are numbers and tensors."""

    _known: ClassVar[weakref.WeakValueDictionary[int, Engine]] = weakref.WeakValueDictionary()
    _numbers: ClassVar[itertools.count[int]] = itertools.count(1)

    def __init__(self, options: Mapping[str, Any], names: Sequence[str] | None = None) -> None:
        """names: of the arrays that stand for the operators' params, in their order; default: all
        that the layer has."""
        self.options = dict(options)
        self.gated = self.options.get("gated") is not False
        self.expert_width = int(self.options.get("moe_intermediate_size", 0))
        self._handle = ctypes.c_void_p()
        check(LIBRARY.moe_layer_open(ctypes.byref(self._handle), as_options(self.options)))
        weakref.finalize(self, LIBRARY.moe_layer_close, self._handle).atexit = False
        reply = ctypes.c_void_p()
        check(LIBRARY.moe_layer_inspect(self._handle, ctypes.byref(reply)))
        self.about: dict[str, Any] = json.loads(take_bytes(reply))
        every = [row["name"] for row in self.about["params"]]
        self.names = tuple(every if names is None else names)
        self.number = next(self._numbers)
        self._known[self.number] = self
        # What was bound, by name: the numbers, kept alive so that nothing else comes to lie at
        # their place, and their version.
        self._bound: dict[str, tuple[torch.Tensor, int]] = {}
        self._threads = 0
        # Held from a bind to the end of the call that it is for.
        self._busy = threading.RLock()
        forgetful(self)

    @classmethod
    def of(cls, number: int) -> Engine:
        return cls._known[number]

    # A layer that is copied or pickled gets a handle of its own.
    def __reduce__(self) -> tuple[type[Engine], tuple[dict[str, object], tuple[str, ...]]]:
        return Engine, (self.options, self.names)

    def _bind(self, weights: Named) -> None:
        """Tells of weights that lie elsewhere now, or whose version has moved."""
        moved = []
        for name, tensor in weights:
            version, before = _version(tensor), self._bound.get(name)
            if (
                before is None
                or before[1] != version
                or before[0].data_ptr() != tensor.data_ptr()
                or before[0].dtype != tensor.dtype
                or before[0].shape != tensor.shape
            ):
                moved.append((name, tensor))
                self._bound[name] = (tensor.detach(), version)
        if moved:
            try:
                check(LIBRARY.moe_layer_bind(self._handle, _arrays(moved), len(moved)))
            except Exception:
                self._bound.clear()
                raise

    def end_step(self, buffers: Named, counts: torch.Tensor, cutoff: torch.Tensor) -> None:
        """Moves the buffers, in place."""
        with self._busy:
            self.forget()
            self.call("moe_layer_end_step", buffers, [("counts", counts), ("cutoff", cutoff)])
            self.forget()

    def forget(self) -> None:
        """The next call binds, and packs, anew. For numbers that may change where no version
        counts it."""
        with self._busy:
            self._bound.clear()

    def call(self, function: str, weights: Named, named: Named, *more: int) -> None:
        """With these weights, whatever other threads call."""
        threads = torch.get_num_threads()
        with self._busy:
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
