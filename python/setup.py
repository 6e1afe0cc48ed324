"""Puts libmoe.so, the command moe and the types of options into the wheel: of the installation
MOE_PREFIX names, or built from the sources of moe.cpp.

The sources are the checkout around this folder; a source distribution has them in engine/. They are
built in MOE_BUILD (default: build/release of the sources, so that what is compiled there already is
not compiled again). MOE_NOTICES names a folder of texts to put beside them: the licences of bundled
libraries. The wheel runs with every Python 3 but only on the machine's system and processor: its
tag is py3-none-PLATFORM. scripts/wheel.sh makes one for any Linux.
"""

from __future__ import annotations

import ctypes
import json
import keyword
import os
import re
import runpy
import shutil
import subprocess
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = Path(__file__).resolve().parent
SHIPPED = HERE / "engine"
REPOSITORY = SHIPPED if SHIPPED.is_dir() else HERE.parent
SOURCES = ("CMakeLists.txt", "LICENSE", "cmake", "include", "share", "src")  # what the build reads
LIBRARY = "libmoe.so"
COMMAND = "moe"
TARGETS = ("moe_shared", "moe")


def version() -> str:
    lists = REPOSITORY / "CMakeLists.txt"
    if not lists.is_file():
        raise SystemExit(
            f"{lists} is not there: the wheel is built inside a checkout of moe.cpp, whose version it takes"
        )
    found = re.search(r"project\(moe_cpp\s+VERSION\s+([0-9.]+)", lists.read_text(encoding="utf-8"))
    if found is None:
        raise SystemExit(f"{lists} names no version of project moe_cpp")
    return found[1]


def installed(prefix: Path) -> tuple[Path, Path]:
    libraries = sorted(prefix.glob(f"lib*/**/{LIBRARY}"))
    command = prefix / "bin" / COMMAND
    if not libraries or not command.is_file():
        absent = LIBRARY + " lies under its lib" if not libraries else COMMAND + " lies in its bin"
        raise SystemExit(
            f"MOE_PREFIX is {prefix}, but no {absent}: run cmake --install there, or leave MOE_PREFIX out"
        )
    return libraries[0], command


def built(build: Path) -> tuple[Path, Path]:
    if shutil.which("cmake") is None:
        raise SystemExit(
            "cmake is missing: run scripts/deps.sh of moe.cpp, or name an installation by MOE_PREFIX"
        )
    # A folder already configured keeps its generator and its options.
    if not (build / "CMakeCache.txt").is_file():
        ninja = ["-G", "Ninja"] if shutil.which("ninja") else []
        options = [
            "-DCMAKE_BUILD_TYPE=Release",
            "-DMOE_TESTS=OFF",
            "-DMOE_BENCH=OFF",
            "-DMOE_TOGETHER=ON",
        ]
        subprocess.run(
            ["cmake", "-S", str(REPOSITORY), "-B", str(build), *ninja, *options], check=True
        )
    jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(os.cpu_count() or 1)
    subprocess.run(
        ["cmake", "--build", str(build), "--parallel", jobs, "--target", *TARGETS], check=True
    )
    for name in (LIBRARY, COMMAND):
        if not (build / name).exists():
            raise SystemExit(f"{build} was built, but {name} is not in it")
    return build / LIBRARY, build / COMMAND


def option_stub(library: Path) -> str:
    """options.pyi: what options.py asks the library at import, written down for type checkers."""
    known = runpy.run_path(str(HERE / "src" / "moe_cpp" / "_option_types.py"))
    lib = ctypes.CDLL(str(library.resolve()))
    lines = [
        '"""Written by setup.py from the options that libmoe.so takes."""',
        "from collections.abc import Callable, Mapping, Sequence",
        "from typing import Any, TypedDict, TypeVar",
        "",
        "from moe_cpp._inputs import Folder",
        "",
        'Function = TypeVar("Function", bound=Callable[..., Any])',
        "",
        "def options_of(name: str) -> list[dict[str, Any]]: ...",
        "def keyword_of(name: str) -> str: ...",
        "def takes_options(name: str) -> Callable[[Function], Function]: ...",
    ]
    for name, (function, arguments) in known["FUNCTIONS"].items():
        reply = ctypes.c_char_p()
        if lib.moe_options(function.encode(), ctypes.byref(reply)) != 0 or reply.value is None:
            raise SystemExit(f"{library} does not tell the options of {function}")
        lines += ["", f"class {name}(TypedDict, total=False):"]
        for row in json.loads(reply.value):
            if row["name"] in arguments:
                continue
            kind = known["TYPES"][row["kind"]]
            for one in [row["name"], *row["also"]]:
                if len(one) > 1:  # no letter of a short flag
                    lines.append(f"    {one}{'_' if keyword.iskeyword(one) else ''}: {kind} | None")
    return "\n".join(lines) + "\n"


class BuildPackage(build_py):
    """Copies the modules, then the library, the command and the licences beside them."""

    def run(self) -> None:
        shutil.rmtree(
            Path(self.build_lib) / "moe_cpp", ignore_errors=True
        )  # of an earlier build, which may hold what is no more
        super().run()
        if "MOE_PREFIX" in os.environ:
            library, command = installed(Path(os.environ["MOE_PREFIX"]).expanduser())
        else:
            library, command = built(
                Path(os.environ.get("MOE_BUILD", REPOSITORY / "build" / "release"))
                .expanduser()
                .absolute()
            )
        package = (
            Path(self.get_package_dir("moe_cpp"))
            if self.editable_mode
            else Path(self.build_lib) / "moe_cpp"
        )
        shutil.copyfile(library, package / LIBRARY)  # of a chain of links the file itself
        (package / "options.pyi").write_text(option_stub(library), encoding="utf-8")
        (package / "bin").mkdir(exist_ok=True)
        shutil.copy(command, package / "bin" / COMMAND)
        if not self.editable_mode:
            shutil.copyfile(REPOSITORY / "LICENSE", package / "LICENSE")
            if "MOE_NOTICES" in os.environ:
                shutil.copytree(Path(os.environ["MOE_NOTICES"]).expanduser(), package / "licenses")


class SourceDistribution(sdist):
    """The whole source: this folder, and the engine's in engine/."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        for name in SOURCES:
            source, to = REPOSITORY / name, Path(base_dir) / "engine" / name
            to.parent.mkdir(exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, to)
            else:
                shutil.copyfile(source, to)


class PlatformWheel(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class BinaryDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return True


setup(
    version=version(),
    distclass=BinaryDistribution,
    scripts=["bin/moe"],
    cmdclass={"build_py": BuildPackage, "bdist_wheel": PlatformWheel, "sdist": SourceDistribution},
)
