#!/usr/bin/env python3
"""Writes src/tensor/quant_grids.h: the grids of GGUF's formats IQ1_*, IQ2_* and IQ3_*, as the gguf
package has them.

  python tools/quant_grids.py > src/tensor/quant_grids.h
"""

import numpy as np
from gguf import quants

COLUMNS = 12
GRIDS = {  # our name: the package's class
    "kIq2XxsGrid": quants.IQ2_XXS,
    "kIq2XsGrid": quants.IQ2_XS,
    "kIq2SGrid": quants.IQ2_S,
    "kIq3XxsGrid": quants.IQ3_XXS,
    "kIq3SGrid": quants.IQ3_S,
    "kIq1Grid": quants.IQ1_S,
}
HEAD = """\
// The grids of quant_grid.cpp, facts of the format (github ggml-org/ggml, src/ggml-common.h).
// Written by tools/quant_grids.py. A point of IQ1 and IQ2 is 8 numbers of two bits, one of IQ3 4 of
// three bits, the first in the lowest bits; each says which of the ascending sizes it is.
#pragma once

#include <cstdint>

namespace moe {
"""


def points(kind):
    """Each point's numbers in one integer."""
    kind.init_grid()
    sizes = np.array(kind.grid_map)
    which = np.searchsorted(sizes, kind.grid.reshape(kind.grid_shape)).astype(np.int64)
    bits = 2 if len(sizes) == 3 else 3
    return (which << (bits * np.arange(which.shape[1]))).sum(axis=1)


def main():
    print(HEAD)
    print("// clang-format off")
    for name, kind in GRIDS.items():
        all_points = [f"0x{p:04x}" for p in points(kind)]
        print(f"inline constexpr uint16_t {name}[{len(all_points)}] = {{")
        for i in range(0, len(all_points), COLUMNS):
            print("    " + ", ".join(all_points[i : i + COLUMNS]) + ",")
        print("};")
    print("// clang-format on\n\n}  // namespace moe")


main()
