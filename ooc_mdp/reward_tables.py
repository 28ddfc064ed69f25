"""`with_rewards`: other rewards for the transitions of a store, as a small store of its own.

Rewards are kept of each row: those of transitions, r(s,a,s'), are averaged with the probabilities of the store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from ooc_mdp.arguments import (
    ARRAYS,
    FLAG,
    FUNCTION,
    PATH,
    TABLE,
    TEXT,
    Kind,
    check_types,
    maybe,
    real_number,
    whole_number,
)
from ooc_mdp.errors import InputError, OptionsError
from ooc_mdp.io.arrays.in_memory import check_type, dense_array, exact_floats
from ooc_mdp.model.criterion import check_sense
from ooc_mdp.model.state_order import partition_of
from ooc_mdp.tables import AnyPath, open_store

if TYPE_CHECKING:
    from ooc_mdp.events import Watcher
    from ooc_mdp.model.mdp import FloatArray, IntArray
    from ooc_mdp.store import Store
    from ooc_mdp.store.reward_store import RewardStore

__all__ = ["with_rewards"]

_NAME = "rewards"
"""What messages name in place of a file."""
RewardFunction = Callable[["IntArray", "IntArray", "IntArray"], npt.ArrayLike]
"""r(s,a,s') of arrays of states, actions and next states, all int64 [z]."""
_REWARDS = Kind(lambda value: callable(value) or ARRAYS.accepts(value), f"{ARRAYS.words}, or a function")
_TERMINAL = Kind(lambda value: isinstance(value, Mapping), "a dict of values of terminal states")


@check_types(
    store=TABLE,
    rewards=_REWARDS,
    output=PATH,
    terminal=maybe(_TERMINAL),
    sense=maybe(TEXT),
    overwrite=FLAG,
    progress=maybe(FUNCTION),
)
def with_rewards(
    store: Store | RewardStore | AnyPath,
    rewards: npt.ArrayLike | RewardFunction,
    output: AnyPath,
    *,
    terminal: Mapping[int, float] | None = None,
    sense: Literal["max", "min"] | None = None,
    overwrite: bool = False,
    progress: Watcher | None = None,
) -> RewardStore:
    """Write other rewards for the transitions of a store, as a small store that refers to it.

    The new store is solved, verified, checked and inspected as any other. It finds the transitions by a relative path,
    and refuses them when they have changed.

    Parameters
    ----------
    store : the transitions: a store with chunks or its path. Of a store of :func:`with_rewards`, those that it has.
    rewards : an array (states,), r(s), which is also the value of a terminal state; or (states, actions), r(s,a), by
        the numbers of the actions, of which those of available actions are read; or a function of three int64 arrays
        (states, actions, next states), one entry for each transition, that returns r(s,a,s').
    output : directory of the new store. Rewards for a temporary store are of use as long as what is returned, or that
        store, is: give :func:`from_arrays` a path where they are to be opened again.
    terminal : values of terminal states, 0 for those that are not named. Not beside r(s).
    sense : "max" or "min"; that of `store` by default.
    overwrite : replace an existing store.
    progress : called with ("rewards", partitions done, of how many).

    Raises
    ------
    InputError : a shape or number is wrong; names state and action.
    OptionsError : the store has no chunks, or a terminal state is none.
    StoreError : the store is missing or damaged, or the output exists, is in use or cannot be written.
    """
    from ooc_mdp.io.conversion.write_store import tool_provenance
    from ooc_mdp.store.output_lock import locked_output
    from ooc_mdp.store.reader import Store as StoreWithChunks
    from ooc_mdp.store.reward_store import RewardStore, open_reward_store, write_reward_store
    from ooc_mdp.store.transaction import atomic_directory, check_destination

    opened: Any = open_store(store) if isinstance(store, str | Path) else store
    base = opened.base if isinstance(opened, RewardStore) else opened
    if not isinstance(base, StoreWithChunks):
        raise OptionsError(f"{opened.name} computes its transitions on demand; give a store that has them on disk")
    check_sense(sense)
    of_partition = _PartitionRewards(base, rewards, terminal or {})
    path = Path(output)
    provenance = {"source": str(base.path), "format": "rewards", **tool_provenance()}

    def computed(p: int) -> tuple[npt.NDArray[Any], FloatArray]:
        found = of_partition(p)
        if progress is not None:
            progress("rewards", p + 1, base.n_partitions)
        return found

    with (
        locked_output(path, partial(check_destination, overwrite=overwrite)),
        base.hold(),
        atomic_directory(path, overwrite) as root,
    ):
        write_reward_store(root, path, base, computed, sense or opened.sense, provenance)
    return open_reward_store(path, base)  # which keeps a temporary base until it is closed


class _PartitionRewards:
    """Rewards of the rows of one partition after the other, from whatever form a user gives."""

    def __init__(self, store: Store, rewards: Any, terminal: Mapping[int, float]) -> None:
        self._store = store
        self._function = rewards if callable(rewards) else None
        self._named = np.array(sorted(whole_number("terminal: a state", state) for state in terminal), np.int64)
        self._values = np.array([real_number(f"terminal: state {s}", terminal[s]) for s in self._named.tolist()])
        beyond = [s for s in self._named.tolist() if not 0 <= s < store.n_states]
        if beyond:
            raise OptionsError(
                f"terminal has state {beyond[0]}; the {store.n_states} states are 0..{store.n_states - 1}"
            )
        if self._function is None:
            self._rewards = _numbers(rewards, store.n_states)
            if terminal and self._rewards.ndim == 1:
                raise OptionsError("terminal: rewards r(s) have the values of terminal states; leave it out")

    def __call__(self, p: int) -> tuple[npt.NDArray[Any], FloatArray]:
        """Rewards of p's rows in the type of the store, and values of its states, 0 where there are actions."""
        store = self._store
        states, counts, labels = store.original_states(p), store.action_counts(p), store.action_labels(p)
        if labels is None:
            labels = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        owner = np.repeat(states, counts)
        if self._function is not None:
            rewards = self._expected(p, states, owner, labels)
        elif self._rewards.ndim == 1:
            rewards = self._rewards[owner]
        else:
            n_actions = self._rewards.shape[1]
            beyond = np.flatnonzero(labels >= n_actions)
            if beyond.size:
                pair = f"state {owner[beyond[0]]} has action {labels[beyond[0]]}"
                raise InputError(_NAME, f"{pair}, but the rewards are of {n_actions} actions, from 0 on")
            rewards = self._rewards[owner, labels]
        return self._stored(rewards, owner, labels), self._ends(states, counts == 0)

    def _ends(self, states: IntArray, ended: npt.NDArray[np.bool_]) -> FloatArray:
        """Values of a partition's states, of which those with actions are 0."""
        values = np.zeros(states.size)
        if self._function is None and self._rewards.ndim == 1:
            values[ended] = self._rewards[states[ended]]
        elif self._named.size:
            at = np.minimum(np.searchsorted(self._named, states), self._named.size - 1)
            named = self._named[at] == states
            if (named & ~ended).any():
                raise OptionsError(f"terminal has state {states[(named & ~ended).argmax()]}, which has actions")
            values[named] = self._values[at[named]]
        wrong = np.flatnonzero(~np.isfinite(values))
        if wrong.size:
            raise InputError(_NAME, f"state {states[wrong[0]]}: the value {values[wrong[0]]} is not finite")
        return values

    def _expected(self, p: int, states: IntArray, owner: IntArray, labels: IntArray) -> FloatArray:
        """Mean of the function's rewards over the successors of each row."""
        assert self._function is not None
        store = self._store
        table, _ = store.read(p)
        n, width = owner.size, store.facts.successors_per_action
        ptr = np.arange(n + 1) * width if width else table.successor_ptr.astype(np.int64)
        if n == 0:
            return np.zeros(0)
        successors = np.concatenate([states, self._original(table.halo)])[table.successors]
        row = np.repeat(np.arange(n), np.diff(ptr))
        given = dense_array(_NAME, "the function's rewards", self._function(owner[row], labels[row], successors))
        check_type(_NAME, "the function's rewards", given)
        try:
            of_transitions = np.broadcast_to(exact_floats(_NAME, "rewards", given), successors.shape)
        except ValueError:
            raise InputError(
                _NAME, f"the function returned shape {given.shape} for {successors.size} transitions; give one each"
            ) from None
        wrong = np.flatnonzero(~np.isfinite(of_transitions) & (table.probabilities > 0))
        if wrong.size:
            i = int(wrong[0])
            place = f"state {owner[row[i]]}, action {labels[row[i]]}"
            raise InputError(_NAME, f"{place}: the reward of successor {successors[i]} is {of_transitions[i]}")
        weighted = np.where(table.probabilities > 0, of_transitions, 0.0) * table.probabilities.astype(np.float64)
        return np.add.reduceat(weighted, ptr[:-1])

    def _original(self, states: IntArray) -> IntArray:
        """The source's numbers of states of other partitions."""
        ptr = self._store.facts.partition_ptr
        owners = partition_of(ptr, states)
        found = np.empty(states.size, np.int64)
        for q in np.unique(owners).tolist():
            found[owners == q] = self._store.original_states(q)[states[owners == q] - ptr[q]]
        return found

    def _stored(self, rewards: FloatArray, owner: IntArray, labels: IntArray) -> npt.NDArray[Any]:
        """The rewards in the type of the store, all of them finite."""
        with np.errstate(over="ignore"):
            stored = rewards.astype(self._store.facts.dtypes["rewards"])
        wrong = np.flatnonzero(~np.isfinite(stored))
        if wrong.size:
            i = int(wrong[0])
            raise InputError(
                _NAME,
                f"state {owner[i]}, action {labels[i]}: the reward {rewards[i]} is not a finite {stored.dtype}; every "
                "available action needs one",
            )
        return stored


def _numbers(rewards: Any, n_states: int) -> FloatArray:
    """Rewards of states, or of states and actions, as an array."""
    if hasattr(rewards, "tocsr"):
        rewards = rewards.toarray()
    given = dense_array(_NAME, _NAME, rewards)
    check_type(_NAME, _NAME, given)
    if given.ndim not in (1, 2) or given.shape[0] != n_states:
        raise InputError(
            _NAME,
            f"they have shape {given.shape}; give ({n_states},) as r(s) or ({n_states}, actions) as r(s,a), or a "
            "function of states, actions and next states",
        )
    return exact_floats(_NAME, _NAME, given)
