"""BiCGSTAB (van der Vorst 1992) for A z = b, which can be left after any iteration and gone on with later.

    h = M p,  v = A h,  alpha = rho / (shadow v),  z += alpha h,  s = r - alpha v
    h = M s,  t = A h,  omega = t s / (t t),       z += omega h,  r = s - omega t,  p = r + beta (p - omega v)

M is an approximate inverse of A, or the identity, when h is p and s themselves. Six vectors then, and seven with M: z,
r (and s), shadow, p, v, t, h. The residual r is the solver's own recursion, which rounding takes away from b - A z;
callers that rely on z measure what it is good for. Nothing here knows where A comes from.

All vectors are divided by a power of two near the largest |b|, so that their squares neither underflow nor overflow.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.runtime.compiled import loop

__all__ = ["VECTORS", "Bicgstab"]

VECTORS = 7
"""Of as many numbers as there are unknowns, that a solver holds with an approximate inverse."""
_GROWN = 1e8
"""Times its first: a largest residual beyond which sums have lost what matters."""

Operator = Callable[[FloatArray, FloatArray], object]
"""Writes what it makes of its first argument to its second."""


class Bicgstab:
    """A solver under way, from z = 0.

    Parameters
    ----------
    product : x, out: out = A x.
    vectors : float64 [VECTORS, n]; the first is b. All are the solver's from then on.
    inverse : x, out: out = M x; None: the identity.
    threads, run : how many threads there are; calls a function with the number of each, on all of them, and waits.
    """

    def __init__(
        self,
        product: Operator,
        vectors: FloatArray,
        inverse: Operator | None,
        threads: int,
        run: Callable[[Callable[[int], None]], None],
    ) -> None:
        n = vectors.shape[1]
        self._product, self._inverse, self._run = product, inverse, run
        self._shares = [(n * t // threads, n * (t + 1) // threads) for t in range(threads)]
        self._sums = np.zeros((threads, 3))
        self._r, self._shadow, self._p, self._v, self._t, self._h, self.found = vectors
        """Rows of `vectors`; `found` is z, divided by that number."""
        run(self._measure)
        largest = float(self._sums[:, 2].max())
        self._unit = math.ldexp(1.0, math.frexp(largest)[1] - 1) if 0 < largest < math.inf else 1.0
        run(self._begin)
        self._rho = float(self._sums[:, 0].sum())
        self._largest = largest / self._unit if np.isfinite(self._rho) else np.inf
        """Largest |r|, divided by that number; infinity once it is not finite."""
        self._most = _GROWN * self._largest

    @property
    def residual(self) -> float:
        """Largest |r|; infinity once it is not finite."""
        return self._largest * self._unit

    def iterate(self) -> bool:
        """One iteration, of two products; whether there can be another."""
        with np.errstate(all="ignore"):  # a breakdown is found out by its numbers
            h = self._applied(self._p)
            self._product(h, self._v)
            alpha = self._rho / np.float64(self._dot(self._shadow, self._v)[0])
            if not np.isfinite(alpha):
                return False
            self._run(lambda t: _half(*self._shares[t], alpha, h, self._v, self.found, self._r))
            h = self._applied(self._r)
            self._product(h, self._t)
            along, square = self._dot(self._r, self._t)
            omega = along / square if square > 0 else 0.0  # where t is 0 so is s, and z is the solution
            self._run(lambda t: self._step(t, omega, h))
            rho, size = self._sums[:, 0].sum(), self._sums[:, 1].sum()
            self._largest = float(self._sums[:, 2].max()) if np.isfinite(size) else np.inf
            beta = rho / np.float64(self._rho) * (alpha / np.float64(omega))
            self._rho = float(rho)
            if not np.isfinite(beta) or rho == 0 or self._largest > self._most:
                return False
            self._run(lambda t: _turn(*self._shares[t], beta, omega, self._r, self._v, self._p))
        return True

    def add_to(self, values: FloatArray) -> bool:
        """Add z to them, if it is finite, and begin again at 0: later iterations go on as they would have."""
        if not np.isfinite(self.found.sum() * self._unit):
            return False
        self.found *= self._unit
        np.add(values, self.found, out=values)
        self.found[:] = 0.0
        return True

    def _applied(self, x: FloatArray) -> FloatArray:
        if self._inverse is None:
            return x
        self._inverse(x, self._h)
        return self._h

    def _dot(self, a: FloatArray, b: FloatArray) -> tuple[float, float]:
        """a b and b b."""

        def share(t: int) -> None:
            self._sums[t, 0], self._sums[t, 1] = _products(*self._shares[t], a, b)

        self._run(share)
        return float(self._sums[:, 0].sum()), float(self._sums[:, 1].sum())

    def _measure(self, t: int) -> None:
        self._sums[t, 2] = _largest(*self._shares[t], self._r)

    def _begin(self, t: int) -> None:
        self._sums[t, 0] = _begin(*self._shares[t], self._unit, self._r, self._shadow, self._p, self.found)

    def _step(self, t: int, omega: float, h: FloatArray) -> None:
        self._sums[t] = _step(*self._shares[t], omega, h, self._t, self._shadow, self.found, self._r)


@loop
def _largest(begin, end, r):
    """The largest |r|."""
    largest = 0.0
    for i in range(begin, end):
        largest = max(largest, abs(r[i]))
    return largest


@loop
def _begin(begin, end, unit, r, shadow, p, z):
    """r /= unit;  shadow = p = r;  z = 0: r r."""
    square = 0.0
    for i in range(begin, end):
        r[i] /= unit
        shadow[i] = p[i] = r[i]
        z[i] = 0.0
        square += r[i] * r[i]
    return square


@loop
def _products(begin, end, a, b):
    along = 0.0
    square = 0.0
    for i in range(begin, end):
        along += a[i] * b[i]
        square += b[i] * b[i]
    return along, square


@loop
def _half(begin, end, alpha, h, v, z, r):
    """z += alpha h;  r, now s, -= alpha v."""
    for i in range(begin, end):
        z[i] += alpha * h[i]
        r[i] -= alpha * v[i]


@loop
def _step(begin, end, omega, h, t, shadow, z, r):
    """z += omega h;  r = s - omega t: shadow r, r r, and the largest |r|. `h` may be `r`."""
    along = 0.0
    square = 0.0
    largest = 0.0
    for i in range(begin, end):
        z[i] += omega * h[i]
        left = r[i] - omega * t[i]
        r[i] = left
        along += shadow[i] * left
        square += left * left
        largest = max(largest, abs(left))
    return along, square, largest


@loop
def _turn(begin, end, beta, omega, r, v, p):
    """p = r + beta (p - omega v)."""
    for i in range(begin, end):
        p[i] = r[i] + beta * (p[i] - omega * v[i])
