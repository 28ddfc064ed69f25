"""In-memory value iteration on one GPU by several hands, over the same planes: the peers of the out-of-core engine.

jacobi         one fused kernel a sweep (jacobi.cu), double-buffered
in-place       the same kernel over one array: new values are used in the sweep that makes them
cusparse       a CSR matrix an action, discounts in its data, cuSPARSE's product and one elementwise kernel a sweep
jax-gather     jax.numpy gathers, fused by XLA, sweeps in one compiled loop
jax-segment    jax.ops.segment_sum over all transitions, likewise
mdpax          mdpax's own ValueIteration; each state's row travels as its state vector

Each runs in batches of sweeps between two looks at the residual, from V = 0, kernels compiled before the clock starts.
With NumPy's planes the first three run on the CPU, by the same lines except for the kernel itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from planes import Planes, Residuals, backup, module_of

__all__ = ["SOLVERS", "Limits", "Solved", "Solver", "drive"]

_KERNEL = Path(__file__).resolve().parent / "jacobi.cu"
_THREADS = 256
_REAL = {"float32": "float", "float64": "double"}


@dataclass(frozen=True, slots=True)
class Limits:
    """When a solver stops."""

    residual: float | None
    """Once no value changes by more than this in a sweep."""
    epsilon: float | None
    """Once the normalised residuals prove this error, instead."""
    seconds: float = np.inf
    max_sweeps: int = 1 << 40


@dataclass(frozen=True, slots=True)
class Solved:
    """How a solver ended."""

    outcome: str
    """ "residual", "epsilon", "fixed point", "time_limit" or "sweep-limit"."""
    sweeps: int
    seconds: float
    residual: float
    """Plain residual that its last look saw, in its own precision."""
    error: float
    """Proved error by that look, in its own precision; infinite where the solver does not measure it."""
    history: list[tuple[int, float, float]]
    """(sweeps, seconds, residual) now and then."""


class Solver(Protocol):
    """To add a peer: build from planes and a precision, and name it in SOLVERS."""

    def sweep(self, count: int) -> Residuals:
        """Do `count` sweeps and wait for them; what the last one saw of the values before it."""
        ...

    def values(self) -> Any:
        """[n], of the planes' module, of the maximisation."""
        ...

    def restart(self) -> None:
        """V = 0."""
        ...


