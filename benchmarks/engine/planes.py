"""A whole table in one memory, in planes, for the in-memory solvers that out-of-core solves are compared with.

    successors uint32 [A, K, n]    weights [A, K or K-1, n]    rewards [A, n]    losses [A, n]

Every state has A actions of K successors each; l(s,a) = 1 - gamma**tau(s,a) in place of the discount, which float32
could not hold where it is near 1. Tables come from a store (states in its order) or from a problem's own rows (states
in the problem's order). `xp` is NumPy or CuPy: the same lines build both. Also here: the residuals that certify any
solver's values, in float64, and the bytes that a sweep moves. Knows no solver.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc_mdp.backends.select import select_rows
from ooc_mdp.errors import OptionsError
from ooc_mdp.problems.control.discretisation import DiscretisedProblem
from ooc_mdp.problems.registry import make_problem
from ooc_mdp.store import Store

__all__ = ["Planes", "Residuals", "planes_of_problem", "planes_of_store", "residuals"]

_PIECE = 1 << 22
"""States whose rows are on the device at a time while planes are filled."""
_ALIGNMENT = 64
"""Planes begin at multiples of so many values."""


@dataclass(frozen=True, slots=True)
class Planes:
    """A table of n states; planes have `stride` >= n values each, the rest unused."""

    n_states: int
    sign: float
    """1.0 to maximise, -1.0 to minimise: rewards are multiplied by it, values are those of a maximisation."""
    discount: float
    successors: Any
    """uint32 [A, K, stride]."""
    weights: Any
    """float32 or float64 [A, K-1, stride] where 1 minus the others gives the last exactly, else [A, K, stride]."""
    rewards: Any
    """float32 or float64 [A, stride]."""
    losses: Any | None
    """The same [A, stride]: 1 - gamma**tau, 1 where a row ends the process; None where every tau is 1."""

    @property
    def n_actions(self) -> int:
        """A."""
        return int(self.successors.shape[0])

    @property
    def n_successors(self) -> int:
        """K."""
        return int(self.successors.shape[1])

    @property
    def stride(self) -> int:
        """Values from one plane to the next."""
        return int(self.successors.shape[2])

    @property
    def last_implied(self) -> bool:
        """Whether the last weight of each row is 1 minus the others."""
        return int(self.weights.shape[1]) < self.n_successors

    @property
    def nbytes(self) -> int:
        """Bytes of the table."""
        arrays = (self.successors, self.weights, self.rewards, self.losses)
        return sum(a.nbytes for a in arrays if a is not None)

    def sweep_bytes(self, value_bytes: int) -> int:
        """Bytes of one sweep, each input counted once: the table, the values in, the values out."""
        return self.nbytes // self.stride * self.n_states + 2 * value_bytes * self.n_states

    def all_weights(self) -> Any:
        """[A, K, stride]: the weights with the last ones, as a new array where they are implied."""
        if not self.last_implied:
            return self.weights
        xp = module_of(self.weights)
        whole = xp.empty(self.successors.shape, self.weights.dtype)
        whole[:, :-1] = self.weights
        whole[:, -1] = 1
        for k in range(self.n_successors - 1):
            whole[:, -1] -= self.weights[:, k]  # exact in any order: multiples of one unit below 1
        return whole

    def all_losses(self) -> Any:
        """[A, stride], or [1, 1] where all are the same."""
        if self.losses is not None:
            return self.losses
        return module_of(self.rewards).full((1, 1), 1 - self.discount, self.rewards.dtype)


@dataclass(frozen=True, slots=True)
class Residuals:
    """What one backup of every state says of the values, measured in float64."""

    plain: float
    """max |max_a Q_a - V|."""
    rise: float
    """max over states and actions of (Q - V) / (1 - g), at least 0: V* - V is at most this."""
    fall: float
    """max of (V - Q) / (1 - g) of the greedy actions, at least 0: V - V* is at most this."""

    @property
    def error(self) -> float:
        """||V - V*|| is at most this, float64 rounding set aside."""
        return max(self.rise, self.fall)


def module_of(array: Any) -> Any:
    """NumPy or CuPy, whichever the array is of."""
    if isinstance(array, np.ndarray):
        return np
    import cupy

    return cupy


def losses_of(xp: Any, discount: float, durations: Any) -> Any:
    """1 - gamma**tau in float64 without cancellation; 1 where tau is infinite."""
    if discount == 0.0:
        return xp.ones_like(durations, dtype=np.float64)
    return -xp.expm1(math.log(discount) * durations.astype(np.float64))


class _Filler:
    """Planes under construction: takes row-major pieces of consecutive states, says at the end what they hold."""

    def __init__(
        self, xp: Any, n: int, actions: int, width: int, dtype: np.dtype[Any], durations: bool, weights_exact: bool
    ) -> None:
        if n > 1 << 32:
            raise OptionsError(f"{n} states: successors of at most 2**32 states fit the planes of this benchmark")
        stride = -(-n // _ALIGNMENT) * _ALIGNMENT
        self._xp, self._n, self._shape = xp, n, (actions, width)
        self._kept = width - 1 if weights_exact and width > 1 else width
        self._successors = xp.zeros((actions, width, stride), np.uint32)
        self._weights = xp.zeros((actions, self._kept, stride), dtype)
        self._rewards = xp.zeros((actions, stride), dtype)
        self._losses = xp.ones((actions, stride), dtype) if durations else None

    def put(self, first: int, successors: Any, probabilities: Any, rewards: Any, losses: Any | None) -> None:
        """Rows of states first, first + 1, ..., state by state as stores and problems have them."""
        actions, width = self._shape
        n = rewards.size // actions
        where = np.s_[..., first : first + n]
        self._successors[where] = successors.reshape(n, actions, width).transpose(1, 2, 0)
        self._weights[where] = probabilities.reshape(n, actions, width)[:, :, : self._kept].transpose(1, 2, 0)
        self._rewards[where] = rewards.reshape(n, actions).T
        if losses is not None and self._losses is not None:
            self._losses[where] = losses.reshape(n, actions).T

    def planes(self, discount: float, sign: float) -> Planes:
        """The finished planes."""
        if sign < 0:
            self._rewards *= -1
        return Planes(self._n, sign, discount, self._successors, self._weights, self._rewards, self._losses)


def planes_of_problem(
    name: str, parameters: dict[str, Any], discount: float, device: str, dtype: str = "float32"
) -> Planes:
    """Planes of a generated problem, states in its own order; rows of control problems come from the device.

    Raises
    ------
    OptionsError : states differ in their numbers of actions, or rows in their numbers of successors.
    """
    problem = make_problem(name, parameters)
    problem = select_rows(problem, device if isinstance(problem, DiscretisedProblem) else "cpu")
    xp: Any = np
    if device != "cpu":
        import cupy

        xp = cupy
    on_device = getattr(problem, "source", None)
    filler = None
    for first in range(0, problem.n_states, _PIECE):
        states = np.arange(first, min(first + _PIECE, problem.n_states), dtype=np.int64)
        if on_device is None:
            rows = problem.rows(states)
            actions, width = _uniform(rows.action_ptr, "actions"), _uniform(rows.successor_ptr, "successors")
            arrays = [rows.successors, rows.probabilities, rows.rewards, rows.durations]
        else:
            arrays = list(on_device.rows_on_device(problem, states, np.uint32))
            actions = problem.n_actions
            width = arrays[0].size // arrays[2].size
        successors, probabilities, rewards, durations = (None if a is None else xp.asarray(a) for a in arrays)
        if filler is None:
            filler = _Filler(
                xp,
                problem.n_states,
                actions,
                width,
                np.dtype(dtype),
                durations is not None,
                problem.dyadic_probabilities,
            )
        losses = None
        if durations is not None:
            losses = losses_of(xp, discount, durations.astype(np.float32) if dtype == "float32" else durations)
        filler.put(first, successors, probabilities, rewards, losses)
    assert filler is not None, "a problem has states"
    return filler.planes(discount, -1.0 if problem.sense == "min" else 1.0)


def _uniform(ptr: Any, what: str) -> int:
    counts = np.diff(ptr)
    if not counts.size or counts[0] == 0 or (counts != counts[0]).any():
        raise OptionsError(f"planes need the same number of {what} everywhere; this table has {np.unique(counts)[:5]}")
    return int(counts[0])


def planes_of_store(store: Store, discount: float, device: str, threads: int) -> Planes:
    """Planes of a store's table, states in the store's order; partitions are decoded on threads.

    Raises
    ------
    OptionsError : the table is ragged.
    """
    xp: Any = np
    if device != "cpu":
        import cupy

        xp = cupy
    actions, width = (int(store.facts.attributes[n]) for n in ("actions_per_state", "successors_per_action"))
    if not actions or not width:
        raise OptionsError("planes need the same number of actions and successors everywhere; this table is ragged")
    timed = "durations" in store.facts.dtypes
    filler = _Filler(
        xp, store.n_states, actions, width, store.facts.dtypes["probabilities"], timed, store.facts.dyadic_probabilities
    )
    with ThreadPoolExecutor(threads) as pool:
        window = 2 * threads
        coming = [pool.submit(store.read, p) for p in range(min(window, store.n_partitions))]
        for p in range(store.n_partitions):
            table, _ = coming[p].result()
            coming[p] = None  # type: ignore[call-overload]
            if p + window < store.n_partitions:
                coming.append(pool.submit(store.read, p + window))
            own = table.n_states
            numbers = xp.concatenate(
                [xp.arange(table.first_state, table.first_state + own, dtype=np.uint32),
                 xp.asarray(table.halo.astype(np.uint32))]
            )  # fmt: skip
            losses = losses_of(xp, discount, xp.asarray(table.durations)) if table.durations.size else None
            filler.put(
                table.first_state,
                numbers[xp.asarray(table.successors)],
                xp.asarray(table.probabilities),
                xp.asarray(table.rewards),
                losses,
            )
    return filler.planes(discount, 1.0 if store.sense == "max" else -1.0)


def residuals(planes: Planes, values: Any, piece: int = _PIECE) -> Residuals:
    """One backup of every state in float64, piece by piece, whatever solver and precision the values are from.

    Parameters
    ----------
    values : [n] or longer, of the planes' own module, of the maximisation.
    """
    xp = module_of(planes.successors)
    v = values.astype(np.float64, copy=False)
    plain = rise = fall = 0.0
    for first in range(0, planes.n_states, piece):
        here = slice(first, min(first + piece, planes.n_states))
        q, losses = backup(planes, v, here)
        own = v[here]
        normalised = (q - own) / losses
        greedy = q.argmax(axis=0)
        kept = xp.take_along_axis(normalised, greedy[None], axis=0)
        plain = max(plain, float(xp.abs(q.max(axis=0) - own).max()))
        rise = max(rise, float(normalised.max()))
        fall = max(fall, -float(kept.min()))
    return Residuals(plain, max(rise, 0.0), max(fall, 0.0))


def backup(planes: Planes, values: Any, here: slice) -> tuple[Any, Any]:
    """Q [A, states of `here`] in the type of the values, and 1 - g, of the same shape or [1, 1]."""
    xp = module_of(planes.successors)
    real = values.dtype
    shape = (planes.n_actions, here.stop - here.start)
    total, rest = xp.zeros(shape, real), xp.ones(shape, real)
    for k in range(planes.n_successors):
        weight = rest
        if k < planes.weights.shape[1]:
            weight = planes.weights[:, k, here].astype(real)
            rest = rest - weight
        total += weight * values[planes.successors[:, k, here]]
    whole = planes.all_losses()
    losses = (whole[:, here] if whole.shape[1] > 1 else whole).astype(real)
    return planes.rewards[:, here].astype(real) + (total - losses * total), losses
