#!/usr/bin/env python3
"""Makes every golden file of tests/data/golden, or with --check makes them again elsewhere and
compares with the committed ones.

Equal means: the same files, tensors, ids and choices; numbers within 1e-5, norm-wise for a tensor.
"""

import argparse
import os
import sys

import common
import jinja
import muon
import nanomoe
import olmoe
import quant
import recipes
import rope

FOLDER = os.path.normpath(
    os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "data", "golden")
)
TOLERANCE = 1e-5


def make_all(folder):
    common.single_thread()
    recipes.make_all(folder)
    nanomoe.make_all(folder)
    olmoe.make_all(folder)
    quant.make_all(folder)
    rope.make_all(folder)
    muon.make_all(folder)
    jinja.make_all(folder)


def check():
    differences, files = 0, 0
    with common.temporary_folder() as fresh:
        make_all(fresh)
        names = {n for n in os.listdir(fresh)} | {
            n for n in os.listdir(FOLDER) if n.endswith((".json", ".safetensors"))
        }
        for name in sorted(names):
            worst, where = common.compare_files(
                os.path.join(fresh, name), os.path.join(FOLDER, name)
            )
            good = worst <= TOLERANCE
            differences, files = differences + (not good), files + 1
            print(
                f"{'same' if good else 'DIFFERENT'}  {name}: largest difference {worst:.2e}{' at ' + where if worst else ''}",
                flush=True,
            )
    print(f"{files - differences} of {files} golden files made again equal the committed ones")
    return 1 if differences else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check",
        action="store_true",
        help="compare with the committed files instead of writing them",
    )
    if parser.parse_args().check:
        return check()
    os.makedirs(FOLDER, exist_ok=True)
    make_all(FOLDER)
    for name in sorted(os.listdir(FOLDER)):
        print(f"{os.path.getsize(os.path.join(FOLDER, name)):8d}  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
