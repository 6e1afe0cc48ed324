"""The package itself: what it is called, what it binds, how it fails where the library or a library of the system is not there, and its README."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import moe_cpp as moe
from moe_cpp import _library

FOLDER = Path(__file__).resolve().parents[1]


def test_versions_agree() -> None:
    lists = (FOLDER.parent / "CMakeLists.txt").read_text()
    found = re.search(r"project\(moe_cpp VERSION ([0-9.]+)", lists)
    assert found is not None
    assert moe.__version__ == found[1] == importlib.metadata.version("moe-cpp")


def test_it_is_the_installed_package_with_its_types() -> None:
    place = Path(moe.__file__).parent
    assert FOLDER not in place.parents
    assert {"py.typed", "libmoe.so", "LICENSE", "bin"} <= {path.name for path in place.iterdir()}


def test_it_brings_the_command(binary: Path, tmp_path: Path) -> None:
    installed = Path(sys.executable).parent / "moe"
    for arguments in (["--version"], ["recipes", "mixtral"], ["no-such-verb"]):
        ours, theirs = (subprocess.run([program, *arguments], capture_output=True, cwd=tmp_path, check=False) for program in (installed, binary))
        assert (ours.returncode, ours.stdout, ours.stderr) == (theirs.returncode, theirs.stdout, theirs.stderr)
    assert not list(tmp_path.iterdir())


def test_every_function_of_the_header_is_bound() -> None:
    header = (FOLDER.parent / "include" / "moe" / "moe.h").read_text()
    declared = set(re.findall(r"^MOE_API .*?\b(moe_\w+)\(", header, re.MULTILINE))
    assert len(declared) >= 15
    for name in declared:
        assert getattr(_library.LIBRARY, name).argtypes is not None, name
    arguments = {name: one.count(",") + 1 for name, one in re.findall(r"^MOE_API moe_status (moe_\w+)\(([^)]*)\)", header, re.MULTILINE)}
    assert arguments == {name: len(types) for name, types in _library._STATUS_FUNCTIONS.items()}


def test_the_options_are_those_of_the_command(binary: Path) -> None:
    command_help = subprocess.run([binary, "train", "--help"], capture_output=True, text=True, check=True).stdout
    theirs = set(re.findall(r"^  (?:-\w,)?--([a-z0-9-]+)", command_help, re.MULTILINE))
    theirs -= {"help", "json", "data", "out", "preset"}  # arguments of train(), and what has no meaning there
    theirs -= {name for name in theirs if name.startswith("sample-")} | {"no-report", "show-memory"}  # what the command does beside training
    ours = {name.removesuffix("_").replace("_", "-") for name in moe.TrainOptions.__annotations__}
    assert ours == theirs, "bring TrainOptions in options.py in line with moe train --help"


def imported(library: Path) -> str:
    done = subprocess.run([sys.executable, "-c", "import moe_cpp"], capture_output=True, text=True, env={"MOE_LIBRARY": str(library)}, check=False)
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]


def test_a_library_of_the_system_that_is_missing(tmp_path: Path) -> None:
    broken = tmp_path / "libmoe.so"
    content = Path(_library.library_path()).read_bytes()
    needed = re.search(rb"libdnnl\.so\.\d", content)
    assert needed is not None
    broken.write_bytes(content.replace(needed[0], b"libdnnl.so.x"))
    says = imported(broken)
    assert re.match(r"ImportError: moe_cpp: this system has no libdnnl\.so\.x[.\d]*, which libmoe\.so needs", says)
    assert "scripts/deps.sh" in says


@pytest.mark.parametrize(("content", "says"), [(None, "is not there; MOE_LIBRARY names it"), (b"no library", "cannot be loaded")])
def test_a_library_that_is_none(tmp_path: Path, content: bytes | None, says: str) -> None:
    path = tmp_path / "libmoe.so"
    if content is not None:
        path.write_bytes(content)
    assert says in imported(path)


def test_another_library() -> None:
    loaded = subprocess.run(["ldd", _library.library_path()], capture_output=True, text=True, check=True).stdout
    other = re.search(r"libm\.so\.6 => (\S+)", loaded)
    assert other is not None
    assert "is no libmoe.so of this version" in imported(Path(other[1]))


def test_the_environment_is_left_as_it_was() -> None:
    program = "import os; before = dict(os.environ); import moe_cpp; assert dict(os.environ) == before"
    for setting in ({}, {"GOMP_SPINCOUNT": "5"}, {"OMP_WAIT_POLICY": "passive"}):
        environment = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
        subprocess.run([sys.executable, "-c", program], env=environment | setting, check=True)


def test_the_readmes_example_runs(tmp_path: Path, text_file: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (FOLDER / "README.md").read_text(), re.DOTALL)
    assert blocks
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "text.txt").write_bytes(text_file.read_bytes() * 4)
    program = "\n".join(blocks)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout.count("\n") >= 5
