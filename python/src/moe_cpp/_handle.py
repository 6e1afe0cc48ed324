"""What the library hands out as a handle and takes back: used by one thread at a time, and closed
once."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import c_void_p
from types import TracebackType
from typing import Self

from moe_cpp._errors import refuse


class Handle:
    """A context manager: leaving it closes the handle. Calls from several threads wait for each
    other."""

    def __init__(
        self,
        handle: c_void_p,
        close: Callable[[c_void_p], None],
        *,
        kind: str,
        another: str,
        closed: str,
    ) -> None:
        self._handle = handle
        self._kind, self._another, self._is_closed = kind, another, closed
        self._lock = threading.Lock()
        self._owner: int | None = None  # the thread inside a call
        # Also closes what nobody closed, when the last reference goes; not at the end of the
        # program, when a thread may still be inside.
        self._close = weakref.finalize(self, close, handle)
        self._close.atexit = False

    @contextmanager
    def _use(self) -> Iterator[c_void_p]:
        me = threading.get_ident()
        if self._owner == me:
            refuse(
                f"this {self._kind} is at work: its own callback cannot call it; {self._another}, or call after the callback"
            )
        with self._lock:
            if not self._close.alive:
                refuse(self._is_closed)
            try:
                self._owner = me
                yield self._handle
            finally:
                self._owner = None

    def close(self) -> None:
        """Frees it, after a call under way in another thread has ended. Closing twice is allowed."""
        if self._owner == threading.get_ident():
            refuse(
                f"this {self._kind} is at work: its own callback cannot close it; return True to end the call"
            )
        with self._lock:
            self._close()

    @property
    def closed(self) -> bool:
        return not self._close.alive

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
