"""What the library hands out as a handle and takes back: used by one thread at a time, and closed
once."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import c_void_p
from types import TracebackType
from typing import Self

from moe_cpp._errors import refuse


class Turns:
    """A lock of something that one thread at a time may use, which that thread may take again.

    A fork() copies it as it is, but of the threads only its own: what another thread was using then
    is never given back in the child, so it is refused there instead of waited for.
    """

    def __init__(self, kind: str, another: str) -> None:
        self._kind, self._another = kind, another
        self._lock = threading.RLock()
        self._holder: tuple[int, int] | None = None  # process and thread

    def mine(self) -> bool:
        return self._holder == (os.getpid(), threading.get_ident())

    @contextmanager
    def take(self) -> Iterator[None]:
        before = self._holder
        if before is not None and before[0] != os.getpid():
            refuse(
                f"this {self._kind} was at work when fork() copied the process, and is of no use "
                f"in the child: {self._another}, or start the child with the method 'spawn' of "
                "multiprocessing (multiprocessing_context= of a DataLoader)"
            )
        with self._lock:
            before, self._holder = self._holder, (os.getpid(), threading.get_ident())
            try:
                yield
            finally:
                self._holder = before


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
        self._turns = Turns(kind, another)
        # Also closes what nobody closed, when the last reference goes; not at the end of the
        # program, when a thread may still be inside.
        self._close = weakref.finalize(self, close, handle)
        self._close.atexit = False

    @contextmanager
    def _use(self) -> Iterator[c_void_p]:
        if self._turns.mine():
            refuse(
                f"this {self._kind} is at work: its own callback cannot call it; {self._another}, or call after the callback"
            )
        with self._turns.take():
            if not self._close.alive:
                refuse(self._is_closed)
            yield self._handle

    def close(self) -> None:
        """Frees it, after a call under way in another thread has ended. Closing twice is allowed."""
        if self._turns.mine():
            refuse(
                f"this {self._kind} is at work: its own callback cannot close it; return True to end the call"
            )
        with self._turns.take():
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
