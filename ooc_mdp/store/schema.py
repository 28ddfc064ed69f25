"""How the chunks of a table are written: padded lengths, types, encodings, optional fields. Knows no files.

A schema is a value. What is known before the first chunk is stated when it is made: all but halos for a file, whose
rows have been counted, and for a problem with uniform rows. `including` gives the schema of one more partition, and the
order of partitions does not matter: two writings of a table end with the same schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from ooc_mdp.model.mdp import IntArray
from ooc_mdp.store.layout import FIELDS, Length, halo_dtype, successor_dtype
from ooc_mdp.store.partition_summary import PartitionSummary

__all__ = ["TableSchema"]

Dtype = np.dtype[Any]


@dataclass(frozen=True, slots=True)
class TableSchema:
    """What the partitions that are known have in common."""

    n_states: int
    """Of the whole table."""
    max_states: int
    """Of the largest partition."""
    dtype: Dtype
    """Type of probabilities and rewards."""
    dyadic_probabilities: bool = False
    """Whether all probabilities are multiples of 2**-24, and each row sums to 1 exactly."""
    known_rows: int = 0
    """Padded length of rows where it is known beforehand, else 0."""
    known_transitions: int = 0
    """The same for transitions."""
    actions: int | None = None
    """Actions of every state, 0 where they differ; None while nothing is known."""
    successors: int | None = None
    """Transitions of every row, 0 where they differ; None while no row is known."""
    max_actions: int = 0
    max_successors: int = 0
    max_rows: int = 0
    """Of one partition."""
    max_transitions: int = 0
    """Of one partition."""
    max_halo: int = 0
    """Of one partition."""
    float32_durations: bool = True
    """Whether float32 holds every duration without loss."""
    successor_bytes: int = 1
    """Of a local successor."""
    optional: frozenset[str] = frozenset()
    """Optional fields that some partition has, apart from pointers."""

    @classmethod
    def of(
        cls,
        partition_ptr: IntArray,
        dtype: Dtype,
        lengths: Mapping[Length, int] | None = None,
        dyadic_probabilities: bool = False,
    ) -> Self:
        """The schema of a table of which no partition is known.

        Parameters
        ----------
        partition_ptr : int64 [P+1].
        dtype : type of probabilities and rewards.
        lengths : padded lengths of rows and transitions where they are known.
        dyadic_probabilities : whether all probabilities are multiples of 2**-24, and each row sums to 1 exactly.
        """
        known = lengths or {}
        return cls(
            n_states=int(partition_ptr[-1]),
            max_states=int(np.diff(partition_ptr).max()),
            dtype=dtype,
            dyadic_probabilities=dyadic_probabilities,
            known_rows=known.get("rows", 0),
            known_transitions=known.get("transitions", 0),
        )

    def including(self, note: PartitionSummary) -> TableSchema:
        """The schema of one more partition."""
        sizes = note.sizes
        narrowest = successor_dtype(sizes.states + sizes.halo).itemsize
        return replace(
            self,
            actions=_common(self.actions, note.actions),
            successors=_common(self.successors, note.successors) if sizes.rows else self.successors,
            max_actions=max(self.max_actions, note.max_actions),
            max_successors=max(self.max_successors, note.max_successors),
            max_rows=max(self.max_rows, sizes.rows),
            max_transitions=max(self.max_transitions, sizes.transitions),
            max_halo=max(self.max_halo, sizes.halo),
            float32_durations=self.float32_durations and note.float32_durations,
            successor_bytes=max(self.successor_bytes, narrowest),
            optional=self.optional | set(note.optional),
        )

    def fields(self) -> list[str]:
        """Names of the fields that the store has, in their order."""
        fields = []
        for name, field in FIELDS.items():
            if name == "action_ptr":
                present = not self.actions
            elif name == "successor_ptr":
                present = not self.successors
            else:
                present = not field.optional or name in self.optional
            if present:
                fields.append(name)
        return fields

    def length_of(self, name: str) -> int:
        """Padded length of a field."""
        return self._lengths()[FIELDS[name].length]

    def _lengths(self) -> dict[Length, int]:
        # Uniform partitions are at most as long as a full one; slack spares recoding where they differ.
        most = self.max_states * self.max_actions
        uniform = bool(self.actions)
        rows = _padded(self.max_rows, most, self.known_rows, uniform)
        transitions = _padded(
            self.max_transitions, most * self.max_successors, self.known_transitions, uniform and bool(self.successors)
        )
        return {
            "states": self.max_states,
            "states+1": self.max_states + 1,
            "rows": max(rows, 1),
            "rows+1": rows + 1,
            "transitions": max(transitions, 1),
            "halo": max(self.max_halo, 1),
        }

    def encoding_of(self, name: str) -> str | None:
        """How a field is encoded; None for values as they are."""
        match name:
            case "successors":
                return "row-delta"
            case "probabilities" if self.dyadic_probabilities:
                return "fixed24-delta2" if self.actions and self.successors else "fixed24"
            case "durations" if self.actions and self.float32_durations:
                return "float32-delta2"
            case _:
                return None

    def stored_dtype(self, name: str) -> Dtype:
        """Type of the values of a field's chunks."""
        encoding = self.encoding_of(name)
        if encoding is None or name == "successors":
            return self.dtype_of(name)
        return np.dtype(FIELDS[name].encodings[encoding][0])

    def dtype_of(self, name: str) -> Dtype:
        """Type of the values before they are encoded."""
        match name:
            case "successors":
                return np.dtype(f"u{self.successor_bytes}")
            case "durations":
                return np.dtype(np.float32 if self.float32_durations else np.float64)
            case "probabilities" | "rewards":
                return self.dtype
            case "halo":
                return halo_dtype(self.n_states)
            case _:
                return np.dtype(FIELDS[name].dtypes[0])


def _common(one: int | None, other: int) -> int:
    """The number that both are, 0 where they differ."""
    return other if one is None or one == other else 0


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
