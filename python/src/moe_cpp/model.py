"""A model folder in memory: encode, generate, score, logits, routing, save."""

from __future__ import annotations

import ctypes
import os
import queue
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from ctypes import c_size_t, c_void_p
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NoReturn, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from moe_cpp._errors import Error, refuse
from moe_cpp._handle import Handle
from moe_cpp._inputs import Folder, Ids, Text, as_ids, as_options, as_path, as_text
from moe_cpp._library import LIBRARY, call_for_json, check, take_bytes
from moe_cpp._text import Generation, write_text
from moe_cpp.options import (
    GenerateOptions,
    LoadOptions,
    SaveOptions,
    ScoreOptions,
    SessionOptions,
    takes_options,
)
from moe_cpp.session import Session


@dataclass(frozen=True, eq=False)  # arrays have no one truth value
class Score:
    """How well a model predicts a text.

    Attributes
    ----------
    nats_per_token : float
        Mean cross-entropy in nats (natural logarithm), the mean over windows.
    perplexity : float
        exp(nats_per_token).
    bits_per_byte : float
        Bits for each byte of the predicted tokens.
    tokens : int
        Tokens predicted: all but the first of each window.
    windows, window : int
        Whole windows scored, and the tokens of one. Windows do not overlap and the remainder is
        dropped.
    routing : str
        "dropless", "as-trained" or "threshold".
    causal : bool
        False where a token's loss depends on later tokens, and is therefore too low.
    ids : ndarray of int32 [N]
        The text's tokens.
    logprobs : ndarray of float32 [N]
        Natural logarithm of the probability of each id given those before it in its window; NaN
        where there is none (the first of each window, the dropped remainder).
    """

    nats_per_token: float
    perplexity: float
    bits_per_byte: float
    tokens: int
    windows: int
    window: int
    routing: str
    causal: bool
    ids: Ids = field(repr=False)
    logprobs: NDArray[np.float32] = field(repr=False)


@dataclass(frozen=True, eq=False)  # arrays have no one truth value
class Routing:
    """Which experts each token of one sequence went to.

    Attributes
    ----------
    experts : ndarray of int32 [L, N, K]
        In the order of choice; -1 where a choice was not sent. L counts the layers that have
        experts.
    weights : ndarray of float32 [L, N, K]
        The combine weights; 0 where a choice was not sent.
    """

    experts: NDArray[np.int32]
    weights: NDArray[np.float32]


@takes_options("LoadOptions")
def load(folder: Folder, **options: Unpack[LoadOptions]) -> Model:
    """Loads a model: a folder (config.json, model.safetensors, tokenizer.json), a .gguf file, or a
    name.

    Parameters
    ----------
    folder : path
        As `moe train` or `train()` writes it, or Hugging Face's of an architecture that `moe`
        reads; or a .gguf file, or a name that is here already: one that `moe get` has fetched, or
        "OWNER/NAME" (also "OWNER/NAME@REVISION", "OWNER/NAME:Q4_K_M") in Hugging Face's cache. What
        is there under a name comes first. Nothing is fetched.
    """
    handle = c_void_p()
    path = as_path(folder, "folder")
    check(LIBRARY.moe_load(ctypes.byref(handle), path, as_options(options)))
    return Model(handle, os.fsdecode(path))


