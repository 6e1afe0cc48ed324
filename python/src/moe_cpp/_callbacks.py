"""Python functions called from inside a running call of the library.

An exception cannot pass through C: it is kept, the call is told to end, and it is raised again once
the call has returned. Ctrl-C is kept the same way: Python would raise KeyboardInterrupt at the
callback's first instruction, where nothing can catch it and ctypes drops it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any


class Watched:
    """A `with` around one call: `ask` runs a function for the library, and leaving raises what was
    kept."""

    def __init__(self) -> None:
        self._error: BaseException | None = None
        self._handler: Callable[[int, FrameType | None], Any] | None = None

    def ask(self, function: Callable[..., object], *arguments: Any) -> int:
        """What a callback returns to the library: not 0 ends the call."""
        if self._error is None:
            try:
                if function(*arguments):
                    return 1
            except BaseException as error:  # KeyboardInterrupt and SystemExit too
                self._error = error
        return 0 if self._error is None else 1

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        try:
            if self._handler is not None:
                self._handler(number, frame)
        except BaseException as error:
            self._error = error

    def __enter__(self) -> Watched:
        # Only the main thread gets signals. A program's own handler is still called; ignored or
        # default dispositions stay.
        if threading.current_thread() is threading.main_thread():
            handler = signal.getsignal(signal.SIGINT)
            if callable(handler):
                self._handler = handler
                signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
        if self._error is not None:
            raise self._error
