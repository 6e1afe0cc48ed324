"""The package itself: what it is called, what it binds, how it fails where the library or a library
of the system is not there, and its README."""

from __future__ import annotations

import importlib.metadata
import inspect
import os
import pydoc
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import moe_cpp as moe
from moe_cpp import _library, options

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
        ours, theirs = (
            subprocess.run([program, *arguments], capture_output=True, cwd=tmp_path, check=False)
            for program in (installed, binary)
        )
        assert (ours.returncode, ours.stdout, ours.stderr) == (
            theirs.returncode,
            theirs.stdout,
            theirs.stderr,
        )
    assert not list(tmp_path.iterdir())


def test_every_function_of_the_header_is_bound() -> None:
    header = (FOLDER.parent / "include" / "moe" / "moe.h").read_text()
    declared = set(re.findall(r"^MOE_API .*?\b(moe_\w+)\(", header, re.MULTILINE))
    assert len(declared) >= 15
    for name in declared:
        assert getattr(_library.LIBRARY, name).argtypes is not None, name
    arguments = {
        name: one.count(",") + 1
        for name, one in re.findall(
            r"^MOE_API moe_status (moe_\w+)\(([^)]*)\)", header, re.MULTILINE
        )
    }
    assert arguments == {name: len(types) for name, types in _library._STATUS_FUNCTIONS.items()}


def command_options(binary: Path, verb: str) -> dict[str, str]:
    """Each flag of `moe help VERB` as a keyword, with the default that is shown; "" where there is
    none."""
    text = subprocess.run([binary, "help", verb], capture_output=True, text=True, check=True).stdout
    flags = re.findall(
        r"^  (?:-\w,)?--([a-z0-9-]+)(?: (?:DOMAIN=WEIGHT|PART=FACTOR|[A-Z]+)(?:=(\S+))?(?: \.\.\.)?)?(?=  |\n)",
        text,
        re.MULTILINE,
    )
    return {options.keyword_of(name.replace("-", "_")): default for name, default in flags}


