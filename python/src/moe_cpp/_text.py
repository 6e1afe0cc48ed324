"""Writing a text, which a model and a session do alike: the options, the callback, and what comes
of it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from moe_cpp._callbacks import Watched
from moe_cpp._errors import refuse
from moe_cpp._handle import Handle
from moe_cpp._inputs import Text, as_options, as_text
from moe_cpp._library import ON_TEXT, call_for_json


@dataclass(frozen=True)
class Generation:
    """What was generated; `str()` of it is the text.

    Attributes
    ----------
    text : str
        Without the prompt. Bytes that are no UTF-8 are replaced by U+FFFD.
    prompt_tokens, tokens : int
        How many tokens were read and written.
    finish : str
        "length", "stop", or "interrupted" where `on_text` ended it.
    proposed, accepted : int
        How many tokens were guessed (`draft`, `prompt_lookup`), and how many of them were right. Of
        no account where two of these are compared.
    """

    text: str
    prompt_tokens: int
    tokens: int
    finish: str
    proposed: int = field(default=0, compare=False)
    accepted: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return self.text


def write_text(
    writer: Handle,
    function: Callable[..., int],
    prompt: Text,
    options: Mapping[str, object],
    on_text: Callable[[str], object] | None,
) -> Generation:
    """Calls moe_generate, or what takes the same arguments, on a handle."""
    wanted = _sampling(options)
    given = as_text(prompt, "prompt")
    if on_text is not None and not callable(on_text):
        refuse(f"on_text must be callable, not {type(on_text).__name__}")
    with writer._use() as handle, Watched() as watched:

        def tell(_user: int | None, text: int, size: int) -> int:
            return watched.ask(
                on_text or (lambda _: None), ctypes.string_at(text, size).decode("utf-8", "replace")
            )

        reply = call_for_json(function, handle, given, len(given), wanted, ON_TEXT(tell), None)
    return Generation(
        reply["text"],
        reply["prompt_tokens"],
        reply["tokens"],
        reply["finish"],
        reply["proposed"],
        reply["accepted"],
    )


def _sampling(options: Mapping[str, object]) -> bytes:
    given = dict(options)
    for name in ("tokens", "max_new_tokens"):
        tokens = given.get(name, 0)
        if isinstance(tokens, bool) or not isinstance(tokens, (int, np.integer)):
            refuse(f"{name} must be a whole number, not {type(tokens).__name__}")
    for name in ("stop", "stop_strings"):
        if given.get(name) is not None:
            given[name] = _stops(given[name])
    return as_options(given)


def _stops(stop: object) -> list[str]:
    if isinstance(stop, str):  # a sequence of str itself
        return [stop]
    if not isinstance(stop, Sequence) or isinstance(stop, (bytes, bytearray, memoryview)):
        refuse(f"stop must be a text or a list of texts, not {type(stop).__name__}")
    for place, one in enumerate(stop):
        if not isinstance(one, str):
            refuse(f"stop[{place}] must be str, not {type(one).__name__}")
    return list(stop)
