"""Where a solve's result goes: resumed from, checkpointed beside, written once it is proved.

    OUTPUT              the result, which is there whole or not at all
    OUTPUT.checkpoint   what is known until then, replaced in one step
    OUTPUT.lock         held from before the work until the end (:mod:`ooc_mdp.store.output_lock`)

`ooc_mdp.solver.run` uses it in this order: `finished`, `checkpoint`, `save` now and then, `finish`. It knows nothing of
how a solve works.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import DamagedStoreError, OptionsError, StoreError, SystemFailureError
from ooc_mdp.model.criterion import Criterion, other_identity, record_of
from ooc_mdp.model.facts import MAX_VALUE
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.model.method_record import MethodRecord, method_name
from ooc_mdp.model.solution import Outcome, Solution
from ooc_mdp.model.statistics import SolveStatistics
from ooc_mdp.model.table import Table
from ooc_mdp.options import RunOptions, SolveOptions
from ooc_mdp.policies.given import GivenPolicy
from ooc_mdp.solver.initial import InitialValues
from ooc_mdp.store.checkpoint import (
    CheckpointWriteError,
    check_arrays,
    check_checkpoint_place,
    check_policy,
    check_values,
    checkpoint_path,
    load_checkpoint,
    load_method,
    remove_checkpoint,
    save_checkpoint,
)
from ooc_mdp.store.output_lock import locked_output
from ooc_mdp.store.result import check_output, open_result, stored_stages, write_result
from ooc_mdp.store.trace import Trace, check_trace
from ooc_mdp.store.transaction import CommittedError

__all__ = ["Output", "Snapshot", "TakeSnapshot", "open_output"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a checkpoint holds: all that a solve continues from, and its history so far."""

    arrays: dict[str, npt.NDArray[Any]]
    statistics: SolveStatistics
    method: MethodRecord = field(default_factory=MethodRecord)


TakeSnapshot = Callable[[], Snapshot | None]
"""Takes a snapshot of a solve as it stands; None while nothing is known that is worth a checkpoint."""


@contextmanager
def open_output(
    table: Table,
    criterion: Criterion,
    run: RunOptions,
    note: Callable[[str], None] = lambda _: None,
    policy: GivenPolicy | None = None,
) -> Iterator[Output]:
    """The output of a solve, locked, with the table held open, for as long as it is worked on.

    Parameters
    ----------
    run : without an output nothing is saved.
    note : called with a sentence where a resumed solve begins, and where checkpoints cannot be written.
    policy : the one whose value is asked for; None for the best.

    Raises
    ------
    StoreError : result or trace cannot be written, or something is there that may not be replaced.
    BusyError : another process writes the output or reads what is there.
    """
    with table.hold(), locked_output(run.output, partial(_check_places, run=run)):
        if run.trace is not None:
            check_trace(run.trace, run.overwrite, run.output)
        asked = {**record_of(criterion), **({} if policy is None else policy.record)}
        identity = {"fingerprint": table.fingerprint, "sense": table.sense, **asked}
        yield Output(run, identity, note, from_values=criterion.from_values)


def _check_places(output: Path, run: RunOptions) -> None:
    check_output(output, replace=run.resume or run.overwrite)
    check_checkpoint_place(checkpoint_path(output), run.resume)