def keywords(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return {
        name: p
        for name, p in inspect.signature(function).parameters.items()
        if p.kind is inspect.Parameter.KEYWORD_ONLY
    }


SESSIONS_OWN = {
    "routing",
    "top_k_experts",
    "cache_dtype",
    "draft",
    "draft_tokens",
    "draft_min_p",
}
# What is said once, of a model.
MODELS_OWN = {
    "threads",
    "device",
    "dtype",
    "memory",
    "pack_memory",
    "adapter",
    "show_memory",
}
# Flags of `moe generate` that are no keywords of a text: arguments, those, and what the library
# does not have.
GENERATES_OWN = MODELS_OWN | {
    "prompt",
    "file",
    "samples",
    "hot_set",
    "show_speed",
}


@pytest.mark.parametrize(
    ("function", "verb", "own", "commands"),
    [
        (moe.train, "train", {"on_step"}, {"data", "out", "no_report", "show_memory", "elastic"}),
        (
            moe.Model.generate,
            "generate",
            {"on_text"},
            GENERATES_OWN,
        ),
        (
            moe.Model.stream,
            "generate",
            set(),
            GENERATES_OWN,
        ),
        (
            moe.Session.generate,
            "generate",
            {"on_text"},
            GENERATES_OWN | SESSIONS_OWN,
        ),
        (
            moe.Model.score,
            "score",
            set(),
            MODELS_OWN | {"text", "record", "replay", "per_token"},
        ),
        (moe.load, "generate", set(), None),
    ],
)
def test_keywords_are_the_commands_flags_with_their_defaults(
    binary: Path, function: Callable[..., Any], verb: str, own: set[str], commands: set[str] | None
) -> None:
    theirs = {
        name: default
        for name, default in command_options(binary, verb).items()
        if not name.startswith("sample_")
    }
    ours = keywords(function)
    if commands is None:  # some of the verb's
        assert set(ours) == {"adapter", "threads", "dtype", "memory", "pack_memory"}
    else:
        assert set(ours) - own == set(theirs) - commands - {"help", "json"}
    for name in set(ours) & set(theirs):
        default = ours[name].default
        shown = (
            ""
            if default is None or default is False
            else f"{default:g}"
            if isinstance(default, float)
            else str(default)
        )
        assert shown == theirs[name], name
        assert ours[name].annotation is not inspect.Parameter.empty


def test_a_session_is_opened_with_what_is_its_own() -> None:
    ours = keywords(moe.Model.session)
    assert set(ours) == {"capacity", "threads"} | SESSIONS_OWN
    assert ours["capacity"].default == 0
    theirs = keywords(moe.Model.generate)
    assert all(ours[name] == theirs[name] for name in SESSIONS_OWN)


def test_help_tells_types_defaults_and_units() -> None:
    text = pydoc.plain(pydoc.render_doc(moe.train))
    for part in (
        "steps : int, default 1000, in steps",
        "optimizer steps",
        "lr : float, default 0.001",
        "from_ : path",
        "num_hidden_layers",
        "Training:",
    ):
        assert part in text, part
    assert not re.search(r"--[a-z]", text), "keywords, not flags"
    assert "tokens : int, default 200" in pydoc.plain(pydoc.render_doc(moe.Model.generate))
    assert "capacity : int, default 0, in tokens" in pydoc.plain(
        pydoc.render_doc(moe.Model.session)
    )


def test_the_types_are_those_of_the_library() -> None:
    stub = (Path(moe.__file__).parent / "options.pyi").read_text()
    for name in (
        "TrainOptions",
        "LoadOptions",
        "SaveOptions",
        "GenerateOptions",
        "SessionOptions",
        "ContinueOptions",
        "ScoreOptions",
        "RouteOptions",
    ):
        written = re.search(rf"class {name}\(TypedDict, total=False\):\n((?:    \w+: .*\n)*)", stub)
        assert written is not None
        assert re.findall(r"    (\w+):", written[1]) == list(getattr(moe, name).__annotations__)


def imported(library: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", "import moe_cpp"],
        capture_output=True,
        text=True,
        env={"MOE_LIBRARY": str(library)},
        check=False,
    )
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]


def test_a_library_of_the_system_that_is_missing(tmp_path: Path) -> None:
    broken = tmp_path / "libmoe.so"
    content = Path(_library.library_path()).read_bytes()
    needed = re.search(rb"libdnnl\.so\.\d", content)
    assert needed is not None
    broken.write_bytes(content.replace(needed[0], b"libdnnl.so.x"))
    says = imported(broken)
    assert re.match(
        r"ImportError: moe_cpp: this system has no libdnnl\.so\.x[.\d]*, which libmoe\.so needs",
        says,
    )
    assert "scripts/deps.sh" in says


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "is not there; MOE_LIBRARY names it"), (b"no library", "cannot be loaded")],
)
def test_a_library_that_is_none(tmp_path: Path, content: bytes | None, says: str) -> None:
    path = tmp_path / "libmoe.so"
    if content is not None:
        path.write_bytes(content)
    assert says in imported(path)


def test_another_library() -> None:
    loaded = subprocess.run(
        ["ldd", _library.library_path()], capture_output=True, text=True, check=True
    ).stdout
    other = re.search(r"libm\.so\.6 => (\S+)", loaded)
    assert other is not None
    assert "is no libmoe.so of this version" in imported(Path(other[1]))


def test_the_environment_is_left_as_it_was() -> None:
    program = (
        "import os; before = dict(os.environ); import moe_cpp; assert dict(os.environ) == before"
    )
    for setting in ({}, {"GOMP_SPINCOUNT": "5"}, {"OMP_WAIT_POLICY": "passive"}):
        environment = {
            name: value
            for name, value in os.environ.items()
            if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
        }
        subprocess.run([sys.executable, "-c", program], env=environment | setting, check=True)


def test_the_readmes_example_runs(tmp_path: Path, text_file: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (FOLDER / "README.md").read_text(), re.DOTALL)
    assert blocks
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "text.txt").write_bytes(text_file.read_bytes() * 4)
    program = "\n".join(blocks)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout.count("\n") >= 5
