"""A control problem on a regular grid, as an MDP whose rows can be computed for any states.

    state number = C order over the grid's points;     row (s, a): d + 1 successors, weights, reward, duration

The grid, the integrator's limits and the unit of time are options; the physics are the problem's own parameters.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numba.core.errors import NumbaError, UnsupportedBytecodeError

from ooc_mdp.errors import OptionsError
from ooc_mdp.model.annotations import StateSet
from ooc_mdp.model.mdp import FloatArray, IntArray, Rows
from ooc_mdp.problems.control.cuda.python_source import plain_function
from ooc_mdp.problems.control.definition import ControlProblem, State
from ooc_mdp.problems.control.failing_call import failing_call
from ooc_mdp.problems.control.function_checks import check_functions, failed_call, not_compilable, place_of
from ooc_mdp.problems.control.integration import MAX_STEPS, Horizon, RowArrays, compile_goal, compile_rows
from ooc_mdp.problems.control.kuhn import Grid, grid_point
from ooc_mdp.problems.parameters import DISPLAY_DEFAULT, Parameter, check_states, parse_parameters
from ooc_mdp.problems.problem import LabelFunction, RowBounds
from ooc_mdp.quoting import quote, shorten

__all__ = ["DiscretisationOptions", "DiscretisedProblem", "discretise", "own_grid"]

_MAX_STATES = 2**62
_LONGEST_DURATION = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class DiscretisationOptions:
    """How a control problem becomes an MDP."""

    grid: str = ""
    """Points along each axis, such as 300,300; one number is for all axes; "" is the problem's own."""
    time_unit: float = 1.0
    """So much of the problem's time is one unit of duration: the discount of solve belongs to it."""
    max_step: float | None = None
    """Longest step of the integrator, in the problem's time; above 0."""
    max_duration: float | None = None
    """Longest duration of a transition, in the problem's time; above 0."""


