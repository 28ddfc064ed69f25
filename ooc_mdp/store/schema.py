"""How the chunks of a table are written: types, encodings, optional fields. Knows no files.

A schema is a value. What is known before the first chunk is stated when it is made: all but halos for a file, whose
rows have been counted, and for a problem with uniform rows. `including` gives the schema of one more partition, and the
order of partitions does not matter: two writings of a table end with the same schema.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ooc_mdp.store.layout import FIELDS, halo_dtype, successor_dtype
from ooc_mdp.store.partition_summary import PartitionSummary

__all__ = ["TableSchema"]

Dtype = np.dtype[Any]


@dataclass(frozen=True, slots=True)
class TableSchema:
    """What the partitions that are known have in common."""

    n_states: int
    """Of the whole table."""
    dtype: Dtype
    """Type of probabilities and rewards."""
    dyadic_probabilities: bool = False
    """Whether all probabilities are multiples of 2**-24, and each row sums to 1 exactly."""
    actions: int | None = None
    """Actions of every state, 0 where they differ; None while nothing is known."""
    successors: int | None = None
    """Transitions of every row, 0 where they differ; None while no row is known."""
    float32_durations: bool = True
    """Whether float32 holds every duration without loss."""
    successor_bytes: int = 1
    """Of a local successor."""
    optional: frozenset[str] = frozenset()
    """Optional fields that some partition has, apart from pointers."""

    def including(self, note: PartitionSummary) -> TableSchema:
        """The schema of one more partition."""
        sizes = note.sizes
        narrowest = successor_dtype(sizes.states + sizes.halo).itemsize
        return replace(
            self,
            actions=_common(self.actions, note.actions),
            successors=_common(self.successors, note.successors) if sizes.rows else self.successors,
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
