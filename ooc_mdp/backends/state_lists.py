"""Lists of states whose values solvers tell each other, and what new values of them change.

A backend may keep what it needs of a `StateLists` object for as long as the object lives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ooc_mdp.model.mdp import FloatArray, IntArray

__all__ = ["HostLists", "ListChanges", "StateLists"]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class StateLists:
    """k lists of states, each of another partition and not empty."""

    partitions: IntArray
    """int64 [k]."""
    ptr: IntArray
    """int64 [k + 1]; where each list begins."""
    states: IntArray
    """int64."""

    @classmethod
    def of(cls, lists: dict[int, IntArray]) -> StateLists:
        """From lists by partition."""
        sizes = [states.size for states in lists.values()]
        states = np.concatenate([np.empty(0, np.int64), *lists.values()])
        return cls(np.array(list(lists), np.int64), np.cumsum([0, *sizes]), states)

    def places(self, which: IntArray) -> tuple[IntArray, IntArray]:
        """Where the states of some of the lists are, one list after the other, and where each of these begins."""
        sizes = (self.ptr[1:] - self.ptr[:-1])[which]
        ptr = np.concatenate([[0], np.cumsum(sizes)])
        return np.arange(ptr[-1]) + np.repeat(self.ptr[which] - ptr[:-1], sizes), ptr


@dataclass(frozen=True, slots=True)
class ListChanges:
    """By how much the values of k lists changed."""

    rise: FloatArray
    """float64 [k]; most that a value rose, at least 0."""
    fall: FloatArray
    largest: FloatArray
    """float64 [k]; largest value that changed, -inf if none did."""

    def replace(self, i: int, before: FloatArray, after: FloatArray) -> None:
        """Of list i only these values count."""
        rise = after - before
        self.rise[i], self.fall[i] = max(rise.max(initial=0.0), 0.0), max((-rise).max(initial=0.0), 0.0)
        self.largest[i] = after[rise != 0].max(initial=-np.inf)

    @classmethod
    def between(cls, before: FloatArray, after: FloatArray, ptr: IntArray) -> ListChanges:
        """From the values of lists that begin at `ptr`, none of them empty."""
        rise, starts = after - before, ptr[:-1]
        return cls(
            np.maximum(np.maximum.reduceat(rise, starts), 0.0),
            np.maximum(-np.minimum.reduceat(rise, starts), 0.0),
            np.maximum.reduceat(np.where(rise != 0, after, -np.inf), starts),
        )


class _ReadsAndWrites(Protocol):
    def read(self, states: IntArray) -> FloatArray: ...

    def write(self, states: IntArray, values: FloatArray, partitions: IntArray, ptr: IntArray) -> None: ...


class HostLists:
    """`gather` and `write_lists` of :class:`ooc_mdp.backends.base.Backend` on the host."""

    def gather(self: _ReadsAndWrites, lists: StateLists, which: IntArray) -> FloatArray:
        """Values of some of the lists, one after the other."""
        return self.read(lists.states[lists.places(which)[0]])

    def write_lists(self: _ReadsAndWrites, lists: StateLists, which: IntArray, values: FloatArray) -> ListChanges:
        """New values of some of the lists."""
        places, ptr = lists.places(which)
        states = lists.states[places]
        changes = ListChanges.between(self.read(states), values, ptr)
        self.write(states, values, lists.partitions[which], ptr)
        return changes