class Output:
    """One solve's output, which :func:`open_output` checked and locked; by default nowhere.

    Parameters
    ----------
    identity : fingerprint of the table, sense, criterion and its parameters; result and checkpoint must have the same.
    from_values : whether the criterion's method continues from the values of a result.
    """

    def __init__(
        self,
        run: RunOptions | None = None,
        identity: dict[str, Any] | None = None,
        note: Callable[[str], None] = lambda _: None,
        from_values: bool = True,
    ) -> None:
        self._run, self.identity, self._note = run or RunOptions(), identity or {}, note
        self._from_values = from_values
        self.path = self._run.output
        self._record: MethodRecord | None = None
        """What the checkpoint records of its method; None before it is read, or where there is none."""
        self._result_values: FloatArray | None = None
        """float64 [n], in the source's order and sign: those of a result that proves less than what is asked for, or
        those that the user gives."""
        self._values_of = ""
        """What messages call them."""
        self._failing = False
        """Whether the last checkpoint could not be written."""

    def trace(self, method: str, n_partitions: int) -> AbstractContextManager[Trace | None]:
        """The trace of the accesses; None where none is asked for."""
        if self._run.trace is None:
            return nullcontext()
        return Trace(self._run.trace, {**self.identity, "method": method, "partitions": n_partitions})

    def finished(self, options: SolveOptions, default: Callable[[Solution], float]) -> Solution | None:
        """With resume and without a checkpoint, the result that is there, if it proves what is asked.

        Of one that proves less, :meth:`take_result_values` has the values.

        Parameters
        ----------
        default : the error that is asked for at a solution's values where the options do not say.

        Raises
        ------
        OptionsError : a result is there that belongs to another table, sense or criterion.
        """
        if self.path is None or not self._run.resume or checkpoint_path(self.path).exists():
            return None
        if self.path.exists():
            result = open_result(self.path)
            difference = other_identity(result.identity, self.identity)
            if difference is not None:
                raise OptionsError(f"the result {self.path} belongs to {difference}; name another output")
            if _proves(result.solution, options, default):
                remove_checkpoint(checkpoint_path(self.path))  # of which there is what a killed run began, at most
                self._note(f"{self.path} holds what is asked for: nothing is left to do")
                return result.solution
            if not self._from_values:
                self._note(f"{self.path} proves less than what is asked for: solving anew, as no values are of use")
                return None
            self._result_values, self._values_of = result.solution.values, str(self.path)
            self._note(f"{self.path} proves less than what is asked for: continuing from its values, counting anew")
            return None
        self._note(f"there is no checkpoint {checkpoint_path(self.path)}: starting from the beginning")
        return None

    def begin_from(self, initial: InitialValues, table: Table) -> None:
        """Begin from given values where no earlier run left any.

        Raises
        ------
        OptionsError : they are not of the table's states.
        """
        if self._result_values is not None or (
            self.path is not None and self._run.resume and checkpoint_path(self.path).exists()
        ):
            return
        self._result_values, self._values_of = initial.of_table(table), initial.where
        self._note(f"beginning from the values of {initial.where}")

    def take_result_values(self, infinite: bool = False) -> FloatArray | None:
        """float64 [n], in the source's order and sign: the values to start from, which are then the caller's alone.

        Parameters
        ----------
        infinite : whether values may be infinite; 0 stands in their place.

        Raises
        ------
        StoreError : some are not finite.
        """
        values, self._result_values = self._result_values, None
        if values is not None and infinite:
            values[np.isinf(values)] = 0.0
        if values is not None and not np.isfinite(values).all():
            raise StoreError(
                f"{self._values_of} holds values that are not finite, from which no solve continues; solve again with "
                f"--overwrite in place of --resume, or without --initial"
            )
        return values

    def continued(self, options: SolveOptions) -> SolveOptions:
        """The options of a resumed solve: with the checkpoint's method, where they leave the choice to the solver.

        Raises
        ------
        StoreError, OptionsError : as :meth:`checkpoint` raises them.
        """
        if self.path is None or not self._run.resume:
            return options
        where = checkpoint_path(self.path)
        self._record = load_method(where, self.identity)
        if self._record is None:
            return options
        kept = self._record.continued(options)
        if kept != options:
            self._note(f"the method is that of the checkpoint, {method_name(kept)}; --method would take another")
        return kept

    def checkpoint(
        self,
        expected: Callable[[], dict[str, npt.NDArray[Any]]],
        optional: frozenset[str] = frozenset(),
        what: str = "",
        table: Table | None = None,
    ) -> Snapshot | None:
        """With resume, what a solve that was stopped left; None where it left nothing.

        Parameters
        ----------
        expected : gives arrays of the names, shapes and types that the checkpoint must have; asked where there is one.
        optional : names that it need not have.
        what : of the checkpoint is taken, for the note, where that is not all of it.
        table : the one whose actions the saved policy must name; None where no policy is continued.

        Raises
        ------
        StoreError : it is damaged, of another version, or an array is missing or of another shape or type.
        OptionsError : it belongs to another table, sense or criterion.
        """
        if self.path is None or not self._run.resume:
            return None
        where = checkpoint_path(self.path)
        found = load_checkpoint(where, self.identity)
        if found is None:
            return None
        arrays, statistics = found
        check_arrays(where, arrays, expected(), optional)
        if table is not None:
            check_values(where, arrays, MAX_VALUE)
            check_policy(where, arrays["policy"], arrays["visited"], table)
        self._note(f"continuing from {what}the checkpoint {where}, after {statistics.solve_seconds:.1f} s of work")
        return Snapshot(arrays, statistics, self._record or MethodRecord())

    def save(self, take: TakeSnapshot) -> bool:
        """Replace the checkpoint in one step; False where there is no output, or nothing to save.

        Raises
        ------
        CheckpointWriteError : disk full, no permission; the checkpoint before stays.
        """
        snapshot = None if self.path is None else take()
        if self.path is None or snapshot is None:
            return False
        save_checkpoint(
            checkpoint_path(self.path), self.identity, snapshot.arrays, snapshot.statistics, snapshot.method
        )
        return True

    def try_save(self, take: TakeSnapshot) -> bool:
        """Save for a solve that continues where that fails: a note says so once, and once that it works again."""
        try:
            saved = self.save(take)
        except CheckpointWriteError as error:
            if not self._failing:
                left = "continues from the one before" if error.before else "has nothing to continue from"
                self._note(
                    f"{error.what}; the solve goes on and tries again: {error.remedy}. Until then --resume {left}"
                )
            self._failing = True
            return False
        if saved and self._failing:
            self._note("checkpoints are written again")
            self._failing = False
        return saved

    @contextmanager
    def saved_on_damage(self, take: TakeSnapshot) -> Iterator[None]:
        """Where the table is damaged or cannot be read under a solve, save what was solved before the error continues.

        Everything that was read until then had the manifest's checksums, so values and bounds are those of the store.
        """
        try:
            yield
        except (DamagedStoreError, SystemFailureError) as error:
            try:
                saved = self.save(take)
            except CheckpointWriteError as unwritten:
                raise type(error)(f"{error}; {unwritten}") from error
            if not saved:
                raise
            then = "the store is whole again" if isinstance(error, DamagedStoreError) else "it can be read"
            raise type(error)(
                f"{error}; what was solved is in the checkpoint: once {then}, continue with --resume"
            ) from error

    def finish(self, table: Table, outcome: Outcome, take: TakeSnapshot, conclude: Callable[[], Solution]) -> Solution:
        """Write what was proved; save a checkpoint where nothing was, or where the result cannot be written.

        Parameters
        ----------
        conclude : makes the solution; what it is made of, and `take` takes, stays as it is.

        Raises
        ------
        StoreError : the result, or the checkpoint, cannot be written.
        """
        if self.path is None or not outcome.proved:
            self.save(take)  # before the solution takes memory
            return replace(conclude(), checkpoint=self._left())
        try:
            solution = conclude()
            write_result(self.path, table, solution, self.identity, replace=self._run.resume or self._run.overwrite)
        except CommittedError:
            raise
        except BaseException as error:
            kept = self._keep(take)
            if isinstance(error, StoreError):
                then = "what was solved is kept in the checkpoint: then go on with --resume"
                lost = "there is no checkpoint, so that what was solved is lost"
                raise StoreError(f"{error}; {then if kept else lost}") from error
            raise
        remove_checkpoint(checkpoint_path(self.path))
        return solution if solution.stages is None else replace(solution, stages=stored_stages(self.path))

    def _left(self) -> str | None:
        """Path of the checkpoint that there is, be it that of an earlier run; None where there is none."""
        where = None if self.path is None else checkpoint_path(self.path)
        return str(where) if where is not None and where.exists() else None

    def _keep(self, take: TakeSnapshot) -> bool:
        """Save after another error; whether there is a checkpoint then, be it the one before."""
        try:
            return self.save(take)
        except CheckpointWriteError as unwritten:
            return unwritten.before


def _proves(solution: Solution, options: SolveOptions, default: Callable[[Solution], float]) -> bool:
    """Whether a solution has what the options ask for."""
    claims = solution.certificate
    if options.residual is not None:
        return claims.residual_bound <= options.residual
    return claims.error_bound <= (default(solution) if options.epsilon is None else options.epsilon)
