"""The door: what callers give becomes what the C interface takes, or is refused in one line that
names it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from moe_cpp._errors import refuse

Text: TypeAlias = str | bytes | bytearray | memoryview
Folder: TypeAlias = str | os.PathLike[str]
Ids: TypeAlias = NDArray[np.int32]

_ID_LIMIT = 2**31


def as_text(value: object, name: str) -> bytes:
    """UTF-8 of a str, or the bytes as they are."""
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            refuse(
                f"{name} has half a surrogate pair at place {error.start}, which has no UTF-8: give bytes, or a text without it"
            )
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    refuse(f"{name} must be str or bytes, not {type(value).__name__}")


def as_path(value: object, name: str) -> bytes:
    if not isinstance(value, (str, os.PathLike)):
        refuse(f"{name} must be a path (str or pathlib.Path), not {type(value).__name__}")
    path = os.fsencode(value)
    if not path or b"\0" in path:
        refuse(f"{name} is {'empty' if not path else 'a path with a zero byte'}: name a folder")
    return path


def _as_array(value: ArrayLike, name: str, dimensions: int) -> NDArray[Any]:
    """Of any byte order and stride; anything that is not numbers in `dimensions` dimensions is
    refused."""
    shape = " x ".join("NMO"[:dimensions])
    if isinstance(value, (str, bytes, bytearray)):
        refuse(f"{name} must be numbers, not text (encode() makes ids of a text)")
    try:
        array = np.asarray(value)
    except (ValueError, TypeError):
        refuse(f"{name} must be an array {shape}, and its rows are not of one length")
    if array.dtype.kind not in "iuf":
        refuse(f"{name} must be an array of numbers, not of dtype {array.dtype}")
    if array.ndim != dimensions:
        refuse(
            f"{name} must have {dimensions} dimension{'s' if dimensions > 1 else ''} [{shape}], not the shape {array.shape}"
        )
    return array


def as_ids(value: ArrayLike, name: str = "ids", limit: int = _ID_LIMIT) -> Ids:
    """Token ids [N] below `limit`, C-contiguous int32; may be empty."""
    array = _as_array(value, name, 1)
    if array.size == 0:
        return np.empty(0, np.int32)
    if array.dtype.kind == "f":
        refuse(f"{name} must be whole numbers of an integer dtype, not {array.dtype}")
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= limit:
        place = int(array.argmin() if low < 0 else array.argmax())
        refuse(f"{name}[{place}] is {low if low < 0 else high}, and token ids are 0 to {limit - 1}")
    return np.ascontiguousarray(array, np.int32)


def as_numbers(value: ArrayLike, name: str, dimensions: int) -> list[Any]:
    """Finite numbers of 32 bits as JSON has them."""
    array = _as_array(value, name, dimensions)
    with np.errstate(over="ignore"):
        narrow = array.astype(np.float32)
    bad = np.argwhere(~np.isfinite(narrow))
    if bad.size:
        place = tuple(int(i) for i in bad[0])
        refuse(
            f"{name}[{', '.join(map(str, place))}] is {array[place]}, and a finite number of 32 bits is needed"
        )
    numbers: list[Any] = narrow.tolist()
    return numbers


def _as_json(value: object, name: str) -> object:
    if isinstance(value, np.generic):
        value = value.item()
    elif isinstance(value, np.ndarray):
        value = value.tolist()
    elif isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, float) and not math.isfinite(value):
        refuse(f"{name} is {value}, and a finite number is needed")
    if isinstance(value, str):
        as_text(value, name)
        return value
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _as_json(one, f"{name}[{key!r}]") for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray, memoryview)):
        return [_as_json(one, f"{name}[{i}]") for i, one in enumerate(value)]
    refuse(
        f"{name} must be a number, a text, a truth value or a list of these, not {type(value).__name__}"
    )


def as_options(options: Mapping[str, object]) -> bytes:
    """The JSON of options: None is left out, the underscore that keeps a name from being a keyword
    of Python (from_) too."""
    given = {
        name.removesuffix("_"): _as_json(value, name)
        for name, value in options.items()
        if value is not None
    }
    return json.dumps(given, ensure_ascii=False, allow_nan=False).encode()
