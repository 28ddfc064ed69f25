"""What a reader finds beside a model's rows and a store keeps: labels and variables of states, reward models, names.

Labels are sets of states, one bit per state in memory, filled from any thread while blocks are read; values of
variables are in a temporary file. Rewards of further reward models go with the rows of their block
(`Block.reward_models`), and so do the names of actions, by numbers. Knows no format and no store.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from ooc_mdp.io.variables import VariableColumns
from ooc_mdp.model.mdp import IntArray

__all__ = ["MOST_ACTION_NAMES", "SourceAnnotations"]

MOST_ACTION_NAMES = 1 << 16
"""Different names of actions that are kept; a source with more of them has none in the store."""
_CHARACTERS = 1 << 22
"""Of all these names together."""


class SourceAnnotations:
    """Of one source; complete once all of its blocks were read and its totals were checked."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bits: dict[str, npt.NDArray[np.uint8]] = {}
        self._names: dict[str, int] = {}
        self._characters = 0
        self.variables = VariableColumns()
        """State variables."""
        self.table_rewards: str | None = None
        """Name of the reward model that the rows have, where it has a name."""
        self.reward_models: tuple[str, ...] = ()
        """Names of those that the rows have beside it."""
        self.rewards_chosen = True
        """False where there are several reward models and the rows have none of them as their own."""

    def number_actions(self, names: Sequence[str]) -> IntArray:
        """int64 [names]; the number of each name of an action, in any thread the same; -1 for an empty text."""
        with self._lock:
            for name in names:
                if name and name not in self._names and not self.too_many_names:
                    self._names[name] = len(self._names)
                    self._characters += len(name)
            return np.array([self._names.get(name, -1) for name in names], np.int64)

    @property
    def too_many_names(self) -> bool:
        """Whether the names of actions are more than a store keeps."""
        return len(self._names) > MOST_ACTION_NAMES or self._characters > _CHARACTERS

    @property
    def action_names(self) -> tuple[str, ...]:
        """The names of actions by their numbers; none where there are too many."""
        return () if self.too_many_names else tuple(self._names)

    def declare(self, names: Iterable[str]) -> None:
        """Add labels that the source names, whether or not any state has them."""
        with self._lock:
            for name in names:
                self._bits.setdefault(name, np.zeros(0, np.uint8))

    def mark(self, name: str, states: IntArray) -> None:
        """Give states (int64, any order) a label."""
        if not states.size:
            return
        with self._lock:
            bits = self._bits.get(name, np.zeros(0, np.uint8))
            needed = int(states.max()) // 8 + 1
            if needed > bits.size:
                grown = np.zeros(max(needed, 2 * bits.size), np.uint8)
                grown[: bits.size] = bits
                bits = grown
            np.bitwise_or.at(bits, states >> 3, (1 << (states & 7)).astype(np.uint8))
            self._bits[name] = bits

    def set_bits(self, name: str, bits: npt.NDArray[np.uint8]) -> None:
        """Take a whole label, packed as `labels` returns it."""
        with self._lock:
            self._bits[name] = bits

    def labels(self, n_states: int) -> dict[str, npt.NDArray[np.uint8]]:
        """For each label, in alphabetical order, uint8 [ceil(n/8)]: one bit per state, the first in the lowest bit."""
        with self._lock:
            return {name: _resized(self._bits[name], -(-n_states // 8)) for name in sorted(self._bits)}


def _resized(bits: npt.NDArray[np.uint8], size: int) -> npt.NDArray[np.uint8]:
    out = np.zeros(size, np.uint8)
    out[: min(size, bits.size)] = bits[:size]
    return out
