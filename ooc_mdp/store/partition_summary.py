"""What a writer keeps in RAM of one partition once its chunks are written: numbers, no table.

It can be written down as JSON and read back bit by bit (`float` is printed so that it reads back as it was), so that a
run that was stopped can go on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.store.layout import FIELDS, PartitionSizes

if TYPE_CHECKING:
    from ooc_mdp.store.partition_arrays import PartitionArrays

__all__ = ["PartitionSummary", "fits_float32"]

_RANGES = ("reward_range", "duration_range", "row_sum_range")
_NUMBERS = ("actions", "successors", "max_successors", "float32_durations", *_RANGES)
_OPTIONAL = tuple(f.name for f in FIELDS.values() if f.optional and not f.name.endswith("_ptr"))


@dataclass(frozen=True, slots=True, eq=False)
class PartitionSummary:
    """One partition in numbers."""

    sizes: PartitionSizes
    actions: int
    """Actions of each of its states, 0 where they differ."""
    successors: int
    """Transitions of each of its rows, 0 where they differ."""
    max_successors: int
    float32_durations: bool
    """Whether float32 holds its durations without loss."""
    reward_range: tuple[float, float]
    """Least and largest reward, values of terminal states included."""
    duration_range: tuple[float, float]
    """(1, 1) without durations."""
    row_sum_range: tuple[float, float]
    coupling_partitions: IntArray
    """int64, ascending."""
    coupling_mass: FloatArray
    """float64, of the same length."""
    optional: tuple[str, ...] = ()
    """Optional fields that the partition has, apart from pointers."""

    @classmethod
    def of(cls, part: PartitionArrays) -> Self:
        """From the partition itself."""
        actions, counts = np.diff(part.action_ptr), np.diff(part.successor_ptr)
        max_actions, max_successors = int(actions.max()), int(counts.max(initial=0))
        terminal = actions == 0
        paid = np.zeros(int(terminal.sum())) if part.terminal_rewards is None else part.terminal_rewards[terminal]
        rewards = [a for a in (part.rewards, paid) if a.size]
        durations = part.durations if part.durations is not None and part.durations.size else np.ones(1)
        return cls(
            PartitionSizes(actions.size, counts.size, part.successors.size, part.halo.size),
            max_actions if actions.min() == max_actions else 0,
            max_successors if counts.min(initial=max_successors) == max_successors else 0,
            max_successors,
            fits_float32(durations),
            (float(min(a.min() for a in rewards)), float(max(a.max() for a in rewards))),
            (float(durations.min()), float(durations.max())),
            part.row_sum_range,
            part.coupling_partitions,
            part.coupling_mass,
            tuple(name for name in _OPTIONAL if getattr(part, name) is not None),
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values; infinite ones as Python's json writes them."""
        s = self.sizes
        return {
            "sizes": [s.states, s.rows, s.transitions, s.halo],
            **{name: getattr(self, name) for name in _NUMBERS},
            "coupling_partitions": self.coupling_partitions.tolist(),
            "coupling_mass": self.coupling_mass.tolist(),
            "optional": list(self.optional),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """The inverse of :meth:`to_json`, from what was parsed."""
        numbers: dict[str, Any] = {name: document[name] for name in _NUMBERS}
        numbers |= {name: tuple(document[name]) for name in _RANGES}
        return cls(
            sizes=PartitionSizes(*document["sizes"]),
            coupling_partitions=np.array(document["coupling_partitions"], np.int64),
            coupling_mass=np.array(document["coupling_mass"], np.float64),
            optional=tuple(document["optional"]),
            **numbers,
        )


def fits_float32(values: FloatArray) -> bool:
    """Whether float32 holds all values without loss."""
    with np.errstate(over="ignore"):
        return bool((values.astype(np.float32) == values).all())
