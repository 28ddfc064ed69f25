"""A policy that is given: read from an array, a file, a result or a solution, and checked as far as it goes by itself.

Actions are counted among the available ones of each state, as `Solution.policy` does; -1 stands where a state has none.
Which actions there are, a table knows: `ooc_mdp.policies.table`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import OptionsError, StoreError
from ooc_mdp.model.criterion import EVALUATED
from ooc_mdp.model.mdp import IntArray
from ooc_mdp.model.solution import Solution
from ooc_mdp.model.stages import StageResults
from ooc_mdp.store.result import Result, is_result, open_result
from ooc_mdp.store.stage_file import policy_type

__all__ = ["GivenPolicy", "given_policy", "recorded_policy"]

_MAX_ACTION = 2**31 - 1
_OTHER = 1
"""What the policy's table has no action of: it has one for each state, 0."""


@dataclass(frozen=True, slots=True, eq=False)
class GivenPolicy:
    """One action for each state, in every stage."""

    actions: npt.NDArray[np.int32]
    """int32 [n_states], in the source's order; -1 where a state has no action."""
    where: str
    """What messages call it."""
    source_actions: IntArray | None = None
    """int64 [n_states]; the source's numbers of these actions, where they are known."""
    digest: str = field(init=False)
    """SHA-256 of the actions."""

    def __post_init__(self) -> None:
        actions = np.ascontiguousarray(self.actions, "<i4")
        object.__setattr__(self, "digest", hashlib.sha256(actions.data).hexdigest())

    @property
    def record(self) -> dict[str, Any]:
        """What results and checkpoints record beside the criterion."""
        return {EVALUATED: self.digest}

    def answered(self, solution: Solution) -> Solution:
        """The solution of the policy's table as one of the table that the policy is of.

        How far the policy is from an optimal one is not known.
        """
        stages, actions = solution.stages, self.actions
        proof = solution.certificate.proof.replace("V*", "V_π").replace("g*", "g_π")
        if stages is not None:
            stages = replace(stages, read_policy=lambda _: actions, policy_dtype=policy_type(int(actions.max()) + 1))
        return replace(
            solution,
            policy=actions,
            stages=stages,
            criterion={**solution.criterion, **self.record},
            certificate=replace(solution.certificate, policy_loss_bound=np.inf, proof=proof),
        )

    def asked(self, solution: Solution) -> Solution:
        """The inverse of :meth:`answered`: entries that are not this policy's become those of an action that its table
        does not have."""
        stages = solution.stages
        if stages is not None:
            stages = replace(stages, read_policy=lambda stage: self._in_table(_policy_of(solution, stage)))
        return replace(solution, policy=self._in_table(solution.policy), stages=stages)

    def _in_table(self, found: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """int32 [n_states]; a policy as one of this policy's table."""
        return np.where(found == self.actions, np.minimum(self.actions, 0), _OTHER).astype(np.int32)


def _policy_of(solution: Solution, stage: int) -> npt.NDArray[np.int32]:
    stages: StageResults | None = solution.stages
    assert stages is not None
    return stages.policy(stage)


def given_policy(given: Any) -> GivenPolicy:
    """The policy that is given.

    Parameters
    ----------
    given : whole numbers, one for each state, of the grid's shape or flat, in the source's order; what
        :func:`ooc_mdp.solve` or :func:`ooc_mdp.open_result` returned; or the path of a result or of a .npy file.

    Raises
    ------
    OptionsError : it is none of these, or has a number that is no action's.
    StoreError : the result is damaged.
    """
    where = "the policy"
    if isinstance(given, str | PathLike):
        where = f"the policy {fspath(given)}"
        given = _read(Path(given))
    if isinstance(given, Result):
        given = given.solution
    if isinstance(given, Solution):
        if given.stages is not None and EVALUATED not in given.criterion:
            raise OptionsError(
                f"{where} has a policy for each of {given.stages.count} stages, and one for all of them is evaluated; "
                f"give that of one stage as an array: open_result(...).solution.stages.policy(0), saved by numpy.save"
            )
        return GivenPolicy(_numbers(given.policy, where), where, given.source_actions)
    return GivenPolicy(_numbers(given, where), where)


def recorded_policy(solution: Solution, where: str) -> GivenPolicy | None:
    """The policy whose value a solution is; None where it is not the value of a given one.

    Raises
    ------
    StoreError : the solution has another policy than the one that was evaluated.
    """
    due = solution.criterion.get(EVALUATED)
    if due is None:
        return None
    policy = GivenPolicy(_numbers(solution.policy, where), where)
    if policy.digest != due:
        raise StoreError(
            f"{where} is the value of the policy of SHA-256 {due}, and holds the policy of SHA-256 {policy.digest}: it "
            f"is damaged; solve again"
        )
    return policy


def _read(path: Path) -> Any:
    """What a path names: a result, or the array of a .npy file."""
    if is_result(path):
        return open_result(path)
    try:
        loaded = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        why = getattr(error, "strerror", None) or error
        raise OptionsError(
            f"the policy {path} is neither a result nor a .npy file with an action for each state: {why}"
        ) from None
    if not isinstance(loaded, np.ndarray):
        raise OptionsError(f"the policy {path} holds several arrays; give a .npy file, which holds one")
    return loaded


def _numbers(given: Any, where: str) -> npt.NDArray[np.int32]:
    """int32 [n], read-only; OptionsError where it holds anything but numbers from -1 on."""
    try:
        numbers = np.asarray(given).reshape(-1)
    except (TypeError, ValueError) as error:
        raise OptionsError(f"{where} is no array of whole numbers: {error}") from None
    if numbers.dtype.kind not in "iu" or numbers.size == 0:
        raise OptionsError(
            f"{where} is of type {numbers.dtype} with {numbers.size} entries; give whole numbers, one for each state: "
            f"which of its available actions is taken, from 0 on"
        )
    wrong = np.flatnonzero((numbers < -1) | (numbers > _MAX_ACTION))
    if wrong.size:
        state = int(wrong[0])
        raise OptionsError(
            f"{where}: the action of state {state} is {numbers[state]}; give numbers from 0 on, and -1 where a state "
            f"has no action"
        )
    actions = numbers.astype(np.int32)
    actions.flags.writeable = False
    return actions
