"""What the partitions of a store in the making have in common so far: padded lengths, types, encodings.

The last partition settles it. Until then it is the best guess for chunks that are written, and it depends on which
partitions there are, not on the order in which they came: two writings of a table end the same. Knows no files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ooc_mdp.model.mdp import IntArray
from ooc_mdp.store.layout import FIELDS, Length, PartitionSizes, halo_dtype, successor_dtype
from ooc_mdp.store.partition_note import PartitionNote

__all__ = ["Agreement"]

Dtype = np.dtype[Any]


class Agreement:
    """Counts partitions as they come; not safe for counting from several threads at once.

    Parameters
    ----------
    partition_ptr : int64 [P+1].
    dtype : type of probabilities and rewards.
    lengths : padded lengths of rows and transitions where they are known beforehand.
    exact_weights : whether all probabilities are multiples of 2**-24, and each row sums to 1 exactly.
    """

    def __init__(
        self, partition_ptr: IntArray, dtype: Dtype, lengths: Mapping[Length, int], exact_weights: bool
    ) -> None:
        n = partition_ptr.size - 1
        self.rows, self.transitions, self.halo = (np.zeros(n, np.int64) for _ in range(3))
        self.actions, self.successors = (np.zeros(n, np.int64) for _ in range(2))
        """Actions of each state and transitions of each row of a partition, 0 where they differ."""
        self.max_successors = np.zeros(n, np.int64)
        self._ptr = partition_ptr
        self._n_states = int(partition_ptr[-1])
        self._dtype = dtype
        self._exact_weights = exact_weights
        self._known_lengths = dict(lengths)
        self._max_states = int(np.diff(partition_ptr).max())
        self._max_actions = self._longest_row = self._most_rows = self._most_transitions = 0
        self._float32_durations = True
        self._successors_dtype = np.dtype(np.uint8)
        self._noted = np.zeros(n, np.bool_)

    def note(self, p: int, note: PartitionNote) -> None:
        """Count partition p."""
        sizes = note.sizes
        self.rows[p], self.transitions[p], self.halo[p] = sizes.rows, sizes.transitions, sizes.halo
        self.actions[p], self.successors[p] = note.actions, note.successors
        self.max_successors[p] = note.most_successors
        self._noted[p] = True
        self._max_actions = max(self._max_actions, note.most_actions)
        self._longest_row = max(self._longest_row, note.most_successors)
        self._most_rows = max(self._most_rows, sizes.rows)
        self._most_transitions = max(self._most_transitions, sizes.transitions)
        self._float32_durations &= note.float32_durations
        narrowest = successor_dtype(sizes.states + sizes.halo)
        self._successors_dtype = max(narrowest, self._successors_dtype, key=lambda t: t.itemsize)

    def uniform(self) -> tuple[int, int]:
        """Actions of every state and successors of every row so far, each 0 where they differ or there is none."""
        noted = self.actions[self._noted]
        actions = int(noted[0]) if noted.size and np.ptp(noted) == 0 else 0
        with_rows = self.successors[self._noted & (self.rows > 0)]
        successors = int(with_rows[0]) if with_rows.size and np.ptp(with_rows) == 0 else 0
        return actions, successors

    def lengths(self) -> dict[Length, int]:
        """Padded lengths of all but halos for the partitions so far."""
        # Uniform partitions are at most as long as a full one; slack spares recoding where they differ.
        actions, successors = self.uniform()
        bounds = self._max_states * self._max_actions, self._max_states * self._max_actions * self._longest_row
        rows = _padded(self._most_rows, bounds[0], self._known_lengths.get("rows", 0), actions > 0)
        known = self._known_lengths.get("transitions", 0)
        transitions = _padded(self._most_transitions, bounds[1], known, actions > 0 and successors > 0)
        return {
            "states": self._max_states,
            "states+1": self._max_states + 1,
            "rows": max(rows, 1),
            "rows+1": rows + 1,
            "transitions": max(transitions, 1),
        }

    def final_lengths(self) -> dict[Length, int]:
        """The same with that of halos, once all partitions are counted."""
        return {**self.lengths(), "halo": max(int(self.halo.max()), 1)}

    def encoding_of(self, name: str, uniform_actions: bool, uniform_successors: bool, durations: Dtype) -> str | None:
        """How a field is encoded whose rows are uniform or not, with durations of that type."""
        match name:
            case "successors":
                return "row-delta"
            case "probabilities" if self._exact_weights:
                return "fixed24-delta2" if uniform_actions and uniform_successors else "fixed24"
            case "durations" if uniform_actions and durations == np.float32:
                return "float32-delta2"
            case _:
                return None

    def encodings(self) -> dict[str, str]:
        """How each field is encoded that is, for the partitions so far."""
        actions, successors = self.uniform()
        chosen = {n: self.encoding_of(n, actions > 0, successors > 0, self.dtype_of("durations")) for n in FIELDS}
        return {name: encoding for name, encoding in chosen.items() if encoding is not None}

    def stored_dtype(self, name: str, encoding: str | None) -> Dtype:
        """Type of the chunks' values."""
        if encoding is None or name == "successors":
            return self.dtype_of(name)
        return np.dtype(FIELDS[name].encodings[encoding][0])

    def dtype_of(self, name: str) -> Dtype:
        """Type of the values before they are encoded."""
        if name == "successors":
            return self._successors_dtype
        if name == "durations":
            return np.dtype(np.float32 if self._float32_durations else np.float64)
        if name in ("probabilities", "rewards"):
            return self._dtype
        if name == "halo":
            return halo_dtype(self._n_states)
        return np.dtype(FIELDS[name].dtypes[0])

    def sizes(self, p: int) -> PartitionSizes:
        """How many of everything partition p has, once it is counted."""
        states = int(self._ptr[p + 1] - self._ptr[p])
        return PartitionSizes(states, int(self.rows[p]), int(self.transitions[p]), int(self.halo[p]))


def _padded(longest: int, bound: int, known: int, full: bool) -> int:
    """A length of at least `longest`: the known one where that is enough, else the bound, or a quarter of slack."""
    if longest <= known:
        return known
    if full:
        return bound
    padded = 1
    while padded < longest:  # 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, ...: lengths that differ a little share one
        padded += max(padded // 4, 1)
    return min(padded, bound) if longest else 0
