"""Puts libmoe.so into the wheel: from the installation MOE_PREFIX names, or built from the repository around this folder.

The library is built in MOE_BUILD (default: build/release of the repository, so that what is compiled there already is not compiled again).
The wheel runs with every Python 3 but only on the machine's system and processor: its tag is py3-none-PLATFORM.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

REPOSITORY = Path(__file__).resolve().parent.parent
LIBRARY = "libmoe.so"
TARGET = "moe_shared"


def version() -> str:
    lists = REPOSITORY / "CMakeLists.txt"
    if not lists.is_file():
        raise SystemExit(f"{lists} is not there: the wheel is built inside a checkout of moe.cpp, whose version it takes")
    found = re.search(r"project\(moe_cpp\s+VERSION\s+([0-9.]+)", lists.read_text(encoding="utf-8"))
    if found is None:
        raise SystemExit(f"{lists} names no version of project moe_cpp")
    return found[1]


def installed_library(prefix: Path) -> Path:
    found = sorted(path for path in prefix.glob(f"lib*/**/{LIBRARY}"))
    if not found:
        raise SystemExit(f"MOE_PREFIX is {prefix}, but no {LIBRARY} lies under its lib: run cmake --install there, or leave MOE_PREFIX out")
    return found[0]


def built_library(build: Path) -> Path:
    if shutil.which("cmake") is None:
        raise SystemExit("cmake is missing: run scripts/deps.sh, or name an installation by MOE_PREFIX")
    # A folder already configured keeps its generator and its options.
    if not (build / "CMakeCache.txt").is_file():
        ninja = ["-G", "Ninja"] if shutil.which("ninja") else []
        options = ["-DCMAKE_BUILD_TYPE=Release", "-DMOE_TESTS=OFF", "-DMOE_BENCH=OFF"]
        subprocess.run(["cmake", "-S", str(REPOSITORY), "-B", str(build), *ninja, *options], check=True)
    jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(os.cpu_count() or 1)
    subprocess.run(["cmake", "--build", str(build), "--parallel", jobs, "--target", TARGET], check=True)
    found = build / LIBRARY
    if not found.exists():
        raise SystemExit(f"{build} was built, but {LIBRARY} is not in it")
    return found


class BuildPackage(build_py):
    """Copies the modules, then the library and the licence beside them."""

    def run(self) -> None:
        shutil.rmtree(Path(self.build_lib) / "moe_cpp", ignore_errors=True)  # of an earlier build, which may hold what is no more
        super().run()
        if "MOE_PREFIX" in os.environ:
            library = installed_library(Path(os.environ["MOE_PREFIX"]).expanduser())
        else:
            library = built_library(Path(os.environ.get("MOE_BUILD", REPOSITORY / "build" / "release")).expanduser().absolute())
        package = Path(self.get_package_dir("moe_cpp")) if self.editable_mode else Path(self.build_lib) / "moe_cpp"
        shutil.copyfile(library, package / LIBRARY)  # of a chain of links the file itself
        if not self.editable_mode:
            shutil.copyfile(REPOSITORY / "LICENSE", package / "LICENSE")


class PlatformWheel(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class BinaryDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return True


setup(version=version(), distclass=BinaryDistribution, cmdclass={"build_py": BuildPackage, "bdist_wheel": PlatformWheel})
