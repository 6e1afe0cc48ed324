"""The door: what is converted, and what is refused by one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import ONE_STEP

import moe_cpp as moe

IDS = [116, 104, 101, 32]


@pytest.mark.parametrize(
    "ids",
    [
        np.array(IDS),
        np.array(IDS, ">i4"),
        np.array(IDS, ">u2"),
        np.array(IDS, np.uint8),
        np.repeat(np.array(IDS, np.int32), 3)[::3],
        np.array(IDS[::-1], np.int32)[::-1],
        np.array([IDS], np.int64)[0],
        tuple(IDS),
        range(3),
    ],
)
def test_ids_of_any_integer_dtype_order_and_stride(shared: moe.Model, ids: Any) -> None:
    np.testing.assert_array_equal(shared.logits(ids), shared.logits(np.array(list(ids), np.int32)))
    assert shared.decode_bytes(ids) == bytes(int(i) for i in ids)


@pytest.mark.parametrize(
    ("ids", "says"),
    [
        ([1, -2], r"ids\[1\] is -2"),
        (np.array([5, 2**31]), r"ids\[1\] is 2147483648"),
        (np.array([2**64 - 1], np.uint64), r"ids\[0\] is 18446744073709551615"),
        ([2**70], "dtype object"),
        ([1.0, 2.0], "whole numbers of an integer dtype, not float64"),
        ([True, False], "dtype bool"),
        ([[1, 2]], r"1 dimension \[N\], not the shape \(1, 2\)"),
        ([[1], [1, 2]], "not of one length"),
        (7, r"not the shape \(\)"),
        ("the", "not text"),
        (b"the", "not text"),
        (None, "dtype object"),
        (
            [1, 256],
            r"ids\[1\] is 256, and token ids are 0 to 255",
        ),  # one more than the vocabulary has
    ],
)
def test_ids_that_are_refused(shared: moe.Model, ids: Any, says: str) -> None:
    for call in (shared.logits, shared.routing, shared.decode, shared.decode_bytes):
        with pytest.raises(moe.Error, match=says) as caught:
            call(ids)
        assert "\n" not in str(caught.value)


def test_no_ids(shared: moe.Model) -> None:
    assert shared.decode([]) == ""
    assert shared.decode(np.empty(0, np.int32)) == ""
    for call in (shared.logits, shared.routing):
        with pytest.raises(moe.Error, match="at least one token"):
            call([])
    nothing: Any
    for nothing in ([], "", b""):
        with pytest.raises(moe.Error, match="window"):
            shared.score(nothing)
    with pytest.raises(moe.Error):
        shared.generate("")


@pytest.mark.parametrize("text", [None, 5, ["the"], np.array([1])])
def test_texts_that_are_none(shared: moe.Model, text: Any) -> None:
    for name, call in (
        ("text", shared.encode),
        ("prompt", shared.generate),
        ("prompt", shared.stream),
    ):
        with pytest.raises(
            moe.Error, match=f"{name} must be str or bytes, not {type(text).__name__}"
        ) as caught:
            call(text)
        assert caught.value.usage


def test_half_a_surrogate_pair(shared: moe.Model) -> None:
    with pytest.raises(moe.Error, match="surrogate pair at place 2"):
        shared.encode("ab\ud800")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_p": 2.0}, "^top_p is 2"),
        ({"top_k": -1}, "^top_k is -1"),
        ({"repeat_penalty": 0}, "^repeat_penalty is 0"),
        ({"tokens": "many"}, "tokens must be a whole number, not str"),
        ({"tokens": -1}, "tokens is -1"),
        ({"tokens": None}, "tokens must be a whole number, not NoneType"),
        ({"seed": "x"}, "seed"),
        ({"routing": "sideways"}, "sideways"),
        ({"stop": [1]}, r"stop\[0\] must be str, not int"),
        ({"stop": 5}, "stop must be a text or a list of texts, not int"),
        ({"on_text": 3}, "on_text must be callable"),
        ({"top_k": b"40"}, "top_k must be a number"),
    ],
)
def test_options_of_generate_that_are_refused(shared: moe.Model, options: Any, says: str) -> None:
    with pytest.raises(moe.Error, match=says) as caught:
        shared.generate("the ", **options)
    assert caught.value.usage
    assert "--" not in str(caught.value), "a keyword was given, not a flag"
    assert "\n" not in str(caught.value)


def test_options_may_be_numpys(shared: moe.Model) -> None:
    sampling: dict[str, Any] = {
        "tokens": np.int64(20),
        "temperature": np.float32(0.5),
        "seed": np.uint8(3),
    }
    ours = shared.generate("the ", **sampling)
    assert ours == shared.generate("the ", tokens=20, temperature=0.5, seed=3)


def test_folders_that_are_refused(tmp_path: Path, shared: moe.Model) -> None:
    with pytest.raises(moe.Error, match="nowhere") as caught:
        moe.load(tmp_path / "nowhere")
    assert not caught.value.usage
    refused: list[tuple[Any, str]] = [
        (5, "folder must be a path"),
        ("", "folder is empty"),
        ("a\x00b", "zero byte"),
        (b"x", "folder must be a path"),
    ]
    calls: list[Callable[[Any], object]] = [moe.load, shared.save]
    for folder, says in refused:
        for call in calls:
            with pytest.raises(moe.Error, match=says) as caught:
                call(folder)
            assert caught.value.usage


def test_a_broken_folder_leaves_no_model(tmp_path: Path, folder: Path) -> None:
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:1000])
    with pytest.raises(moe.Error, match="model.safetensors"):
        moe.load(tmp_path)


@pytest.mark.parametrize(
    ("options", "says"),
    [({"dtype": "f16"}, "f16"), ({"threads": -1}, "threads"), ({"threads": "all"}, "threads")],
)
def test_options_of_load_that_are_refused(folder: Path, options: Any, says: str) -> None:
    with pytest.raises(moe.Error, match=says) as caught:
        moe.load(folder, **options)
    assert caught.value.usage


def test_save_refuses_a_dtype_and_a_file_in_the_way(shared: moe.Model, tmp_path: Path) -> None:
    with pytest.raises(moe.Error, match="f64"):
        shared.save(tmp_path / "m", dtype="f64")
    assert not (tmp_path / "m").exists()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(moe.Error, match="file"):
        shared.save(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_sequence_beyond_learned_positions(tmp_path: Path, text_file: Path) -> None:
    moe.train(text_file, tmp_path / "m", recipe="nanomoe", layers=2, experts=4, **ONE_STEP)
    with moe.load(tmp_path / "m", threads=1) as model:
        assert model.logits([1] * 16).shape == (16, 256)
        for call in (model.logits, model.routing):
            with pytest.raises(moe.Error, match="16"):
                call([1] * 17)