class DiscretisedProblem:
    """The MDP of a control problem on a grid (satisfies :class:`~ooc_mdp.problems.problem.Problem`)."""

    sense = "max"
    dyadic_probabilities = True
    default_dtype: Literal["float32", "float64"] = "float32"

    def __init__(self, problem: ControlProblem, options: DiscretisationOptions) -> None:
        self.problem = problem
        self.options = options
        self.name = problem.name
        self.file: Path | None = None
        """Python file that defines the problem, where it is a user's."""
        check_functions(problem)
        self.points: tuple[int, ...] = _grid(problem, options.grid)
        self.shape: tuple[int, ...] | None = self.points
        self.n_states = math.prod(self.points)
        if self.n_states > _MAX_STATES:
            raise OptionsError(f"a grid of {self.points} has {self.n_states} states; give at most 2**62")
        for name, meaning, default in (
            ("time_unit", "the length of one unit of duration", 1.0),
            ("max_step", "the longest step of the integrator", problem.max_step),
            ("max_duration", "the longest duration of a transition", problem.max_duration),
        ):
            _check_time(problem, name, getattr(options, name), meaning, default)
        self.max_step = problem.max_step if options.max_step is None else options.max_step
        longest = max(problem.max_duration, self.max_step)
        self.max_duration = longest if options.max_duration is None else options.max_duration
        if self.max_step > self.max_duration:
            raise OptionsError(
                f"problem {problem.name!r}: max_step = {self.max_step} is above max_duration = {self.max_duration}"
            )
        # Longer durations would be stored as infinite, which ends the process.
        if self.max_duration / options.time_unit > _LONGEST_DURATION:
            raise OptionsError(
                f"problem {problem.name!r}: max_duration = {self.max_duration} is "
                f"{self.max_duration / options.time_unit:g} units of time, more than a float32 holds; give a larger "
                f"time_unit than {options.time_unit}, or a smaller max_duration"
            )

    @property
    def n_actions(self) -> int:
        """Controls of every state."""
        return len(self.problem.controls)

    @property
    def steps(self) -> tuple[float, ...]:
        """Distance between neighbours on each axis."""
        return tuple(axis.step(n) for axis, n in zip(self.problem.axes, self.points, strict=True))

    @property
    def strides(self) -> tuple[int, ...]:
        """State numbers between neighbours on each axis."""
        return tuple(math.prod(self.points[i + 1 :]) for i in range(len(self.points)))

    def coordinates(self, states: IntArray) -> np.ndarray[Any, Any]:
        """float64 [n, d]: where the states lie."""
        index = np.stack(np.unravel_index(states, self.points), axis=1)
        return np.array([axis.low for axis in self.problem.axes]) + index * np.array(self.steps)

    @property
    def labels(self) -> dict[str, LabelFunction]:
        """`boundary`: on a bound of an axis beyond which the process ends; `init`: nearest to the initial state;
        `goal`: where the problem states its goal. Each where the problem has such states."""
        found: dict[str, LabelFunction] = {}
        if any(not axis.periodic and not axis.clipped for axis in self.problem.axes):
            found["boundary"] = self._on_boundary
        if self.problem.initial_state is not None:
            first = self._nearest(self.problem.initial_state)
            found["init"] = lambda states: states == first
        if self.problem.is_goal is not None:
            found["goal"] = self._at_goal
        return found

    def _on_boundary(self, states: IntArray) -> StateSet:
        found = np.zeros(states.size, np.bool_)
        for axis, n, stride in zip(self.problem.axes, self.points, self.strides, strict=True):
            if not axis.periodic and not axis.clipped:
                index = states // stride % n
                found |= (index == 0) | (index == n - 1)
        return found

    def _at_goal(self, states: IntArray) -> StateSet:
        found = np.zeros(states.size, np.bool_)
        grid, _, parameters = self.kernel_arguments()
        try:
            compile_goal(self.problem)(states, grid, parameters, found)
        except (NumbaError, UnsupportedBytecodeError) as error:
            raise not_compilable(self.problem, error) from error
        except (OSError, MemoryError):
            raise
        except Exception as error:
            is_goal: Any = plain_function(self.problem.is_goal) or self.problem.is_goal
            for state in states:
                x = grid_point(state, grid)
                try:
                    is_goal(x, parameters)
                except type(error) as same:
                    raise failed_call(self.problem, "is_goal", same, place_of(self.problem, x)) from error
            raise
        return found

    def _nearest(self, state: State) -> int:
        """The state whose grid point is nearest to a state of the problem."""
        index = []
        for x, axis, step, n in zip(state, self.problem.axes, self.steps, self.points, strict=True):
            i = round((x - axis.low) / step)
            index.append(i % n if axis.periodic else min(max(i, 0), n - 1))
        return int(np.ravel_multi_index(tuple(index), self.points))

    @property
    def row_bounds(self) -> RowBounds:
        """A row for each control, a transition for each corner of a simplex."""
        return RowBounds(self.n_actions, len(self.problem.axes) + 1, True, True, ("durations",))

    def rows(self, states: IntArray) -> Rows:
        """Rows of the given states (int64 [n], any order).

        Raises
        ------
        OptionsError : a state that does not exist, a function of the problem that cannot be compiled or fails, or a
            trajectory that takes too many steps.
        """
        states = check_states(states, self.n_states, self.name)
        try:
            rows = self._computed(states)
        except (NumbaError, UnsupportedBytecodeError) as error:
            raise not_compilable(self.problem, error) from error
        except (OSError, MemoryError):
            raise
        except Exception as error:
            if states.size > 1:
                for state in states:  # the first that fails alone is named
                    self.rows(state[None])
            found = self._failing_call(states[0], error)
            if found is None and not isinstance(error, ArithmeticError | ValueError):
                raise
            raise found or OptionsError(
                f"problem {self.name!r}: {type(error).__name__}: {error} in its functions on the way from state "
                f"{self._place(states[0])}"
            ) from error
        assert rows.durations is not None
        self.check_rows(states, rows.probabilities, rows.rewards, rows.durations)
        return rows

    def check_rows(
        self, states: IntArray, probabilities: FloatArray, rewards: FloatArray, durations: FloatArray
    ) -> None:
        """Refuse rows that are no numbers, since a function gave none or a trajectory took too many steps.

        Parameters
        ----------
        states : int64 [n].
        probabilities, rewards, durations : float64 [n A K], [n A] and [n A]; of their rows, the first whose duration
            is no number after all that are computed.

        Raises
        ------
        OptionsError : there is one; says which, and what to change.
        """
        self._check_terminates(states, durations)
        wrong = ~np.isfinite(rewards) | np.isnan(probabilities.reshape(rewards.size, len(self.points) + 1)).any(axis=1)
        if wrong.any():
            n, action = divmod(int(wrong.argmax()), self.n_actions)
            found = self._failing_call(states[n], None)
            if found is not None:
                raise OptionsError(f"{found} ({self.name}: state {states[n]}, action {action})")

    def _failing_call(self, state: int, error: BaseException | None) -> OptionsError | None:
        grid, _, p = self.kernel_arguments()
        return failing_call(self.problem, grid_point(state, grid), grid, p, self._horizon(), error)

    def _horizon(self) -> Horizon:
        return Horizon(float(self.max_step), float(self.max_duration), float(self.options.time_unit))

    def _check_terminates(self, states: IntArray, durations: FloatArray) -> None:
        """Refuse rows of trajectories that were given up after too many steps."""
        endless = np.isnan(durations)
        if not endless.any():
            return
        n, action = divmod(int(endless.argmax()), self.n_actions)
        least = 2 * self.max_duration / MAX_STEPS
        remedy = "the state moves too fast for its cells: give other parameters, or a coarser grid"
        if self.max_step < least:
            remedy = f"give a max_step of {least:g} or more, not {self.max_step:g}, or a smaller max_duration"
        control = ", ".join(map(str, self.problem.controls[action]))
        raise OptionsError(
            f"problem {self.name!r}: from state {self._place(states[n])}, control {action} ({control}) takes "
            f"{MAX_STEPS:,} steps of the integrator and more; {remedy}"
        )

    def _place(self, state: int) -> str:
        """A state's number and coordinates."""
        return f"{state} ({place_of(self.problem, self.coordinates(np.array([state]))[0])})"

    def kernel_arguments(self) -> tuple[Grid, tuple[tuple[float, ...], ...], Any]:
        """Grid, controls and parameters as compiled code takes them."""
        axes = self.problem.axes
        grid = Grid(
            points=self.points,
            stride=self.strides,
            low=tuple(float(x.low) for x in axes),
            high=tuple(float(x.high) for x in axes),
            span=tuple(float(x.high - x.low) for x in axes),
            h=self.steps,
            periodic=tuple(x.periodic for x in axes),
            clipped=tuple(x.clipped for x in axes),
        )
        controls = tuple(tuple(float(u) for u in control) for control in self.problem.controls)
        return grid, controls, _floats(self.problem.parameters)

    def _computed(self, states: IntArray) -> Rows:
        n, a, k = states.size, self.n_actions, len(self.problem.axes) + 1
        rows = RowArrays(np.empty(n * a * k, np.int64), np.empty(n * a * k), np.empty(n * a), np.empty(n * a))
        compile_rows(self.problem)(states, *self.kernel_arguments(), self._horizon(), rows)
        return Rows(
            action_ptr=np.arange(n + 1, dtype=np.int64) * a,
            successor_ptr=np.arange(n * a + 1, dtype=np.int64) * k,
            **rows._asdict(),
        )

    def parameters(self) -> dict[str, int | float | str | bool]:
        """Grid, limits and physics."""
        return {
            "grid": ",".join(map(str, self.points)),
            "time_unit": self.options.time_unit,
            "max_step": self.max_step,
            "max_duration": self.max_duration,
            **self.problem.parameters._asdict(),
        }

    def geometry(self) -> dict[str, Any]:
        """The axes and the control values of each action, for the store."""
        return {
            "axes": [dataclasses.asdict(axis) for axis in self.problem.axes],
            "controls": [[float(u) for u in control] for control in self.problem.controls],
        }


