"""A text under way over a loaded model: read, go on, go back, go on elsewhere; each id is computed
once."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_void_p
from typing import NoReturn, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from moe_cpp._errors import refuse
from moe_cpp._handle import Handle
from moe_cpp._inputs import Text, as_ids
from moe_cpp._library import LIBRARY, check
from moe_cpp._text import Generation, write_text
from moe_cpp.options import ContinueOptions, takes_options


class Session(Handle):
    """Made by `Model.session`. A context manager: leaving it closes the session. It keeps the
    weights: the model may be closed first.

    Sessions of one model, and the model beside them, work at the same time in threads of their own;
    calls of one session wait for each other. A callback must not use its own session (`Error`).

    >>> with model.session(capacity=2000) as session:
    ...     reply = session.generate("The router ", tokens=20)
    ...     held = len(session)
    ...     more = session.generate(" And then", tokens=20)  # reads only the new prompt
    ...     session.truncate(held)  # as if the last call had not been
    """

    def __init__(self, handle: c_void_p, vocab: int) -> None:
        another = "open another one"
        super().__init__(
            handle,
            LIBRARY.moe_session_close,
            kind="session",
            another=another,
            closed="the session is closed; open another one",
        )
        self._vocab = vocab

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Session is neither copied nor pickled; open another one")

    def __len__(self) -> int:
        """How many ids it holds."""
        with self._use() as handle:
            return int(LIBRARY.moe_session_length(handle))

    def __bool__(self) -> bool:  # not its length
        return True

    def __repr__(self) -> str:
        return f"<moe_cpp.Session{', closed' if self.closed else ''}>"

    def prefill(self, ids: ArrayLike, *, rows: int = 1) -> NDArray[np.float32]:
        """Adds ids [N] to the text and returns logits float32 [rows, V]: of the id after each of
        the last `rows` of them."""
        given = as_ids(ids, limit=self._vocab)
        if given.size == 0:
            refuse("ids is empty: at least one token is needed")
        if not 0 <= rows <= given.size:
            refuse(f"rows is {rows}; of {given.size} ids it can be 0 to {given.size}")
        logits = np.empty((rows, self._vocab), np.float32)
        with self._use() as handle:
            check(
                LIBRARY.moe_session_prefill(
                    handle,
                    given.ctypes.data,
                    given.size,
                    rows,
                    logits.ctypes.data_as(ctypes.POINTER(ctypes.c_float)),
                )
            )
        return logits

    @takes_options("ContinueOptions")
    def generate(
        self,
        prompt: Text = "",
        *,
        on_text: Callable[[str], object] | None = None,
        **options: Unpack[ContinueOptions],
    ) -> Generation:
        """Adds a prompt and goes on from there; what was written belongs to the text from then on.
        It ends where the session is full at the latest.

        Parameters
        ----------
        prompt : str or bytes
            May be empty where there is a text.
        on_text : callable
            As `Model.generate` has it.

        Returns
        -------
        Generation
            Its `prompt_tokens` counts all that stood before what was written.
        """
        return write_text(self, LIBRARY.moe_session_generate, prompt, options, on_text)

    def truncate(self, length: int) -> None:
        """Drops what stands behind the first `length` ids."""
        if length < 0:
            refuse(f"length is {length}; it must be 0 or above")
        with self._use() as handle:
            check(LIBRARY.moe_session_truncate(handle, length))
