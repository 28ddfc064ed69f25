"""What a whole table needs to know of its partitions, noted one at a time: the small arrays, in RAM alone.

Which fields there are, their types, whether every state has the same number of actions, and who is in whose halo is
settled by the last partition; then `table(p, ...)` gives a partition as a store of the same partitions would. Keeps a
few numbers a partition, the coupling entries, and one bit a state for the boundary. Writes nothing; `facts` and
`arrays` are all that another process needs to have the same summary (`restored`).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.partition import Coupling, PartitionTable
from ooc_mdp.store.encodings import InexactWeights, RowLayout, encode
from ooc_mdp.store.layout import FIELDS, READ_FIELDS, PartitionSizes
from ooc_mdp.store.partition_arrays import PartitionArrays
from ooc_mdp.store.partition_summary import fits_float32
from ooc_mdp.store.state_set import StateSet

__all__ = ["TableSummary"]

_OPTIONAL = ("durations", "terminal_rewards", "initial_values")


class TableSummary:
    """One table's partitions, counted.

    Parameters
    ----------
    partition_ptr : int64 [P+1].
    dtype : type of probabilities and rewards.
    dyadic_probabilities : whether all rows are said to be made of multiples of 2**-24 that sum to 1; it is checked.
    """

    def __init__(self, partition_ptr: IntArray, dtype: np.dtype[Any], dyadic_probabilities: bool = False) -> None:
        self.partition_ptr = partition_ptr
        self.n_partitions = n = partition_ptr.size - 1
        self.rows, self.transitions, self.halo = (np.zeros(n, np.int64) for _ in range(3))
        self.reward_range: FloatArray = np.zeros((n, 2))
        self.duration_range: FloatArray = np.ones((n, 2))
        self.row_sum_range: FloatArray = np.ones((n, 2))
        self.max_successors: IntArray = np.zeros(n, np.int64)
        self.dtype = dtype
        self._successors_dtype = np.dtype(np.uint8)
        self._exact_weights = np.full(n, dyadic_probabilities)
        self._float32_durations = np.ones(n, np.bool_)
        self._uniform_actions, self._uniform_successors = (np.zeros(n, np.int64) for _ in range(2))
        self._optional: set[str] = set()
        self._coupling: list[tuple[IntArray, FloatArray]] = [(np.empty(0, np.int64), np.empty(0))] * n
        self._boundary_states = StateSet(int(partition_ptr[-1]))
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        """What another process may have: all but the lock."""
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = threading.Lock()

    @classmethod
    def restored(
        cls, dtype: np.dtype[Any], facts: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]
    ) -> TableSummary:
        """The summary that `facts` and `arrays` were taken of; their names, types and lengths have been checked."""
        summary = cls(arrays["partition_ptr"], dtype, facts["dyadic_probabilities"])
        summary.rows, summary.transitions = arrays["partition_rows"], arrays["partition_transitions"]
        summary.halo, summary.max_successors = arrays["partition_halo"], arrays["max_successors"]
        summary.reward_range, summary.duration_range = arrays["reward_range"], arrays["duration_range"]
        summary.row_sum_range = arrays["row_sum_range"]
        summary._uniform_actions[:] = facts["actions_per_state"]
        summary._uniform_successors[:] = facts["successors_per_action"]
        summary._successors_dtype = np.dtype(facts["successors"])
        summary._float32_durations[:] = facts["durations"] == "float32"
        summary._optional = {name for name in _OPTIONAL if facts[name]}
        cuts = arrays["coupling_ptr"][1:-1]
        pairs = (np.split(arrays[f"coupling_{name}"], cuts) for name in ("partitions", "mass"))
        summary._coupling = list(zip(*pairs, strict=True))
        summary._boundary_states.bits = arrays["boundary"]
        return summary

    def facts(self) -> dict[str, Any]:
        """What all partitions have in common, as JSON has it."""
        duration = self.duration_dtype
        return {
            "actions_per_state": self.actions_per_state,
            "successors_per_action": self.successors_per_action,
            "dyadic_probabilities": self.dyadic_probabilities,
            "successors": self._successors_dtype.name,
            "durations": None if duration is None else duration.name,
            "terminal_rewards": "terminal_rewards" in self._optional,
            "initial_values": "initial_values" in self._optional,
        }

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What each partition has: by the names of a store's small arrays, and the boundary, a bit a state."""
        coupling = self.coupling()
        return {
            "partition_ptr": self.partition_ptr,
            "partition_rows": self.rows,
            "partition_transitions": self.transitions,
            "partition_halo": self.halo,
            "max_successors": self.max_successors,
            "reward_range": self.reward_range,
            "duration_range": self.duration_range,
            "row_sum_range": self.row_sum_range,
            "coupling_ptr": coupling.ptr,
            "coupling_partitions": coupling.partitions,
            "coupling_mass": coupling.mass,
            "boundary": self._boundary_states.bits,
        }

    def note(self, p: int, part: PartitionArrays) -> None:
        """Count partition p; any thread, each p once."""
        actions, counts = np.diff(part.action_ptr), np.diff(part.successor_ptr)
        terminal = actions == 0
        paid = np.zeros(int(terminal.sum())) if part.terminal_rewards is None else part.terminal_rewards[terminal]
        rewards = [a for a in (part.rewards, paid) if a.size]
        self.rows[p], self.transitions[p], self.halo[p] = counts.size, part.successors.size, part.halo.size
        self._uniform_actions[p], self._uniform_successors[p] = _if_equal(actions), _if_equal(counts)
        self.max_successors[p] = counts.max(initial=0)
        self.reward_range[p] = min(a.min() for a in rewards), max(a.max() for a in rewards)
        if part.durations is not None and part.durations.size:
            self.duration_range[p] = part.durations.min(), part.durations.max()
            self._float32_durations[p] = fits_float32(part.durations)
        if self._exact_weights[p]:
            self._exact_weights[p] = _has_exact_weights(part, self.sizes(p))
        self.row_sum_range[p] = part.row_sum_range
        self._coupling[p] = part.coupling_partitions, part.coupling_mass
        with self._lock:
            self._boundary_states.mark(part.halo)
            self._successors_dtype = max(part.successors.dtype, self._successors_dtype, key=lambda t: t.itemsize)
            self._optional |= {name for name in _OPTIONAL if getattr(part, name) is not None}

    @property
    def actions_per_state(self) -> int:
        """A where every state has A > 0 actions, else 0."""
        return _if_equal(self._uniform_actions)

    @property
    def successors_per_action(self) -> int:
        """K where every row has K transitions, else 0."""
        return _if_equal(self._uniform_successors[self.rows > 0])

    @property
    def dyadic_probabilities(self) -> bool:
        """Whether every row was seen to be made of multiples of 2**-24 that sum to 1."""
        return bool(self._exact_weights.all())

    @property
    def duration_dtype(self) -> np.dtype[Any] | None:
        """float32 where it was seen to hold every duration, else float64; None without durations."""
        if "durations" not in self._optional:
            return None
        return np.dtype(np.float32 if self._float32_durations.all() else np.float64)

    def fields(self) -> dict[str, np.dtype[Any]]:
        """Types of the fields that the table has, in the order of a PartitionTable's arrays."""
        absent = {name for name in _OPTIONAL if name not in self._optional}
        if self.actions_per_state:
            absent.add("action_ptr")
        if self.successors_per_action:
            absent.add("successor_ptr")
        types = {
            "successors": self._successors_dtype,
            "probabilities": self.dtype,
            "rewards": self.dtype,
            "halo": np.dtype(np.int64),
        }
        return {name: types.get(name, np.dtype(FIELDS[name].dtypes[0])) for name in READ_FIELDS if name not in absent}

    def sizes(self, p: int) -> PartitionSizes:
        """How many of everything partition p has."""
        states = int(self.partition_ptr[p + 1] - self.partition_ptr[p])
        return PartitionSizes(states, int(self.rows[p]), int(self.transitions[p]), int(self.halo[p]))

    def partition_bytes(self) -> IntArray:
        """int64 [P]; bytes of each PartitionTable."""
        total = np.zeros(self.n_partitions, np.int64)
        for name, dtype in self.fields().items():
            counts = [self.sizes(p).of(FIELDS[name].length) for p in range(self.n_partitions)]
            total += np.asarray(counts, np.int64) * dtype.itemsize
        return total

    def coupling(self) -> Coupling:
        """Rows noted by each partition, together."""
        sizes = [partitions.size for partitions, _ in self._coupling]
        return Coupling(
            np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
            np.concatenate([partitions for partitions, _ in self._coupling]),
            np.concatenate([mass for _, mass in self._coupling]),
        )

    def fault(self, p: int, part: PartitionArrays) -> str | None:
        """What of partition p the table could not hold, in words; None if it holds all of it."""
        for name, ptr, uniform in (
            ("actions in a state", part.action_ptr, self.actions_per_state),
            ("transitions in a row", part.successor_ptr, self.successors_per_action),
        ):
            counts = np.diff(ptr)
            if uniform and (counts != uniform).any():
                return f"has {counts.min()} to {counts.max()} {name}, not {uniform} as before"
        for name, default in (("durations", 1.0), ("terminal_rewards", 0.0), ("initial_values", 0.0)):
            values = getattr(part, name)
            if name not in self._optional and values is not None and (values != default).any():
                return f"has {name}, and there were none before"
        if self.duration_dtype == np.float32 and part.durations is not None and not fits_float32(part.durations):
            return "has durations that float32 does not hold, as it did before"
        if self.dyadic_probabilities and not _has_exact_weights(part, self.sizes(p)):
            return "has probabilities that are no multiples of 2^-24 with sum 1, as they were before"
        return None

    def table(self, p: int, part: PartitionArrays) -> PartitionTable:
        """Partition p in the table's types, after the last `note`."""
        present = self.fields()
        given: dict[str, npt.NDArray[Any] | None] = {
            **{name: getattr(part, name) for name in READ_FIELDS if name != "boundary"},
            "boundary": self._boundary_states.slice(*self.partition_ptr[p : p + 2].tolist()),
        }
        arrays: dict[str, Any] = {}
        for name in READ_FIELDS:
            values, dtype = given[name], present.get(name)
            if dtype is None:
                arrays[name] = np.empty(0, FIELDS[name].dtypes[0])
            elif values is None:
                default = np.ones if name == "durations" else np.zeros
                arrays[name] = default(self.sizes(p).of(FIELDS[name].length), dtype)
            else:
                arrays[name] = values.astype(dtype, copy=False)
        return PartitionTable(
            index=p,
            first_state=int(self.partition_ptr[p]),
            n_states=self.sizes(p).states,
            actions_per_state=self.actions_per_state,
            successors_per_action=self.successors_per_action,
            **arrays,
        )


def _has_exact_weights(part: PartitionArrays, sizes: PartitionSizes) -> bool:
    """Whether a store could keep the rows without their last probabilities."""
    layout = RowLayout(sizes, 0, 0, successor_ptr=part.successor_ptr.astype(np.uint32))
    try:
        encode("fixed24", part.probabilities, layout)
    except InexactWeights:
        return False
    return True


def _if_equal(counts: IntArray) -> int:
    """The number that all counts are, 0 if they differ or there is none."""
    return int(counts[0]) if counts.size and counts.min() == counts.max() else 0
