"""Training from Python: the command's weights, callbacks, Ctrl-C, and what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import TINY

import moe_cpp as moe


def flags(options: dict[str, Any]) -> list[object]:
    return [
        part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", value)
    ]


def test_the_commands_weights(
    folder: Path, text_file: Path, tmp_path: Path, command: Callable[..., Any]
) -> None:
    reply = command(
        "train",
        "--data",
        text_file,
        "--out",
        tmp_path / "m",
        "--recipe",
        "olmoe",
        "--steps",
        30,
        "--seed",
        3,
        *flags(TINY),
    )
    assert reply["step"] == 30
    assert (tmp_path / "m" / "model.safetensors").read_bytes() == (
        folder / "model.safetensors"
    ).read_bytes()


def test_result_and_steps(text_file: Path, tmp_path: Path) -> None:
    held_out = tmp_path / "held_out.txt"
    held_out.write_text("the small router learns a token " * 40)
    lines: list[dict[str, Any]] = []
    result = moe.train(
        [text_file], str(tmp_path / "m"), on_step=lines.append, eval_data=held_out, steps=6, **TINY
    )
    written = [
        json.loads(line) for line in (tmp_path / "m" / "metrics.jsonl").read_text().splitlines()
    ]
    assert lines == written
    assert [line["step"] for line in lines] == list(range(1, 7))
    assert result.out == str(tmp_path / "m")
    assert (result.step, result.tokens, result.interrupted) == (6, 6 * 4 * 64, False)
    assert result.ce == lines[-1]["ce"]
    assert result.eval_ce == lines[-1]["eval_ce"]
    assert result.seconds > 0
    with result.load(threads=1) as model:
        assert model.info["layers"] == 2


def test_on_step_ends_the_run_and_resume_goes_on_bit_for_bit(
    text_file: Path, folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "m"
    ended = moe.train(
        text_file,
        out,
        on_step=lambda line: line["step"] == 11,
        recipe="olmoe",
        steps=30,
        seed=3,
        **TINY,
    )
    assert (ended.step, ended.interrupted) == (11, True)
    moe.load(out, threads=1).close()
    with pytest.raises(moe.Error, match="resume"):
        moe.train(text_file, out, recipe="olmoe", steps=30, seed=3, resume=False, **TINY)
    rest = moe.train(text_file, out, recipe="olmoe", steps=30, seed=3, resume=True, **TINY)
    assert (rest.step, rest.interrupted) == (30, False)
    assert (out / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    again = moe.train(text_file, out, recipe="olmoe", steps=30, seed=3, resume=True, **TINY)
    assert (again.step, again.tokens, again.ce, again.interrupted) == (30, rest.tokens, None, False)


def test_an_exception_of_on_step_comes_out_and_the_state_is_saved(
    text_file: Path, tmp_path: Path
) -> None:
    class Mine(Exception):
        pass

    def fails(line: dict[str, Any]) -> None:
        if line["step"] == 4:
            raise Mine("enough")

    with pytest.raises(Mine, match="enough"):
        moe.train(text_file, tmp_path / "m", on_step=fails, steps=30, **TINY)
    assert (
        moe.train(
            text_file,
            tmp_path / "m",
            steps=30,
            resume=True,
            on_step=lambda line: line["step"] == 5,
            **TINY,
        ).step
        == 5
    )


def test_other_models_work_inside_on_step(
    text_file: Path, tmp_path: Path, shared: moe.Model
) -> None:
    texts: list[str] = []
    moe.train(
        text_file,
        tmp_path / "m",
        steps=3,
        on_step=lambda _: texts.append(shared.generate("the ", tokens=5).text),
        **TINY,
    )
    assert len(set(texts)) == 1
    assert len(texts) == 3


def test_training_outside_the_main_thread(text_file: Path, tmp_path: Path) -> None:
    results: list[moe.TrainResult] = []
    worker = threading.Thread(
        target=lambda: results.append(moe.train(text_file, tmp_path / "m", steps=3, **TINY))
    )
    worker.start()
    worker.join()
    assert results[0].step == 3


PROGRAM = """
import signal, sys, moe_cpp as moe
signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores it
try:
    moe.train(sys.argv[1], sys.argv[2], steps=10**6, on_step=ON_STEP, **TINY)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("on_step", ["None", "lambda line: None"])