class Model(Handle):
    """Weights and tokenizer, made by `load`. A context manager: leaving it closes the model.

    Calls from several threads wait for each other; open a `session` for each to work at the same
    time. A callback must not use its own model (`Error`).
    """

    def __init__(self, handle: c_void_p, folder: str) -> None:
        another = "load the folder a second time"
        super().__init__(
            handle,
            LIBRARY.moe_close,
            kind="model",
            another=another,
            closed=f"the model of {folder} is closed; load it again",
        )
        self._folder = folder
        self._info: dict[str, Any] = call_for_json(LIBRARY.moe_inspect, handle)
        self._vocab, self._moe_layers, self._slots = (
            int(LIBRARY.moe_size(handle, name)) for name in (b"vocab", b"moe_layers", b"slots")
        )

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Model is neither copied nor pickled; load the folder again")

    def __repr__(self) -> str:
        info = self._info
        routed = (
            f"recipe {info['recipe']}, {info['top_k']} of {info['experts']} experts, "
            if info["moe_layers"]
            else "dense, "
        )
        state = ", closed" if self.closed else ""
        return f"<moe_cpp.Model {self._folder!r}: {routed}{info['layers']} layers, {info['parameters']['total']:,} parameters{state}>"

    @property
    def info(self) -> dict[str, Any]:
        """What `moe inspect MODEL --json` prints: sizes, parameters, FLOPs a token, bytes."""
        return self._info

    @property
    def folder(self) -> str:
        return self._folder

    def encode(self, text: Text) -> Ids:
        """Token ids of a text (bytes need not be UTF-8): int32 [N], empty for an empty text."""
        given = as_text(text, "text")
        memory, count = c_void_p(), c_size_t()
        with self._use() as handle:
            check(
                LIBRARY.moe_encode(
                    handle, given, len(given), ctypes.byref(memory), ctypes.byref(count)
                )
            )
        return np.frombuffer(
            bytearray(take_bytes(memory, count.value * np.dtype(np.int32).itemsize)), np.int32
        )

    def decode_bytes(self, ids: ArrayLike) -> bytes:
        """The bytes that ids [N] stand for; part of a character where they end in one."""
        given = self._ids(ids)
        memory, count = c_void_p(), c_size_t()
        with self._use() as handle:
            check(
                LIBRARY.moe_decode(
                    handle, given.ctypes.data, given.size, ctypes.byref(memory), ctypes.byref(count)
                )
            )
        return take_bytes(memory, count.value)

    def decode(self, ids: ArrayLike) -> str:
        """The text of ids [N]; bytes that are no UTF-8 become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", "replace")

    @takes_options("GenerateOptions")
    def generate(
        self,
        prompt: Text,
        *,
        on_text: Callable[[str], object] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Generation:
        """Continues a text. The same prompt, options and seed give the text `moe generate` gives.

        Parameters
        ----------
        prompt : str or bytes
            The text to continue.
        on_text : callable
            Called with text as soon as it is certain, whole characters only. A true value ends the
            generation; an exception ends it and is raised here.
        """
        return write_text(self, LIBRARY.moe_generate, prompt, options, on_text)

    @takes_options("GenerateOptions")
    def stream(self, prompt: Text, **options: Unpack[GenerateOptions]) -> Stream:
        """`generate` as an iterator over its text, piece by piece; the model works in a thread of
        its own and is taken until the end.

        >>> for text in model.stream("Once upon ", seed=1):
        ...     print(text, end="", flush=True)
        """
        return Stream(self, as_text(prompt, "prompt"), options)

    @takes_options("SessionOptions")
    def session(self, **options: Unpack[SessionOptions]) -> Session:
        """Opens a text under way: what was read and written of it is not read again, and sessions
        of one model work at the same time."""
        wanted = as_options(options)
        handle = c_void_p()
        with self._use() as model:
            check(LIBRARY.moe_session_open(ctypes.byref(handle), model, wanted))
        return Session(handle, self._vocab)

    @takes_options("ScoreOptions")
    def score(self, text_or_ids: Text | ArrayLike, **options: Unpack[ScoreOptions]) -> Score:
        """How well the model predicts a text or a sequence of ids [N]; the figures are those of
        `moe score`.

        Parameters
        ----------
        text_or_ids : str, bytes or integers [N]
            There must be one whole window.
        """
        ids = (
            self.encode(text_or_ids)
            if isinstance(text_or_ids, (str, bytes, bytearray, memoryview))
            else self._ids(text_or_ids)
        )
        logprobs = np.empty(ids.size, np.float32)
        wanted = as_options(options)
        with self._use() as handle:
            reply: Mapping[str, Any] = call_for_json(
                LIBRARY.moe_score, handle, ids.ctypes.data, ids.size, wanted, _floats(logprobs)
            )
        return Score(
            nats_per_token=reply["nats_per_token"],
            perplexity=reply["perplexity"],
            bits_per_byte=reply["bits_per_byte"],
            tokens=reply["tokens"],
            windows=reply["windows"],
            window=reply["window"],
            routing=reply["routing"],
            causal=reply["causal"],
            ids=ids,
            logprobs=logprobs,
        )

    def logits(self, ids: ArrayLike) -> NDArray[np.float32]:
        """Logits float32 [N, V] of one sequence of ids [N]: row n is about the id after ids[n]. 4 N
        V bytes."""
        given = self._sequence(ids)
        logits = np.empty((given.size, self._vocab), np.float32)
        with self._use() as handle:
            check(LIBRARY.moe_logits(handle, given.ctypes.data, given.size, _floats(logits)))
        return logits

    def routing(self, ids: ArrayLike) -> Routing:
        """The experts, and their weights, that each token of one sequence of ids [N] goes to; L is
        0 for a dense model."""
        given = self._sequence(ids)
        shape = (self._moe_layers, given.size, self._slots)
        experts, weights = np.empty(shape, np.int32), np.empty(shape, np.float32)
        with self._use() as handle:
            if experts.size:
                check(
                    LIBRARY.moe_routing(
                        handle, given.ctypes.data, given.size, _ints(experts), _floats(weights)
                    )
                )
        return Routing(experts, weights)

    @takes_options("SaveOptions")
    def save(self, folder: Folder, **options: Unpack[SaveOptions]) -> None:
        """Writes the model folder."""
        path = as_path(folder, "folder")
        wanted = as_options(options)
        with self._use() as handle:
            check(LIBRARY.moe_save(handle, path, wanted))

    def _ids(self, ids: ArrayLike) -> Ids:
        return as_ids(ids, limit=self._vocab)

    def _sequence(self, ids: ArrayLike) -> Ids:
        given = self._ids(ids)
        if given.size == 0:
            refuse("ids is empty: at least one token is needed")
        return given


def _floats(array: NDArray[np.float32]) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(ctypes.c_float))


def _ints(array: NDArray[np.int32]) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))


class Stream(Iterator[str]):
    """Text as it is generated. `close()`, or dropping the last reference, ends the generation.

    Attributes
    ----------
    generation : Generation or None
        The whole, once the iteration has ended.
    """

    def __init__(self, model: Model, prompt: bytes, sampling: GenerateOptions) -> None:
        self.generation: Generation | None = None
        self._queue: queue.SimpleQueue[str | Generation | BaseException] = queue.SimpleQueue()
        stop = threading.Event()
        # The thread holds no reference to this object, so that dropping it is seen.
        self._thread = threading.Thread(
            target=_feed, args=(self._queue, stop, model, prompt, sampling), name="moe_cpp stream"
        )
        self._stop = weakref.finalize(self, stop.set)
        self._done = False
        self._thread.start()

    def __next__(self) -> str:
        if self._done:
            raise StopIteration
        item = self._queue.get()
        if isinstance(item, str):
            return item
        self._done = True
        self._thread.join()
        if isinstance(item, BaseException):
            raise item
        self.generation = item
        raise StopIteration

    def close(self) -> None:
        """Ends the generation and waits until the model is free."""
        self._stop()
        for _ in self:
            pass

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _feed(
    out: queue.SimpleQueue[str | Generation | BaseException],
    stop: threading.Event,
    model: Model,
    prompt: bytes,
    sampling: GenerateOptions,
) -> None:
    def tell(text: str) -> bool:
        out.put(text)
        # The program waits for its threads when it ends; one that nobody reads any more must not
        # keep it.
        return stop.is_set() or not threading.main_thread().is_alive()

    try:
        out.put(model.generate(prompt, on_text=tell, **sampling))
    except BaseException as error:
        out.put(error)


__all__ = ["Error", "Generation", "Model", "Routing", "Score", "Session", "Stream", "load"]