def discretise(problem: ControlProblem, parameters: Mapping[str, Parameter]) -> DiscretisedProblem:
    """The MDP of a problem, its physics and its grid changed by `parameters`.

    Raises
    ------
    OptionsError : unknown parameters, values that do not fit, or a grid that the problem cannot have.
    """
    own = problem.parameters._asdict()
    both = sorted(set(own) & {f.name for f in dataclasses.fields(DiscretisationOptions)})
    if both:
        raise OptionsError(f"problem {problem.name!r} calls a parameter {both[0]!r}, which the grid has; rename it")
    shown = {
        "grid": ",".join(map(str, own_grid(problem))),
        "max_step": problem.max_step,
        "max_duration": problem.max_duration,
    }
    everything = dataclasses.make_dataclass(
        "Parameters",
        [
            (
                f.name,
                f.type,
                dataclasses.field(default=f.default, metadata={DISPLAY_DEFAULT: shown.get(f.name, f.default)}),
            )
            for f in dataclasses.fields(DiscretisationOptions)
        ]
        + [(name, float, default) for name, default in own.items()],
        frozen=True,
        namespace={"__annotations__": {}},
    )
    everything.__module__ = __name__
    chosen = dataclasses.asdict(parse_parameters(everything, parameters, problem.name))
    physics = problem.parameters._replace(**{name: float(chosen.pop(name)) for name in own})
    return DiscretisedProblem(dataclasses.replace(problem, parameters=physics), DiscretisationOptions(**chosen))


