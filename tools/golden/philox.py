"""The engine's counter-based random numbers (src/core/rng.h), transcribed: Philox 4x32-10 (Salmon
et al., SC11) under keys folded by splitmix64."""

import math

import numpy as np

_M64 = (1 << 64) - 1
_M32 = (1 << 32) - 1


def _mix(x):
    x = (x + 0x9E3779B97F4A7C15) & _M64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _M64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _M64
    return x ^ (x >> 31)


def from_seed(seed):
    return _mix(_mix(seed)) or 1


def fold(key, part):
    return _mix(key ^ _mix((part + 1) & _M64)) or 1


def philox(key, counter):
    k0, k1 = key & _M32, key >> 32
    c = [counter & _M32, counter >> 32, 0, 0]
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k0, p1 & _M32, (p0 >> 32) ^ c[3] ^ k1, p0 & _M32]
        k0, k1 = (k0 + 0x9E3779B9) & _M32, (k1 + 0xBB67AE85) & _M32
    return c


def normal(key, counter):
    """A standard normal by Box-Muller, rounded to f32 as the engine rounds it."""
    a, b, _, _ = philox(key, counter)
    u, v = (a + 1.0) / 4294967296.0, b / 4294967296.0
    return np.float32(math.sqrt(-2.0 * math.log(u)) * math.cos(2.0 * math.pi * v))


def uniform(key, counter):
    """In [0, 1), 24 bits: exact in f32."""
    return (philox(key, counter)[0] >> 8) / 16777216.0


def uniform_index(key, counter, n):
    """In [0, n): the high half of a 64-bit draw times n."""
    a, b, _, _ = philox(key, counter)
    return (((a << 32) | b) * n) >> 64
