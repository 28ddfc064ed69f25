"""What a solve returns: how it ended, what is proved, what it cost, and the answer itself.

Values and policy are in the source's own state order and sign.
"""

from __future__ import annotations

import enum
import math
from dataclasses import asdict, dataclass, field, fields, replace
from decimal import ROUND_CEILING, Decimal
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import OptionsError
from ooc_mdp.model import at_points
from ooc_mdp.model.criterion import EVALUATED
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.named_actions import NamedActions
from ooc_mdp.model.presentation import Presentable
from ooc_mdp.model.q_values import QValues, q_values
from ooc_mdp.model.stages import StageResults
from ooc_mdp.model.statistics import SolveStatistics
from ooc_mdp.model.table import Table
from ooc_mdp.runtime.threads import least_and_largest

__all__ = [
    "MAX_INITIAL",
    "Certificate",
    "InitialAnswer",
    "Outcome",
    "Quantity",
    "Solution",
    "SolveHistory",
    "with_ends",
]


MAX_INITIAL = 1000
"""Initial states at which the answer is listed."""
Quantity = Literal["value", "stage_value", "gain"]
"""What a certificate bounds."""


class Outcome(enum.Enum):
    """How a solve ended; the message says what it means. What to try next depends on the solve: `Solution.message`."""

    PROVED = ("proved", "the error is proved to be at most the target")
    RESIDUAL_REACHED = (
        "residual_reached",
        "the plain Bellman residual is at most the target; the error bound is what it proves",
    )
    TIME_LIMIT = ("time_limit", "the time limit came first")
    INTERRUPTED = ("interrupted", "stopped by a signal")
    WORKERS_LOST = ("workers_lost", "no worker, or no scheduler, was left")
    PRECISION_LIMIT = (
        "precision_limit",
        "the target is below what can be proved of float64 values; ask for a larger --epsilon",
    )
    GAIN_DIFFERS = (
        "gain_differs",
        "the gain is proved to differ between states, and there is too little memory to solve for that of each; lower "
        "--cache, or ask for an --epsilon of half the width of this interval",
    )

    message: str

    def __new__(cls, value: str, message: str) -> Outcome:
        """A member whose value is the word that results and `--json` have."""
        outcome = object.__new__(cls)
        outcome._value_, outcome.message = value, message
        return outcome

    @property
    def proved(self) -> bool:
        """Whether the target was reached."""
        return self in (Outcome.PROVED, Outcome.RESIDUAL_REACHED)

    @property
    def stopped(self) -> bool:
        """Whether something ended the solve before its method did: a limit, a signal, or the loss of all workers."""
        return self in (Outcome.TIME_LIMIT, Outcome.INTERRUPTED, Outcome.WORKERS_LOST)


@dataclass(frozen=True, slots=True)
class Certificate:
    """What is known for certain about the values."""

    error_bound: float
    """||V - V*|| is at most this in the sup norm, float64 rounding included; infinite if nothing is known."""
    error_lower: float
    """V* - V is at least this in every state (in the maximisation's sign)."""
    error_upper: float
    """V* - V is at most this in every state (in the maximisation's sign)."""
    residual_bound: float
    """The plain Bellman residual is at most this in every state."""
    rounding_bound: float
    """The part of error_bound that allows for float64 rounding of a backup."""
    target: float
    """What was asked for: an error, or a plain residual."""
    stopping_rule: str
    """"epsilon" or "residual"."""
    policy_loss_bound: float
    """The value of the greedy policy is within this of V*."""
    proof: str
    """How it was proved, in a sentence."""
    quantity: Quantity = "value"
    """What is bounded: a value of each state, a value of each stage and state, or a gain of each state."""
    lower: float = -math.inf
    """The quantity (of the first stage, where there are several) is at least this in every state, in the source's
    sign; infinite where it was not recorded."""
    upper: float = math.inf
    """It is at most this in every state, likewise."""


def with_ends(certificate: Certificate, values: FloatArray, sense: str) -> Certificate:
    """The certificate with the ends of the range in which all values lie, by its error interval.

    Parameters
    ----------
    values : in the source's sign.
    sense : "max" or "min"; the certificate's interval is that of the maximisation.
    """
    below, above = certificate.error_lower, certificate.error_upper
    if sense == "min":
        below, above = -above, -below
    least, largest = least_and_largest(values)
    lower, upper = least + below, largest + above
    return replace(certificate, lower=float(np.nextafter(lower, -np.inf)), upper=float(np.nextafter(upper, np.inf)))


