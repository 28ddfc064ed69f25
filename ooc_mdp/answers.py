"""What is asked of a table and a result of it together, once there is one: values of actions, runs of the policy.

A result on disk names its table by a fingerprint and its question by a record; here both are put together again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ooc_mdp.arguments import FUNCTION, RESULT, STATES, TABLE, WHOLE, check_types, maybe
from ooc_mdp.array_tables import open_model
from ooc_mdp.criteria import question_of
from ooc_mdp.tables import AnyPath

if TYPE_CHECKING:
    from ooc_mdp.model.q_values import QValues
    from ooc_mdp.model.solution import Solution
    from ooc_mdp.model.table import Table
    from ooc_mdp.simulation.returns import Returns
    from ooc_mdp.store.result import Result

__all__ = ["answered_table", "q_values", "simulate_policy"]


@check_types(table=TABLE, result=RESULT, states=maybe(STATES), stage=WHOLE, note=maybe(FUNCTION))
def q_values(
    table: Table | AnyPath,
    result: Result | Solution | AnyPath,
    states: Any = None,
    *,
    stage: int = 0,
    note: Callable[[str], None] | None = None,
) -> QValues:
    """Values Q(s,a) of the actions of some states, by one backup of the values of a result.

    Only partitions that hold some of the states are read, one at a time; beside it values and numbers of all states are
    in memory, 16 bytes each.

    Parameters
    ----------
    table : as for :func:`solve`.
    result : its path, or opened; or what :func:`solve` returned.
    states : numbers in the source's order, such as ``[0, 5]``; None for all states.
    stage : of a finite horizon, whose next stage's values were kept (``kept_stages``).
    note : called with a sentence where the table is read once for the rows of a policy that was evaluated.

    Returns
    -------
    QValues : its `values` have a row for each state and a column for each available action, as `policy` counts them;
        its `actions` have the source's number of each column's action; its `error_bound` is proved: the discount times
        that of the values, and what is rounded.

    Raises
    ------
    OptionsError : the result belongs to another table, there is no such state, or the criterion has no values of
        actions (average rewards, probabilities within a number of steps).
    StoreError : store or result is missing or damaged.
    """
    from ooc_mdp.model.q_values import q_values as of_states

    return of_states(*answered_table(table, result, note or (lambda _: None)), states, stage)


@check_types(
    table=TABLE,
    result=RESULT,
    steps=maybe(WHOLE),
    runs=WHOLE,
    seed=WHOLE,
    starts=STATES,
    note=maybe(FUNCTION),
)
def simulate_policy(
    table: Table | AnyPath,
    result: Result | Solution | AnyPath,
    *,
    steps: int | None = None,
    runs: int = 1000,
    seed: int = 1,
    starts: Sequence[int] = (),
    note: Callable[[str], None] | None = None,
) -> Returns:
    """Follow the policy of a result through the process of its table, by random numbers, and measure what it earns.

    Any table will do, however large: partitions are loaded one at a time, and 64 bytes of each run are in memory. (The
    continuous dynamics of a control problem are what :func:`simulate` runs.)

    Parameters
    ----------
    table : as for :func:`solve`.
    result : its path, or opened; or what :func:`solve` returned.
    steps : most steps of a run; 1,000 by default, or all stages of a finite horizon. What a run has not earned by then
        is the value of its last state; of an average reward, the reward per step is measured.
    runs : how many. The standard error of the mean falls with the square root.
    seed : of the random numbers; the same seed gives the same runs, whatever the partitions.
    starts : states by the source's numbers, in which runs begin in turn; the model's initial states by default.
    note : called with the memory plan.

    Returns
    -------
    Returns : mean, standard error, an interval of 95%, and the solved value beside them.

    Raises
    ------
    OptionsError : the result belongs to another table, or has no policy for the whole process; or there is no start.
    StoreError : store or result is missing or damaged.
    MemoryBudgetError : runs and partitions take more than the RAM that is available.
    """
    from ooc_mdp.simulation.returns import ReturnsOptions, simulate_returns

    say = note or (lambda _: None)
    options = ReturnsOptions(steps, runs, seed, starts)
    asked, solution = answered_table(table, result, say)
    with asked.hold():
        return simulate_returns(asked, solution, options, say)


def answered_table(
    table: Table | AnyPath, result: Result | Solution | AnyPath, note: Callable[[str], None] = lambda _: None
) -> tuple[Table, Solution]:
    """The table as the question of a result sees it, with the rows of all actions, and the result's solution.

    Raises
    ------
    OptionsError : the result belongs to another table.
    """
    from ooc_mdp.model.solution import Solution
    from ooc_mdp.policies.table import evaluated_table
    from ooc_mdp.solver.verify import check_belongs
    from ooc_mdp.store.result import Result, open_result, unsaved_result

    opened: Table = open_model(table) if isinstance(table, str) or hasattr(table, "__fspath__") else table
    found = result if isinstance(result, Result | Solution) else open_result(Path(result))
    record = found.criterion if isinstance(found, Solution) else found.identity
    asked = question_of(record).table(opened, record)
    if isinstance(found, Solution):
        return asked, unsaved_result(found, asked).solution
    solved_from = evaluated_table(opened, found, note)[0]
    check_belongs(asked if solved_from is opened else question_of(record).table(solved_from, record), found)
    return asked, found.solution
