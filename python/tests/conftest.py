"""What the tests share: a text, a model trained on it by this package, and the command to compare
with (BIN, or the repository's build/release/moe)."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny import TINY, text_of

import moe_cpp as moe


@pytest.fixture(scope="session")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(text_of(4000, 1), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory, text_file: Path) -> Path:
    out = tmp_path_factory.mktemp("model") / "tiny"
    result = moe.train(text_file, out, recipe="olmoe", steps=30, seed=3, **TINY)
    assert result.step == 30
    return out


@pytest.fixture(scope="session")
def shared(folder: Path) -> Iterator[moe.Model]:
    with moe.load(folder, threads=1) as model:
        yield model


@pytest.fixture(scope="session")
def binary() -> Path:
    path = Path(
        os.environ.get("BIN", Path(__file__).resolve().parents[2] / "build" / "release" / "moe")
    ).absolute()
    assert path.is_file(), f"{path} is not there: build it, or name the command by BIN"
    return path


@pytest.fixture(scope="session")
def command(binary: Path) -> Callable[..., Any]:
    """Runs `moe ... --json` and returns what it printed."""

    def run(*arguments: object) -> Any:
        done = subprocess.run(
            [binary, *map(str, arguments), "--json"], capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr.decode()
        return json.loads(done.stdout)

    return run