@dataclass(frozen=True, slots=True, eq=False)
class SolveHistory:
    """How a solve progressed: at most 10,000 rows over time, and what each partition took."""

    seconds: FloatArray
    """float64 [n], ascending; seconds of work, those of resumed runs included."""
    bytes_read: IntArray
    """int64 [n]; cumulative, like hits and misses."""
    error_bound: FloatArray
    """float64 [n]; the proved bound on ||V - V*|| at that time, infinite while nothing is known."""
    residual_bound: FloatArray
    """float64 [n]; the bound on the plain Bellman residual."""
    hits: IntArray
    misses: IntArray
    dirty: IntArray
    """int64 [n]; partitions whose bound is above the target."""
    resident: IntArray
    """int64 [n]; partitions in the cache."""
    loads: IntArray
    """int64 [P]; how often each partition was loaded."""
    visits: IntArray
    """int64 [P]; residencies in which it was swept."""
    sweeps: IntArray
    """int64 [P]; sweeps of it."""
    first_visit: FloatArray
    """float64 [P]; seconds of its first visit, NaN if it was never visited."""
    last_visit: FloatArray
    """float64 [P]; seconds of its last visit, likewise."""

    def __repr__(self) -> str:
        return f"SolveHistory({self.seconds.size} rows over time, {self.loads.size} partitions)"


class InitialAnswer(NamedTuple):
    """The answer at one initial state, in the source's numbering and sign."""

    state: int
    value: float
    lower: float
    """The answer is at least this; infinite where nothing is proved."""
    upper: float
    """The answer is at most this, likewise."""


