"""The one exception of the package."""

from __future__ import annotations

from typing import NoReturn


class Error(Exception):
    """What was refused or failed: the text says what, where and what to do.

    Attributes
    ----------
    usage : bool
        True where something without a meaning was asked for (the command's exit status 2), False
        where something meaningful failed (its exit status 1).
    """

    def __init__(self, message: str, *, usage: bool = False) -> None:
        super().__init__(message)
        self.usage = usage


def refuse(message: str) -> NoReturn:
    raise Error(message, usage=True)