def drive(solver: Solver, limits: Limits) -> Solved:
    """Run a solver to its target, from V = 0, after two sweeps that compile and load everything."""
    solver.sweep(1)
    solver.sweep(2)
    solver.restart()
    began = time.perf_counter()
    sweeps, seconds, history = 0, 0.0, []
    outcome = ""
    while not outcome:
        batch = min(max(sweeps // 50, 4), 200, limits.max_sweeps - sweeps)
        if sweeps:
            batch = max(1, min(batch, int(2.0 * sweeps / max(seconds, 1e-9))))  # a look every two seconds at least
        seen = solver.sweep(batch)
        sweeps += batch
        seconds = time.perf_counter() - began
        if len(history) < 4 or sweeps >= 1.1 * history[-1][0]:
            history.append((sweeps, seconds, seen.plain))
        if limits.residual is not None and seen.plain <= limits.residual:
            outcome = "residual_reached"
        elif limits.epsilon is not None and seen.error <= limits.epsilon:
            outcome = "epsilon"
        elif seen.plain == 0.0:
            outcome = "fixed point"  # of the solver's precision: more sweeps change nothing
        elif seconds >= limits.seconds:
            outcome = "time_limit"
        elif sweeps >= limits.max_sweeps:
            outcome = "sweep-limit"
    return Solved(outcome, sweeps, seconds, seen.plain, seen.error, history)


def seen_by(q: Any, losses: Any, own: Any) -> tuple[Any, Any, Any]:
    """Plain residual, rise and fall of one backup, in the arrays' own module and precision."""
    xp = np if isinstance(q, np.ndarray) else _array_module(q)
    normalised = (q - own) / losses
    kept = xp.take_along_axis(normalised, q.argmax(axis=0)[None], axis=0)
    return xp.abs(q.max(axis=0) - own).max(), normalised.max(), -kept.min()


def _array_module(array: Any) -> Any:
    if type(array).__module__.startswith("cupy"):
        return module_of(array)
    import jax.numpy

    return jax.numpy


class Jacobi:
    """The fused kernel; where the planes are NumPy's, the reference in its place."""

    in_place = False

    def __init__(self, planes: Planes, precision: str) -> None:
        self._planes = planes
        self._xp = module_of(planes.successors)
        self._value = np.dtype(precision)
        self._buffers = [self._xp.zeros(planes.stride, self._value) for _ in range(1 if self.in_place else 2)]
        self._at = 0
        if self._xp is not np:
            self._marks = self._xp.zeros(3, np.float64)
            self._kernels = self._compile()

    def _compile(self) -> dict[bool, Any]:
        p = self._planes
        implied = "true" if p.last_implied else "false"
        types = f"{_REAL[self._value.name]}, {_REAL[p.weights.dtype.name]}"
        names = {
            check: f"sweep<{types}, {p.n_actions}, {p.n_successors}, {implied}, {'true' if check else 'false'}>"
            for check in (False, True)
        }
        module = self._xp.RawModule(
            code=_KERNEL.read_text(), options=("--std=c++17",), name_expressions=list(names.values())
        )
        return {check: module.get_function(name) for check, name in names.items()}

    def _one(self, check: bool) -> None:
        p = self._planes
        source, target = self._buffers[self._at], self._buffers[(self._at + 1) % len(self._buffers)]
        losses = np.uintp(0) if p.losses is None else p.losses
        self._kernels[check](
            (-(-p.n_states // _THREADS),),
            (_THREADS,),
            (p.successors, p.weights, p.rewards, losses, np.float64(1 - p.discount), source, target, self._marks,
             np.int64(p.n_states), np.int64(p.stride)),
        )  # fmt: skip
        self._at = (self._at + 1) % len(self._buffers)

    def sweep(self, count: int) -> Residuals:
        """As the protocol says."""
        if self._xp is np:
            return self._on_host(count)
        for _ in range(count - 1):
            self._one(False)
        self._marks.fill(0)
        self._one(True)
        return Residuals(*(float(x) for x in self._marks.get()))

    def _on_host(self, count: int) -> Residuals:
        n = self._planes.n_states
        for _ in range(count):
            own = self._buffers[self._at][:n].copy()
            q, losses = backup(self._planes, self._buffers[self._at], slice(0, n))
            self._at = (self._at + 1) % len(self._buffers)
            self._buffers[self._at][:n] = q.max(axis=0)
        return Residuals(*(max(float(x), 0.0) for x in seen_by(q, losses, own)))

    def values(self) -> Any:
        """As the protocol says."""
        return self._buffers[self._at][: self._planes.n_states]

    def restart(self) -> None:
        """As the protocol says."""
        for buffer in self._buffers:
            buffer.fill(0)


class InPlace(Jacobi):
    """One array: a sweep reads what it has written already where that is there."""

    in_place = True


class CuSparse:
    """One CSR matrix an action with g p in its data; cupyx.scipy.sparse, or SciPy where the planes are NumPy's."""

    def __init__(self, planes: Planes, precision: str) -> None:
        xp = self._xp = module_of(planes.successors)
        if xp is np:
            from scipy import sparse
        else:
            from cupyx.scipy import sparse
        n, k = planes.n_states, planes.n_successors
        self._real = np.dtype(precision)
        weights, losses = planes.all_weights(), planes.all_losses()
        self._losses = losses[:, :n].astype(self._real)
        self._rewards = planes.rewards[:, :n].astype(self._real)
        pointers = xp.arange(0, n * k + 1, k, dtype=np.int32)
        self._matrices = []
        for a in range(planes.n_actions):
            g = 1 - losses[a % losses.shape[0], :n].astype(np.float64)
            data = (weights[a, :, :n].T.astype(np.float64) * (g[:, None] if g.size > 1 else g)).astype(self._real)
            columns = planes.successors[a, :, :n].T.astype(np.int32)
            self._matrices.append(
                sparse.csr_matrix((data.ravel(), xp.ascontiguousarray(columns).ravel(), pointers), shape=(n, n))
            )
        self.matrix_bytes = sum(m.data.nbytes + m.indices.nbytes + m.indptr.nbytes for m in self._matrices)
        self._values = xp.zeros(n, self._real)

    def _q(self, a: int) -> Any:
        return self._rewards[a] + self._matrices[a] @ self._values

    def sweep(self, count: int) -> Residuals:
        """As the protocol says."""
        xp = self._xp
        for _ in range(count - 1):
            best = self._q(0)
            for a in range(1, len(self._matrices)):
                xp.maximum(best, self._q(a), out=best)
            self._values = best
        q = xp.stack([self._q(a) for a in range(len(self._matrices))])
        seen = seen_by(q, self._losses, self._values)
        self._values = q.max(axis=0)
        return Residuals(*(max(float(x), 0.0) for x in seen))

    def values(self) -> Any:
        """As the protocol says."""
        return self._values

    def restart(self) -> None:
        """As the protocol says."""
        self._values = self._xp.zeros_like(self._values)


class JaxGather:
    """Gathers and a maximum in jax.numpy; `count` sweeps are one compiled loop."""

    def __init__(self, planes: Planes, precision: str) -> None:
        import jax

        if precision == "float64":
            jax.config.update("jax_enable_x64", True)
        self._planes, self._jax = planes, jax
        self._real = np.dtype(precision)
        self._stored = min(self._real, planes.weights.dtype, key=lambda d: d.itemsize)
        """Type of the table: sums are in the wider of it and the values'."""
        self._tables = self._arrays()
        self.restart()
        expected = self._expected

        def q_of(tables: Any, values: Any) -> Any:
            total = expected(tables, values)
            return tables["rewards"] + (total - tables["losses"] * total)

        def run(count: Any, tables: Any, values: Any) -> Any:
            values = jax.lax.fori_loop(0, count - 1, lambda _, v: q_of(tables, v).max(axis=0), values)
            q = q_of(tables, values)
            return q.max(axis=0), seen_by(q, tables["losses"], values)

        self._run = jax.jit(run)

    def _arrays(self) -> dict[str, Any]:
        p = self._planes
        return {
            "successors": self._taken(p.successors[..., : p.n_states]),
            "weights": self._taken(p.all_weights()[..., : p.n_states], self._stored),
            **self._small(),
        }

    def _small(self) -> dict[str, Any]:
        p = self._planes
        return {
            "rewards": self._taken(p.rewards[..., : p.n_states], self._stored),
            "losses": self._taken(p.all_losses()[..., : p.n_states], self._stored),
        }

    def _expected(self, tables: Any, values: Any) -> Any:
        weights, successors = tables["weights"], tables["successors"]
        return sum(weights[:, k] * values[successors[:, k]] for k in range(self._planes.n_successors))

    def _taken(self, array: Any, dtype: np.dtype[Any] | None = None) -> Any:
        """A JAX array of the same values; on a GPU without a copy through the host."""
        xp = module_of(array)
        array = xp.ascontiguousarray(array if dtype is None else array.astype(dtype, copy=False))
        if xp is np:
            return self._jax.numpy.asarray(array)
        xp.cuda.get_current_stream().synchronize()
        return self._jax.dlpack.from_dlpack(array)

    def sweep(self, count: int) -> Residuals:
        """As the protocol says."""
        self._values, seen = self._run(count, self._tables, self._values)
        return Residuals(*(max(float(x), 0.0) for x in seen))

    def values(self) -> Any:
        """As the protocol says."""
        return module_of(self._planes.rewards).asarray(np.asarray(self._values))

    def restart(self) -> None:
        """As the protocol says."""
        self._values = self._jax.numpy.zeros(self._planes.n_states, self._real)


class JaxSegment(JaxGather):
    """jax.ops.segment_sum over the transitions, sorted by row."""

    def _arrays(self) -> dict[str, Any]:
        p = self._planes
        xp = module_of(p.successors)
        rows = p.n_actions * p.n_states
        order = (0, 2, 1)
        return {
            "successors": self._taken(p.successors[..., : p.n_states].transpose(order).ravel()),
            "weights": self._taken(p.all_weights()[..., : p.n_states].transpose(order).ravel(), self._stored),
            "row": self._taken(xp.repeat(xp.arange(rows, dtype=np.int32), p.n_successors)),
            **self._small(),
        }

    def _expected(self, tables: Any, values: Any) -> Any:
        p = self._planes
        sums = self._jax.ops.segment_sum(
            tables["weights"] * values[tables["successors"]],
            tables["row"],
            num_segments=p.n_actions * p.n_states,
            indices_are_sorted=True,
        )
        return sums.reshape(p.n_actions, p.n_states)


class Mdpax:
    """mdpax's ValueIteration, stepped from here so that it stops at the same residual as the others.

    mdpax takes dynamics as functions. Here a state's vector is its number and its whole row (int32, floats as their
    bits), so that `transition` reads the table from what mdpax passes to it and nothing is looked up. It knows one
    discount: g p is the event's probability, and gamma is 1; rewards are divided by g, since mdpax weighs them by it.
    """

    def __init__(self, planes: Planes, precision: str) -> None:
        if precision != "float32":
            raise ValueError("the rows travel as float32")
        import jax
        import jax.numpy as jnp
        from mdpax.core.problem import Problem
        from mdpax.solvers.value_iteration import ValueIteration

        table, self._planes, self._jnp = _as_vectors(planes), planes, jnp
        a_count, k_count, width = planes.n_actions, planes.n_successors, table.shape[1]

        def real(bits: Any) -> Any:
            return jax.lax.bitcast_convert_type(bits, jnp.float32)

        class Table(Problem):
            name = "table"

            def _construct_state_space(self) -> Any:
                return jnp.asarray(table)

            def _construct_action_space(self) -> Any:
                return jnp.arange(a_count)

            def _construct_random_event_space(self) -> Any:
                return jnp.arange(k_count)

            def state_to_index(self, state: Any) -> Any:
                return state[0]

            def random_event_probability(self, state: Any, action: Any, random_event: Any) -> Any:
                at = 1 + (a_count + action[0]) * k_count + random_event[0]
                return real(state[at])

            def transition(self, state: Any, action: Any, random_event: Any) -> Any:
                at = 1 + action[0] * k_count + random_event[0]
                reward = real(state[1 + 2 * a_count * k_count + action[0]])
                return jnp.zeros(width, jnp.int32).at[0].set(state[at]), reward

        self._solver = ValueIteration(
            Table(), gamma=1.0, epsilon=1e-30, max_batch_size=min(1 << 20, planes.n_states), verbose=0,
            convergence_test="max_diff", jax_double_precision=False,
        )  # fmt: skip

    def sweep(self, count: int) -> Residuals:
        """As the protocol says; mdpax measures no normalised residual."""
        for _ in range(count):
            values, change = self._solver._iteration_step()
            self._solver.values = values
        return Residuals(float(change), np.inf, np.inf)

    def values(self) -> Any:
        """As the protocol says."""
        host = np.asarray(self._solver.values)
        return module_of(self._planes.rewards).asarray(host)

    def restart(self) -> None:
        """As the protocol says."""
        self._solver.values = self._jnp.zeros_like(self._solver.values)


def _as_vectors(planes: Planes) -> Any:
    """int32 [n, 1 + 2 A K + A] on the host: number, successors, bits of g p, bits of r / g."""
    xp = module_of(planes.successors)
    n, a, k = planes.n_states, planes.n_actions, planes.n_successors
    out = np.empty((n, 1 + 2 * a * k + a), np.int32)

    def host(array: Any) -> Any:
        return array if xp is np else array.get()

    out[:, 0] = np.arange(n)
    # A row that ends the process has g = 0: so small a g stands for it that its successors' values vanish.
    g = np.maximum(1.0 - host(planes.all_losses()).astype(np.float64), 1e-30)
    g = np.broadcast_to(g[:, :n] if g.shape[1] > 1 else g, (a, n))
    weights, successors = host(planes.all_weights()), host(planes.successors)
    rewards = host(planes.rewards)
    for i in range(a):
        for j in range(k):
            out[:, 1 + i * k + j] = successors[i, j, :n].astype(np.int64)
            out[:, 1 + (a + i) * k + j] = (g[i] * weights[i, j, :n]).astype(np.float32).view(np.int32)
        out[:, 1 + 2 * a * k + i] = (rewards[i, :n] / g[i]).astype(np.float32).view(np.int32)
    return out


SOLVERS: dict[str, Callable[[Planes, str], Solver]] = {
    "jacobi": Jacobi,
    "in-place": InPlace,
    "cusparse": CuSparse,
    "jax-gather": JaxGather,
    "jax-segment": JaxSegment,
    "mdpax": Mdpax,
}