@dataclass(frozen=True, slots=True, eq=False)
class Solution(Presentable):
    """The answer and its proof; `plot`, `report` and `to_xarray` show it."""

    outcome: Outcome
    method: str
    """What was asked for and what became of it: "p-eva h2", "policy-iteration", "auto: p-eva, then ...", "vi", ..."""
    device: str
    criterion: dict[str, Any]
    """What is answered, as `ooc_mdp.model.criterion.record_of` has it: `criterion`, `discount`, other parameters."""
    certificate: Certificate
    statistics: SolveStatistics
    values: FloatArray
    """float64 [n_states]; of an average reward the relative values h, of which only differences mean something."""
    policy: npt.NDArray[np.int32]
    """int32 [n_states]; the state's own action index, -1 where it has none."""
    memory_plan: dict[str, dict[str, int]] = field(default_factory=dict)
    value_lower: FloatArray | None = None
    """float64 [n_states]; at most V*, state by state, in the source's sign; None where the discount is below 1. Of an
    average reward at most the gain, where it differs between states; None where one interval holds all gains."""
    value_upper: FloatArray | None = None
    """float64 [n_states]; at least V*, or the gain, likewise."""
    history: SolveHistory | None = None
    """How the solve progressed; None for a solution that was not recorded."""
    source_actions: IntArray | None = None
    """int64 [n_states]; `actions`, where the source numbers actions otherwise than 0, 1, ... in each state."""
    named_actions: NamedActions | None = None
    """Which of the model's names of actions the policy takes; None where it has none."""
    stages: StageResults | None = None
    """Of a finite horizon; `values` and `policy` are then those of the first stage, 0."""
    initial: tuple[InitialAnswer, ...] = ()
    """The answer at the first initial states, where the model names some; results on disk do not have it."""
    compile_seconds: float | None = None
    """Seconds in which this process compiled loops or kernels for the solve, before and within it; `solve_seconds` does
    not count them. None in what was read from a result."""
    geometry: dict[str, Any] | None = None
    """The grid of the states, as the table's store describes it; None where they are no grid."""
    checkpoint: str | None = None
    """Path of the checkpoint from which the same solve continues with `resume`; None where there is none: of what was
    proved, without an output, and where a solve is stopped before it has values to continue from."""
    reason: str | None = None
    """Why the method could do no more, and what to try; None where the outcome says that, and in what was read from a
    result."""
    table: Table | None = None
    """The table that was solved, by which :meth:`q_values` computes; None in what was read from a result, or copied."""

    def __repr__(self) -> str:
        """One line, however many states there are."""
        bound, asked = f"error at most {self.certificate.error_bound:.3g}", f"discount {self.discount}"
        if self.gain is not None:
            bound, asked = f"gain between {self.gain[0]!r} and {self.gain[1]!r}", "average reward"
        if EVALUATED in self.criterion:
            asked += ", value of the given policy"
        return (
            f"Solution({self.outcome.value}, {bound}, {self.values.size} states, {asked}, "
            f"{self.method} on {self.device})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies, in other processes too, are without the table, which has files open."""
        return Solution, tuple(None if f.name == "table" else getattr(self, f.name) for f in fields(self))

    @property
    def discount(self) -> float:
        """What a value one unit of time later counts now; 1 where later rewards count as much."""
        return float(self.criterion["discount"])

    @property
    def gain(self) -> tuple[float, float] | None:
        """Of an average reward: the gain of every state lies between these; None for another criterion."""
        c = self.certificate
        return (c.lower, c.upper) if c.quantity == "gain" else None

    @property
    def gains(self) -> FloatArray | None:
        """float64 [n_states]; of an average reward the gain of each state, within `error_bound`; else None."""
        if self.gain is None:
            return None
        if self.value_lower is None or self.value_upper is None:
            return np.full(self.values.size, 0.5 * (self.gain[0] + self.gain[1]))
        return 0.5 * (self.value_lower + self.value_upper)

    @property
    def actions(self) -> npt.NDArray[np.integer]:
        """The policy by the source's numbers of actions, -1 where a state has none.

        `policy` counts the available actions of each state instead; both are equal where all actions are available.
        """
        return self.policy if self.source_actions is None else self.source_actions

    @property
    def action_names(self) -> npt.NDArray[np.str_] | None:
        """[n_states]; names of the policy's actions, empty where there is none; None where the model has no names."""
        return None if self.named_actions is None else self.named_actions.texts()

    @property
    def error_bound(self) -> float:
        """Proved bound on ||V - V*||."""
        return self.certificate.error_bound

    @property
    def policy_loss_bound(self) -> float:
        """The value of the policy is proved to be within this of V* in every state."""
        return self.certificate.policy_loss_bound

    @property
    def least_target(self) -> float | None:
        """The least epsilon, or residual, that a solve of this model can reach, rounded up to two digits.

        None where the outcome is not PRECISION_LIMIT, or nothing was proved.
        """
        c = self.certificate
        bound = c.residual_bound if c.stopping_rule == "residual" else c.error_bound
        if self.outcome is not Outcome.PRECISION_LIMIT or not np.isfinite(bound):
            return None
        exact = Decimal(bound) * Decimal("1.01")
        return float(exact.quantize(Decimal(1).scaleb(exact.adjusted() - 1), ROUND_CEILING))

    @property
    def message(self) -> str:
        """What the outcome means, and what to try next."""
        meaning, _, advice = self.outcome.message.partition("; ")
        if self.outcome.stopped:
            limited = self.outcome is Outcome.TIME_LIMIT
            advice = "there is no checkpoint to go on from (one is kept beside an --output, once there are values)"
            advice += "; raise --time-limit" if limited else ""
            if self.checkpoint is not None:
                advice = "go on with --resume" + (", or raise --time-limit" if limited else "")
        elif self.reason is not None:
            return self.reason
        elif self.least_target is not None:
            option = "--residual" if self.certificate.stopping_rule == "residual" else "--epsilon"
            advice = f"the least that is possible is {option} {self.least_target:g}"
        return f"{meaning}; {advice}" if advice else meaning

    def q_values(self, states: Any = None, *, stage: int = 0) -> QValues:
        """Values of the actions of some states: :func:`ooc_mdp.q_values` with the table that was solved.

        Raises
        ------
        OptionsError : the solution was read from a result, which has no table; there is no such state; or the criterion
            has no values of actions.
        """
        if self.table is None:
            raise OptionsError(
                "this solution was read from a result, or copied, and does not hold its table; give both: "
                "ooc_mdp.q_values(table, result, states)"
            )
        return q_values(self.table, self, states, stage)

    def value_at(self, x: Any, *, stage: int = 0) -> FloatArray:
        """float64 [n]; values at points of a grid, interpolated with the weights of the discretisation.

        Parameters
        ----------
        x : (n, axes), or (axes,) for one point, whose value is then a number; in the axes' units and order.
        stage : of a finite horizon, whose values were kept.

        Raises
        ------
        OptionsError : the states are no grid whose axes are known, or a point is beyond an axis.
        """
        return at_points.value_at(self, x, stage)

    def policy_at(self, x: Any, *, stage: int = 0) -> npt.NDArray[np.int32]:
        """int32 [n]; the action of the grid point nearest to each point (the upper one of two as near), -1 for none.

        Parameters and errors are those of :meth:`value_at`.
        """
        return at_points.policy_at(self, x, stage)

    def control_at(self, x: Any, *, stage: int = 0) -> FloatArray:
        """float64 [n, inputs]; the control values of :meth:`policy_at`, NaN where a state has no action.

        Raises
        ------
        OptionsError : as for :meth:`value_at`, or the actions have no control values.
        """
        return at_points.control_at(self, x, stage)

    def at_states(self, states: IntArray, sense: str, limits: tuple[float, float]) -> tuple[InitialAnswer, ...]:
        """The answer at some states (the source's numbers); none of a gain that one interval holds in all states.

        Parameters
        ----------
        sense : "max" or "min", of the table.
        limits : between which every answer lies.
        """
        gains = self.gains
        if gains is not None and self.value_lower is None:
            return ()
        values = self.values if gains is None else gains
        below, above = self.certificate.error_lower, self.certificate.error_upper
        if sense == "min":
            below, above = -above, -below
        found = []
        for state in states.tolist():
            value = float(values[state])
            low, high = np.nextafter(value + below, -np.inf), np.nextafter(value + above, np.inf)
            if self.value_lower is not None and self.value_upper is not None:
                low, high = self.value_lower[state], self.value_upper[state]
            found.append(InitialAnswer(state, value, max(float(low), limits[0]), min(float(high), limits[1])))
        return tuple(found)

    def summary(self) -> dict[str, Any]:
        """The figures as plain values, as --json prints them."""
        s, c = self.statistics, self.certificate
        gain = {} if self.gain is None else {"gain_lower": _number(c.lower), "gain_upper": _number(c.upper)}
        return {
            **gain,
            "initial": [{name: _shown(x) for name, x in each._asdict().items()} for each in self.initial],
            "outcome": self.outcome.value,
            "message": self.message,
            "checkpoint": self.checkpoint,
            "method": self.method,
            "device": self.device,
            **self.criterion,
            "quantity": c.quantity,
            "lower": _number(c.lower),
            "upper": _number(c.upper),
            **self._spread(),
            "error_bound": _number(c.error_bound),
            "residual_bound": _number(c.residual_bound),
            "rounding_bound": _number(c.rounding_bound),
            "policy_loss_bound": _number(c.policy_loss_bound),
            "target": _number(c.target),
            "least_target": self.least_target,
            "stopping_rule": c.stopping_rule,
            "proof": c.proof,
            "n_states": s.n_states,
            "n_partitions": s.n_partitions,
            "cache_bytes": s.cache_bytes,
            "cache_peak_bytes": s.cache_peak_bytes,
            "table_bytes": s.table_bytes,
            "accesses": s.accesses,
            "hits": s.hits,
            "misses": s.misses,
            "auxiliary_accesses": s.auxiliary_accesses,
            "auxiliary_hits": s.auxiliary_hits,
            "loads": s.loads,
            "loads_per_partition": s.loads_per_partition,
            "hit_rate": s.hit_rate,
            "bytes_read": s.bytes_read,
            "bytes_decoded": s.bytes_decoded,
            "visits": s.visits,
            "sweeps": s.sweeps,
            "backups": s.backups,
            "policy_evaluations": s.policy_evaluations,
            "partitions_unread": s.partitions_unread,
            "solve_seconds": s.solve_seconds,
            "compile_seconds": self.compile_seconds,
            "source": s.source,
            "load_seconds": s.load_seconds,
            "workers": [asdict(w) for w in s.workers],
            "memory_plan": self.memory_plan,
        }

    def _spread(self) -> dict[str, float | None]:
        """Least, mean and largest value."""
        least, largest = least_and_largest(self.values) if self.values.size else (math.nan, math.nan)
        mean = float(self.values.mean()) if self.values.size else math.nan
        return {"value_min": _number(float(least)), "value_mean": _number(mean), "value_max": _number(float(largest))}


def _shown(x: float) -> float | str:
    """JSON has no infinity: an infinite answer is the text "inf" or "-inf"."""
    return x if np.isfinite(x) else str(x)


def _number(x: float) -> float | None:
    """JSON has no infinity: an unknown bound is null."""
    return x if np.isfinite(x) else None
