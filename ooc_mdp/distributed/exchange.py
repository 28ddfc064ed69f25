"""Which states of others' partitions a solver reads, what it knows of them, and who reads its own.

A solver reads the halos of its partitions: for each partition q of another, one list of states, the union over its own
partitions. It keeps their values as it was last told (its *view* of q), so that a new message says by how much they
rose and fell, which is what the bounds of its partitions take in. What was never told it is not known, and no
partition of its own may be swept that reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from ooc_mdp.distributed.messages import Update, Wanted
from ooc_mdp.mdp import FloatArray, IntArray

__all__ = ["Changes", "Interests", "Readers", "split_halo"]


def split_halo(halo: IntArray, partition_ptr: IntArray) -> dict[int, IntArray]:
    """The states of a sorted halo by the partition that owns them."""
    if not halo.size:
        return {}
    of = np.searchsorted(partition_ptr, halo, side="right") - 1
    first = np.flatnonzero(np.diff(of, prepend=-1))
    return dict(zip(of[first].tolist(), np.split(halo, first[1:]), strict=True))


@dataclass(slots=True)
class _View:
    """A list of states of one partition, and what is known of their values."""

    states: IntArray
    values: FloatArray
    known: bool
    """Whether `values` are what bounds were taken at, all of them."""
    older: IntArray
    """int64; places in the list that were known before the list was last extended (all, where `known`)."""
    serial: int
    generation: int = -1


@dataclass(frozen=True, slots=True)
class Changes:
    """What a message changed of the views of k partitions."""

    partitions: IntArray
    """int64 [k]."""
    ptr: IntArray
    """int64 [k + 1]; where the states of each begin."""
    states: IntArray
    values: FloatArray
    """Of the states, now."""
    up: FloatArray
    """float64 [k]; most that a known value rose, at least 0."""
    down: FloatArray
    highest: FloatArray
    """float64 [k]; largest known value that changed, -inf if none did."""
    complete: list[int]
    """Partitions of which something was not known before, and all is now."""


class Interests:
    """What a solver reads of others' partitions.

    Parameters
    ----------
    reader : the solver's number.
    """

    def __init__(self, reader: int = 0) -> None:
        self._views: dict[int, _View] = {}
        self._serial = reader << 32
        """Of the newest list; no two lists have the same, whatever partition they are of and whoever reads them: a
        worker that has come back gets what was meant for the solver that it had before."""

    def __iter__(self) -> Iterator[int]:
        return iter(self._views)

    @property
    def nbytes(self) -> int:
        """Bytes of all lists and views."""
        return sum(v.states.nbytes + v.values.nbytes for v in self._views.values())

    def read(
        self, wanted: dict[int, list[IntArray]], values: Callable[[IntArray], FloatArray], known: bool
    ) -> set[int]:
        """Read more states of some partitions.

        Parameters
        ----------
        wanted : lists of states by partition; may overlap each other and what is read already.
        values : gives the present values of states, as the solver has them.
        known : whether those are the owners' too.

        Returns
        -------
        The partitions whose lists are longer now.
        """
        grown = set()
        for q, pieces in wanted.items():
            old = self._views.get(q)
            states = np.unique(np.concatenate([*pieces, *([] if old is None else [old.states])]))
            if old is not None and states.size == old.states.size:
                continue
            grown.add(q)
            if old is None:
                older = np.arange(states.size) if known else np.empty(0, np.int64)
                self._views[q] = _View(states, values(states), known, older, self._next_serial())
            else:
                before = old.states if old.known else old.states[old.older]
                keeps = np.arange(states.size) if old.known and known else np.searchsorted(states, before)
                fresh = values(states)
                fresh[np.searchsorted(states, old.states)] = old.values
                serial = self._next_serial()
                self._views[q] = _View(states, fresh, old.known and known, keeps, serial, old.generation)
        return grown

    def ask(self, partitions: Iterable[int]) -> list[Wanted]:
        """Lists for the owners of the partitions, under new serials: answers to earlier ones no longer count."""
        asked = []
        for q in partitions:
            view = self._views[q]
            view.serial = self._next_serial()
            asked.append(Wanted(q, view.serial, view.states))
        return asked

    def _next_serial(self) -> int:
        self._serial += 1
        return self._serial

    def unknown(self) -> set[int]:
        """Partitions of whose states some are not known."""
        return {q for q, view in self._views.items() if not view.known}

    def drop(self, partition: int) -> None:
        """The partition is the solver's own now, or none of its partitions reads it."""
        self._views.pop(partition, None)

    def told(self, partition: int) -> tuple[IntArray, FloatArray] | None:
        """States of a partition whose values are known, and these; None where there are none."""
        view = self._views.get(partition)
        if view is None or not (view.known or view.older.size):
            return None
        places = slice(None) if view.known else view.older
        return view.states[places], view.values[places]

    def hear(self, update: Update) -> Changes | None:
        """Take in values, apart from those of earlier lists or owners; None if there are no others."""
        heard: list[tuple[_View, slice]] = []
        facts = update.partitions, update.serials, update.generations, update.ptr[:-1], update.ptr[1:]
        partitions = []
        for q, serial, generation, start, stop in np.stack(facts, axis=1).tolist():
            view = self._views.get(q)
            if view is not None and serial == view.serial and generation >= view.generation:
                view.generation = generation
                partitions.append(q)
                heard.append((view, slice(start, stop)))
        if not heard:
            return None
        whole = len(heard) == update.partitions.size
        values = update.values if whole else np.concatenate([update.values[piece] for _, piece in heard])
        ptr = np.cumsum([0, *(view.states.size for view, _ in heard)])
        rise = values - np.concatenate([view.values for view, _ in heard])
        complete = []
        for i, (view, _) in enumerate(heard):
            own = slice(ptr[i], ptr[i + 1])
            if not view.known:  # only what was known before can have risen
                known = rise[own][view.older]
                rise[own] = 0.0
                rise[own][view.older] = known
                complete.append(partitions[i])
            view.values, view.known = values[own], True
        starts = ptr[:-1]
        return Changes(
            np.array(partitions),
            ptr,
            np.concatenate([view.states for view, _ in heard]),
            values,
            np.maximum(np.maximum.reduceat(rise, starts), 0.0),
            np.maximum(-np.minimum.reduceat(rise, starts), 0.0),
            np.maximum.reduceat(np.where(rise != 0, values, -np.inf), starts),
            complete,
        )


class Readers:
    """Who reads which states of a solver's partitions."""

    def __init__(self) -> None:
        self._lists: dict[int, dict[int, Wanted]] = {}

    def add(self, reader: int, wanted: Wanted) -> None:
        """A reader's newest list for a partition."""
        self._lists.setdefault(wanted.partition, {})[reader] = wanted

    def of(self, partition: int) -> dict[int, Wanted]:
        """Lists by reader."""
        return self._lists.get(partition, {})

    def items(self) -> Iterator[tuple[int, Iterable[int]]]:
        """Partitions with their readers."""
        return ((p, lists.keys()) for p, lists in self._lists.items())

    def forget_partition(self, partition: int) -> None:
        """It is another's now."""
        self._lists.pop(partition, None)

    def forget_reader(self, reader: int) -> None:
        """It takes part no longer."""
        for lists in self._lists.values():
            lists.pop(reader, None)
