"""Counter-based randomness: a number is a hash of what it is for, never the next one of a stream.

    stream_key(seed, c) = mix(mix(seed) + c),     draw(key, i, j) = mix(mix(key + i) + j)

with mix the output function of splitmix64. So the rows of a state are the same whichever process computes
them, in whichever order. `permuted` is a keyed bijection of 0 .. n-1, which picks *exactly* m members of n
(those whose image is below m) without holding them. Integers are uint64 throughout: Numba turns a sum of
uint64 and int64 into float64. This module knows no problem.

Source of mix: Steele, Lea, Flood, *Fast splittable pseudorandom number generators*, OOPSLA 2014, section 5.
"""

from __future__ import annotations

import numba
import numpy as np

__all__ = ["bits_below", "draw", "mix", "permuted", "stream_key", "unit"]

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_ONE = np.uint64(1)
_ROUNDS = 4
_FEW_BITS = np.uint64(16)
_ROUNDS_OF_FEW_BITS = 12
"""A round of a few bits has few possible keys; 4 of them left pairs of 5 states 5% from equally likely."""


@numba.njit(cache=True, nogil=True, forceinline=True)
def mix(counter: np.uint64) -> np.uint64:
    """Hash of one uint64: a bijection whose output bits each depend on every input bit."""
    z = counter + _STEP
    z = (z ^ (z >> np.uint64(30))) * _FIRST
    z = (z ^ (z >> np.uint64(27))) * _SECOND
    return z ^ (z >> np.uint64(31))


@numba.njit(cache=True, nogil=True, forceinline=True)
def stream_key(seed: np.uint64, stream: np.uint64) -> np.uint64:
    """Key of one purpose (placing, amounts, ...) under a seed; neighbouring seeds have unrelated keys."""
    return mix(mix(seed) + stream)


@numba.njit(cache=True, nogil=True, forceinline=True)
def draw(key: np.uint64, i: np.uint64, j: np.uint64) -> np.uint64:
    """Random uint64 of the stream `key` at the counter (i, j)."""
    return mix(mix(key + i) + j)


@numba.njit(cache=True, nogil=True, forceinline=True)
def unit(bits: np.uint64) -> float:
    """Uniform float64 in [0, 1) from the upper 53 bits."""
    return np.float64(bits >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@numba.njit(cache=True, nogil=True)
def permuted(x: np.uint64, n: np.uint64, bits: np.uint64, key: np.uint64) -> np.uint64:
    """Image of x < n under the bijection of 0 .. n-1 that belongs to `key`; bits = `bits_below` (n).

    Rounds of keyed add-multiply-shift permute 0 .. 2**bits-1; walking the cycle until it is back below n
    restricts that to 0 .. n-1 (Black, Rogaway, *Ciphers with arbitrary finite domains*, CT-RSA 2002). As
    2**bits < 2n, two walks are enough on average.
    """
    mask = (_ONE << bits) - _ONE
    shift = (bits + _ONE) >> _ONE
    rounds = _ROUNDS if bits >= _FEW_BITS else _ROUNDS_OF_FEW_BITS
    while True:
        for i in range(rounds):
            k = mix(key + np.uint64(i))
            x = ((x + (k >> np.uint64(32))) * (k | _ONE)) & mask
            x ^= x >> shift
        if x < n:
            return x


def bits_below(n: int) -> int:
    """Bits that hold 0 .. n-1, at least 1."""
    return max(1, (n - 1).bit_length())