def _check_time(problem: ControlProblem, name: str, given: float | None, meaning: str, default: float) -> None:
    """Refuse a time that is given and is not a number above 0, or is too large or too small to compute with."""
    if given is not None and not 1e-300 <= given <= 1e300:
        what = "not above 0" if given <= 0 else "outside 1e-300 .. 1e+300"
        raise OptionsError(
            f"problem {problem.name!r}: {name} = {given:g} is {what}; give {meaning}, in the problem's time, or leave "
            f"{name} out for the default, {default:g}"
        )


def _grid(problem: ControlProblem, text: str) -> tuple[int, ...]:
    """Points along each axis: those of the text, or the problem's own."""
    shape = _shape(problem, text) if text else own_grid(problem)
    for axis, n in zip(problem.axes, shape, strict=True):
        least = 3 if axis.periodic else 2
        if n < least:
            raise OptionsError(f"problem {problem.name!r}: {n} points on the axis {axis.name}; give at least {least}")
    return shape


def own_grid(problem: ControlProblem) -> tuple[int, ...]:
    """Points along each axis by default."""
    return problem.default_grid or (100,) * len(problem.axes)


def _shape(problem: ControlProblem, text: str) -> tuple[int, ...]:
    d = len(problem.axes)
    try:
        shape = tuple(int(n) for n in str(text).replace("x", ",").split(","))
    except ValueError:
        raise OptionsError(
            f"problem {problem.name!r}: grid = {quote(text)} is no list of numbers such as 100,200"
        ) from None
    if len(shape) == 1:
        shape *= d
    if len(shape) != d:
        names = ", ".join(axis.name for axis in problem.axes)
        raise OptionsError(
            f"problem {problem.name!r}: grid = {shorten(text)} has {len(shape)} numbers for {d} axes ({names})"
        )
    return shape


def _floats(parameters: Any) -> Any:
    """The NamedTuple with every field a float, so that one compiled kernel serves all values."""
    return type(parameters)(*(float(x) for x in parameters))