def test_ctrl_c_saves_and_raises(text_file: Path, tmp_path: Path, on_step: str) -> None:
    out = tmp_path / "m"
    program = PROGRAM.replace("ON_STEP", on_step).replace("TINY", repr(TINY))
    with subprocess.Popen(
        [sys.executable, "-c", program, text_file, out],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
        try:
            deadline = time.monotonic() + 60
            while not (out / "metrics.jsonl").is_file() or not (out / "metrics.jsonl").read_text():
                assert run.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.02)
            run.send_signal(signal.SIGINT)
            output, errors = run.communicate(timeout=60)
        finally:
            run.kill()
    assert (run.returncode, output, errors) == (0, "interrupted\n", "")
    with moe.load(out, threads=1) as model:
        assert model.generate("the ", tokens=3).tokens == 3
    steps = [json.loads(line)["step"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, len(steps) + 1))


def test_a_programs_own_handler_is_called_and_stays(text_file: Path, tmp_path: Path) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: seen.append(number))
    try:
        mine = signal.getsignal(signal.SIGINT)
        result = moe.train(
            text_file,
            tmp_path / "m",
            steps=4,
            on_step=lambda line: os.kill(os.getpid(), signal.SIGINT) if line["step"] == 2 else None,
            **TINY,
        )
        assert signal.getsignal(signal.SIGINT) is mine
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [signal.SIGINT]
    assert result.step == 4


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"stepz": 3}, "stepz"),
        ({"steps": -1}, "steps"),
        ({"lr": float("inf")}, "lr is inf"),
        ({"recipe": "olmo"}, "olmoe"),
        ({"preset": "tinny"}, "tiny"),
        ({"top_k": 9, "experts": 4}, "top_k"),
        ({"dtype": "f16"}, "f16"),
        ({"on_step": 5}, "on_step must be callable"),
        ({"steps": object()}, "steps must be a number"),
        ({"tokenizer": "words"}, "words"),
    ],
)
def test_what_is_refused_writes_nothing(
    text_file: Path, tmp_path: Path, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(moe.Error, match=says) as caught:
        moe.train(text_file, tmp_path / "m", **options)
    assert caught.value.usage
    assert "--" not in str(caught.value), "a keyword was given, not a flag"
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "m").exists()


def test_data_that_is_refused(tmp_path: Path) -> None:
    refused: list[tuple[Any, str]] = [
        ([], "data"),
        (tmp_path / "nowhere", "nowhere"),
        ([5], r"data\[0\] must be a path"),
        ("", r"data\[0\] is empty"),
    ]
    refused += [
        (wrong, f"data must be .* a list of paths, not {type(wrong).__name__}")
        for wrong in (None, 5, b"x.txt", {"x.txt": 1})
    ]
    for data, says in refused:
        with pytest.raises(moe.Error, match=says) as caught:
            moe.train(data, tmp_path / "m", steps=1)
        assert "\n" not in str(caught.value)
    with pytest.raises(moe.Error, match="out must be a path"):
        moe.train("x", None)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_options_of_all_kinds(text_file: Path, tmp_path: Path, folder: Path) -> None:
    stages = next(recipe["stages"] for recipe in moe.recipes() if recipe["name"] == "mixtral")
    assert (
        moe.train(text_file, tmp_path / "a", recipe="custom", stages=stages, steps=3, **TINY).step
        == 3
    )
    started = moe.train(
        text_file,
        tmp_path / "b",
        from_=folder,
        steps=1,
        lr=1e-9,
        context=64,
        batch=2,
        warmup=0,
        threads=1,
    )
    with moe.load(folder, threads=1) as before, started.load(threads=1) as after:
        np.testing.assert_allclose(after.logits([1, 2, 3]), before.logits([1, 2, 3]), atol=1e-4)
    some = moe.train(
        text_file,
        tmp_path / "c",
        steps=3,
        no_router_noise=True,
        norm_topk_prob=True,
        moe_layers=[1],
        mix={},
        **TINY,
    )
    with some.load(threads=1) as model:
        assert model.info["moe_layers"] == 1
