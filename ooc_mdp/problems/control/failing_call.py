"""Which call of a problem's function fails on the way from a state: trajectories followed in plain Python.

Compiled code raises an error without its line. The steps here are those of :mod:`ooc_mdp.problems.control.integration`,
which alone computes rows; the first call that raises the same error, or gives no finite number, is named by function,
file, line, state and control.
"""

from __future__ import annotations

import math
from typing import Any

from ooc_mdp.errors import OptionsError
from ooc_mdp.problems.control.cuda.python_source import plain_function
from ooc_mdp.problems.control.definition import ControlProblem, State
from ooc_mdp.problems.control.function_checks import failed_call, not_finite, place_of
from ooc_mdp.problems.control.integration import MAX_STEP_CELLS, Horizon
from ooc_mdp.problems.control.kuhn import Grid

__all__ = ["failing_call"]

_MAX_STEPS = 10_000
"""Steps of a trajectory after which the search ends."""


def failing_call(
    problem: ControlProblem, start: State, grid: Grid, p: Any, horizon: Horizon, error: BaseException | None
) -> OptionsError | None:
    """The message for the first call on the way from `start`, under one control after the other, that fails.

    Parameters
    ----------
    error : what compiled code raised; None where it gave numbers that are not finite.

    Returns
    -------
    None where no call fails, as Python and compiled code differ in what they raise.
    """
    try:
        for control in problem.controls:
            _follow(_Calls(problem, p, error), start, tuple(float(u) for u in control), grid, horizon)
    except OptionsError as found:
        return found
    except (ArithmeticError, ValueError):  # another error than that of compiled code
        return None
    return None


class _Calls:
    """Calls the functions of a problem; OptionsError where one fails as compiled code did."""

    def __init__(self, problem: ControlProblem, p: Any, error: BaseException | None) -> None:
        self.problem = problem
        self._p = p
        self._error = error

    def __call__(self, name: str, default: Any, x: State, *control: State) -> Any:
        function = getattr(self.problem, name)
        if function is None:
            return default
        at = place_of(self.problem, x, *control)
        try:
            given = (plain_function(function) or function)(x, *control, self._p)
        except Exception as error:
            if self._error is None or type(error) is type(self._error):
                raise failed_call(self.problem, name, error, at) from error
            raise
        numbers = given if isinstance(given, tuple) else (given,)
        if self._error is None and not all(math.isfinite(number) for number in numbers):
            raise not_finite(self.problem, name, given, at)
        return given


def _follow(calls: _Calls, start: State, control: State, grid: Grid, horizon: Horizon) -> None:
    """Call the functions as the kernel does on the way from `start`."""
    x, over = start, _is_over(calls, start, grid)
    time, steps = 0.0, 0
    calls("reward_rate", 0.0, _wrapped(start, grid), control)
    while not over and time < horizon.max_duration and steps < _MAX_STEPS:
        k1 = calls("dynamics", None, x, control)
        speed = max(abs(k) / h for k, h in zip(k1, grid.h, strict=True))
        dt = min(horizon.max_step, horizon.max_duration - time)
        dt = MAX_STEP_CELLS / speed if speed * dt > MAX_STEP_CELLS else dt
        k2 = calls("dynamics", None, _ahead(x, 0.5 * dt, k1), control)
        k3 = calls("dynamics", None, _ahead(x, 0.5 * dt, k2), control)
        k4 = calls("dynamics", None, _ahead(x, dt, k3), control)
        mean = tuple((a + 2.0 * b + 2.0 * c + d) / 6.0 for a, b, c, d in zip(k1, k2, k3, k4, strict=True))
        x = tuple(
            min(max(to, low), high) if clipped else to
            for to, low, high, clipped in zip(_ahead(x, dt, mean), grid.low, grid.high, grid.clipped, strict=True)
        )
        time, steps, over = time + dt, steps + 1, _is_over(calls, x, grid)
        calls("reward_rate", 0.0, _wrapped(x, grid), control)
        if any(abs(to - begun) >= h for to, begun, h in zip(x, start, grid.h, strict=True)):
            break
    if over:
        calls("terminal_reward", 0.0, _wrapped(x, grid))


def _is_over(calls: _Calls, x: State, grid: Grid) -> bool:
    bounds = zip(x, calls.problem.axes, strict=True)
    left = any(not (axis.periodic or axis.clipped or axis.low <= at <= axis.high) for at, axis in bounds)
    return left or bool(calls("is_terminal", False, _wrapped(x, grid)))


def _wrapped(x: State, grid: Grid) -> State:
    """Periodic components brought back into their axis."""
    return tuple(
        low + (at - low) % span if periodic else at
        for at, low, span, periodic in zip(x, grid.low, grid.span, grid.periodic, strict=True)
    )


def _ahead(x: State, h: float, k: State) -> State:
    return tuple(at + h * slope for at, slope in zip(x, k, strict=True))
