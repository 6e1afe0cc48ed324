"""libmoe.so as ctypes sees it: where it lies, the signatures of include/moe/moe.h, and its statuses
as exceptions.

ctypes.CDLL releases Python's global lock during a call and takes it again in a callback.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import (
    POINTER,
    c_char_p,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint64,
    c_void_p,
)
from pathlib import Path
from typing import Any

from moe_cpp._errors import Error

ON_TEXT = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t)
ON_STEP = ctypes.CFUNCTYPE(c_int, c_void_p, c_char_p)


class Array(ctypes.Structure):
    """moe_array."""

    _fields_ = (
        ("name", c_char_p),
        ("data", c_void_p),
        ("dtype", c_int),
        ("rank", c_int),
        ("shape", c_int64 * 3),
        ("stride", c_int64 * 3),
    )


class AttentionOptions(ctypes.Structure):
    """moe_attention_options."""

    _fields_ = (
        ("heads", c_int),
        ("kv_heads", c_int),
        ("scale", c_float),
        ("window", c_int64),
        ("cap", c_float),
    )


_HANDLE = c_void_p
_STATUS_FUNCTIONS: dict[str, list[Any]] = {
    "moe_load": [POINTER(_HANDLE), c_char_p, c_char_p],
    "moe_save": [_HANDLE, c_char_p, c_char_p],
    "moe_inspect": [_HANDLE, POINTER(c_void_p)],
    "moe_encode": [_HANDLE, c_char_p, c_size_t, POINTER(c_void_p), POINTER(c_size_t)],
    "moe_decode": [_HANDLE, c_void_p, c_size_t, POINTER(c_void_p), POINTER(c_size_t)],
    "moe_generate": [_HANDLE, c_char_p, c_size_t, c_char_p, ON_TEXT, c_void_p, POINTER(c_void_p)],
    "moe_session_open": [POINTER(_HANDLE), _HANDLE, c_char_p],
    "moe_session_prefill": [_HANDLE, c_void_p, c_size_t, c_size_t, POINTER(c_float)],
    "moe_session_generate": [
        _HANDLE,
        c_char_p,
        c_size_t,
        c_char_p,
        ON_TEXT,
        c_void_p,
        POINTER(c_void_p),
    ],
    "moe_session_truncate": [_HANDLE, c_size_t],
    "moe_score": [_HANDLE, c_void_p, c_size_t, c_char_p, POINTER(c_float), POINTER(c_void_p)],
    "moe_logits": [_HANDLE, c_void_p, c_size_t, POINTER(c_float)],
    "moe_routing": [_HANDLE, c_void_p, c_size_t, POINTER(c_int32), POINTER(c_float)],
    "moe_route": [c_char_p, POINTER(c_void_p)],
    "moe_recipes": [POINTER(c_void_p)],
    "moe_options": [c_char_p, POINTER(c_void_p)],
    "moe_layer_open": [POINTER(_HANDLE), c_char_p],
    "moe_layer_inspect": [_HANDLE, POINTER(c_void_p)],
    "moe_layer_threads": [_HANDLE, c_int],
    "moe_layer_bind": [_HANDLE, POINTER(Array), c_size_t],
    "moe_layer_route": [_HANDLE, POINTER(Array), c_size_t, c_int, c_uint64],
    "moe_layer_route_backward": [_HANDLE, POINTER(Array), c_size_t, c_int, c_uint64],
    "moe_layer_experts": [_HANDLE, POINTER(Array), c_size_t],
    "moe_layer_experts_backward": [_HANDLE, POINTER(Array), c_size_t],
    "moe_layer_products": [_HANDLE, POINTER(Array), c_size_t],
    "moe_layer_products_backward": [_HANDLE, POINTER(Array), c_size_t],
    "moe_layer_end_step": [_HANDLE, POINTER(Array), c_size_t],
    "moe_attention": [POINTER(Array), c_size_t, POINTER(AttentionOptions), c_int],
    "moe_attention_backward": [POINTER(Array), c_size_t, POINTER(AttentionOptions), c_int],
    "moe_rms_norm": [POINTER(Array), c_size_t, c_float, c_float, c_int],
    "moe_rms_norm_backward": [POINTER(Array), c_size_t, c_float, c_int],
    "moe_train": [c_char_p, ON_STEP, c_void_p, POINTER(c_void_p)],
}
_USAGE = 2
_OMP_PAUSE_SOFT = 1


def library_path() -> Path:
    """MOE_LIBRARY where it is set, else the library inside this package."""
    named = os.environ.get("MOE_LIBRARY")
    path = Path(named) if named else Path(__file__).with_name("libmoe.so")
    if not path.is_file():
        why = (
            "MOE_LIBRARY names it; set it to a libmoe.so or unset it"
            if named
            else "build and install the wheel: pip wheel ./python"
        )
        raise ImportError(f"moe_cpp: {path} is not there; {why}")
    return path.resolve()


@contextmanager
def _short_spins() -> Iterator[None]:
    """As the command does for itself: libgomp's threads, which spin while they wait, slow each
    other down where the machine does other work. Longer than the command's, since Python and
    PyTorch stand between two calls, and waking a thread takes as long as a small product.

    libgomp reads its environment when it is loaded; what is set already is left, and nothing stays
    set for the program's children.
    """
    if "GOMP_SPINCOUNT" in os.environ or "OMP_WAIT_POLICY" in os.environ:
        yield
        return
    os.environ["GOMP_SPINCOUNT"] = "10000"
    try:
        yield
    finally:
        del os.environ["GOMP_SPINCOUNT"]


def _open(path: Path) -> ctypes.CDLL:
    try:
        with _short_spins():
            return ctypes.CDLL(str(path))
    except OSError as error:
        missing = re.match(r"(\S+): cannot open shared object file: No such file", str(error))
        if missing is None:
            raise ImportError(
                f"moe_cpp: {path} cannot be loaded: {error}; build the wheel on the system it shall run on"
            ) from None
        raise ImportError(
            f"moe_cpp: this system has no {missing[1]}, which libmoe.so needs; the wheel of scripts/wheel.sh brings it, "
            "and scripts/deps.sh of the source installs it on Debian; elsewhere build the package on the system it shall run on"
        ) from None


def _bind(path: Path) -> ctypes.CDLL:
    library = _open(path)
    try:
        for name, arguments in _STATUS_FUNCTIONS.items():
            function = getattr(library, name)
            function.argtypes = arguments
            function.restype = c_int
        library.moe_size.argtypes = [_HANDLE, c_char_p]
        library.moe_size.restype = c_int64
        library.moe_session_length.argtypes = [_HANDLE]
        library.moe_session_length.restype = c_size_t
        for name in ("moe_version", "moe_last_error"):
            getattr(library, name).argtypes = []
            getattr(library, name).restype = c_char_p
        for name in ("moe_free", "moe_close", "moe_session_close", "moe_layer_close"):
            getattr(library, name).argtypes = [c_void_p]
            getattr(library, name).restype = None
    except AttributeError as error:
        raise ImportError(f"moe_cpp: {path} is no libmoe.so of this version: {error}") from None
    return library


LIBRARY = _bind(library_path())


def _let_threads_go() -> None:
    """libgomp keeps the threads of a parallel region for the next one. A child of fork() has none
    of them and would wait for them without end, so the thread that forks ends its own first; each
    process starts others at its next region. Runtimes without this function see to it themselves.
    """
    pause = getattr(LIBRARY, "omp_pause_resource_all", None)
    if pause is not None:
        pause(_OMP_PAUSE_SOFT)


os.register_at_fork(before=_let_threads_go)


def version() -> str:
    text: bytes = LIBRARY.moe_version()
    return text.decode()


def check(status: int) -> None:
    """Raises what the calling thread's last call failed with."""
    if status != 0:
        message: bytes = LIBRARY.moe_last_error()
        raise Error(message.decode("utf-8", "replace"), usage=status == _USAGE)


def take_bytes(memory: c_void_p, size: int | None = None) -> bytes:
    """What a function handed out, copied and freed; without a size up to its zero byte."""
    try:
        return ctypes.string_at(memory, -1 if size is None else size) if memory else b""
    finally:
        LIBRARY.moe_free(memory)


def call_for_json(function: Callable[..., int], *arguments: Any) -> Any:
    """Calls a function whose last argument is `char** json`, and parses that."""
    reply = c_void_p()
    check(function(*arguments, ctypes.byref(reply)))
    return json.loads(take_bytes(reply))
