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

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._lock = threading.RLock()
        self._holder: tuple[int, int] | None = None  # process and thread
        _TURNS.add(self)

    def mine(self) -> bool:
        return self._holder == (os.getpid(), threading.get_ident())

    def lost(self) -> bool:
        """Whether this process is a child that has it from a fork() in the middle of a use."""
        holder = self._holder
        return holder is not None and holder[0] != os.getpid()

    def after_fork(self) -> None:
        """In the child: a thread that had the lock and was not yet the holder, or no longer, was
        using nothing; it is not there to give the lock back."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
        elif self._holder is None:
            self._lock = threading.RLock()

    @contextmanager
    def take(self) -> Iterator[None]:
        if self.lost():
            refuse(
                f"this {self._kind} was at work when fork() copied the process, and is of no use "
                "in the child: fork while nothing of moe_cpp computes, or start the child with the "
                "method 'spawn' of multiprocessing (multiprocessing_context= of a DataLoader)"
            )
        with self._lock:
            before, self._holder = self._holder, (os.getpid(), threading.get_ident())
            try:
                yield
            finally:
                self._holder = before


_TURNS: weakref.WeakSet[Turns] = weakref.WeakSet()


def _after_fork() -> None:
    for turns in list(_TURNS):
        turns.after_fork()


os.register_at_fork(after_in_child=_after_fork)


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
        self._turns = Turns(kind)
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
