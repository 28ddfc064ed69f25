"""Rows of a source on disk between the two passes of a conversion: flat arrays, one file per block.

    action_ptr | successor_ptr | successors | probabilities | rewards | optional arrays
    n+1          m+1             nnz          nnz             m

Pass 1 writes each block when it is parsed; pass 2 gathers the rows of any ascending set of states with pread, so that
only these are resident in memory. The files are temporary, in native byte order, and removed with the conversion.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.model.mdp import Block, FloatArray, IntArray, Rows
from ooc_mdp.store.chunk_file import write_file
from ooc_mdp.store.partition_summary import fits_float32

__all__ = ["Spool", "SpoolFile", "write_spool_file"]

_DTYPES: dict[str, type[np.int64] | type[np.float64]] = {
    "action_ptr": np.int64,
    "successor_ptr": np.int64,
    "successors": np.int64,
    "probabilities": np.float64,
    "rewards": np.float64,
    "terminal_rewards": np.float64,
    "durations": np.float64,
    "initial_values": np.float64,
    "action_labels": np.int64,
}
_OPTIONAL = ("terminal_rewards", "durations", "initial_values", "action_labels")
REWARDS, TERMINAL = "rewards of ", "terminal rewards of "
"""Arrays of a further reward model: one value per row, and one per state; its name follows."""
NAMES = "action_names"
"""int64 [m]; as `Block.action_names`; missing in a block without names."""
_Runs = tuple[IntArray, IntArray]
"""Begin and end of each run."""
_LARGEST_GAP = 16 << 10
"""Largest gap between two wanted runs, in bytes, that is read with them instead of being skipped by another call."""


@dataclass(frozen=True, slots=True)
class SpoolFile:
    """The file of one block: where its arrays are, and its counts and ranges."""

    path: Path
    first_state: int
    n_states: int
    n_rows: int
    n_transitions: int
    offsets: dict[str, int]
    """Byte at which each array begins; arrays that the block does not have are missing."""
    max_successor: int
    max_successor_line: int | None
    actions: tuple[int, int]
    """Least and largest number of actions of a state."""
    successors: tuple[int, int]
    """Least and largest number of transitions of a row; (0, 0) without rows."""
    float32_durations: bool
    """Whether float32 holds every duration without loss."""

    @property
    def end_state(self) -> int:
        """One past the last state."""
        return self.first_state + self.n_states


def write_spool_file(path: Path, block: Block) -> SpoolFile:
    """Write a block's arrays, one after the other, and describe the file."""
    rows = block.rows
    offsets: dict[str, int] = {}
    parts: list[npt.NDArray[Any]] = []
    end = 0
    for name, dtype in _DTYPES.items():
        values = getattr(rows, name)
        if values is not None:
            offsets[name] = end
            parts.append(np.ascontiguousarray(values, dtype))
            end += parts[-1].nbytes
    for model, found in block.reward_models.items():
        for kind, values in ((REWARDS, found.rewards), (TERMINAL, found.terminal_rewards)):
            offsets[kind + model] = end
            parts.append(np.ascontiguousarray(values, np.float64))
            end += parts[-1].nbytes
    if block.action_names is not None:
        offsets[NAMES] = end
        parts.append(np.ascontiguousarray(block.action_names, np.int64))
    write_file(path, *(part.data for part in parts if part.size))
    actions, counts = np.diff(rows.action_ptr), np.diff(rows.successor_ptr)
    return SpoolFile(
        path=path,
        first_state=block.first_state,
        n_states=rows.n_states,
        n_rows=rows.n_rows,
        n_transitions=rows.n_transitions,
        offsets=offsets,
        max_successor=int(rows.successors.max(initial=-1)),
        max_successor_line=block.max_successor_line,
        actions=_extent(actions),
        successors=_extent(counts),
        float32_durations=rows.durations is None or fits_float32(np.asarray(rows.durations, np.float64)),
    )


class Spool:
    """Segments in state order without gaps, readable at any ascending set of states, from many threads."""

    def __init__(self, files: list[SpoolFile]) -> None:
        self.files = [s for s in files if s.n_states]
        self._firsts = [s.first_state for s in self.files]
        self._present = {name for name in _OPTIONAL if any(name in s.offsets for s in self.files)}

    def has(self, name: str) -> bool:
        """Whether any file has this optional array."""
        return name in self._present

    @property
    def optional(self) -> frozenset[str]:
        """Names of the optional arrays that any file has; :meth:`gather` returns all of them."""
        return frozenset(self._present)

    def gather(self, states: IntArray) -> Rows:
        """Rows of ascending states."""
        begin = bisect_right(self._firsts, int(states[0])) - 1
        end = bisect_right(self._firsts, int(states[-1]))
        pieces: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in _DTYPES}
        for file in self.files[begin:end]:
            low, high = np.searchsorted(states, [file.first_state, file.end_state])
            if low < high:
                for name, values in self._gather_from(file, states[low:high]).items():
                    pieces[name].append(values)
        joined = {name: np.concatenate(arrays) for name, arrays in pieces.items() if arrays}
        return Rows(
            action_ptr=_ptr(joined.pop("action_ptr")),
            successor_ptr=_ptr(joined.pop("successor_ptr")),
            **joined,
        )

    def gather_reward_model(self, name: str, states: IntArray) -> tuple[FloatArray, FloatArray]:
        """Rewards of ascending states' rows by a further reward model, float64 [m], and values of states, [n]."""
        found = [
            (reader.runs(REWARDS + name, *rows), reader.runs(TERMINAL + name, *own))
            for reader, own, rows in self._readers(states)
        ]
        return np.concatenate([each[0] for each in found]), np.concatenate([each[1] for each in found])

    def gather_names(self, states: IntArray) -> IntArray:
        """int64 [m]; numbers of the names of ascending states' rows, -1 for a row without one."""
        return np.concatenate([reader.names(*rows) for reader, _, rows in self._readers(states)])

    def _readers(self, states: IntArray) -> Iterator[tuple[_Reader, _Runs, _Runs]]:
        """Each file that has rows of ascending states, opened, with the runs of the states and of their rows."""
        begin = bisect_right(self._firsts, int(states[0])) - 1
        end = bisect_right(self._firsts, int(states[-1]))
        for file in self.files[begin:end]:
            low, high = np.searchsorted(states, [file.first_state, file.end_state])
            if low < high:
                own = _runs_of(states[low:high] - file.first_state)
                with _Reader(file) as reader:
                    yield reader, own, reader.counts("action_ptr", *own)[1]

    def counts(self) -> Iterator[tuple[int, IntArray, IntArray]]:
        """First state, actions and transitions of each state, file by file."""
        for file in self.files:
            with _Reader(file) as reader:
                action_ptr = reader.all("action_ptr", file.n_states + 1)
                successor_ptr = reader.all("successor_ptr", file.n_rows + 1)
            yield file.first_state, np.diff(action_ptr), np.diff(successor_ptr[action_ptr])

    def edges(self) -> Iterator[tuple[IntArray, IntArray]]:
        """(from, to) states of all transitions, file by file."""
        for file, (first, _, transitions) in zip(self.files, self.counts(), strict=True):
            with _Reader(file) as reader:
                successors = reader.all("successors", file.n_transitions)
            yield np.repeat(np.arange(first, first + transitions.size), transitions), successors

    def _gather_from(self, file: SpoolFile, states: IntArray) -> dict[str, npt.NDArray[Any]]:
        """Arrays of the states' rows in one file, with counts in place of pointers."""
        begin, end = _runs_of(states - file.first_state)
        out: dict[str, npt.NDArray[Any]] = {}
        with _Reader(file) as reader:
            runs = {"states": (begin, end)}
            out["action_ptr"], runs["rows"] = reader.counts("action_ptr", begin, end)
            out["successor_ptr"], runs["transitions"] = reader.counts("successor_ptr", *runs["rows"])
            out["successors"] = reader.runs("successors", *runs["transitions"])
            out["probabilities"] = reader.runs("probabilities", *runs["transitions"])
            out["rewards"] = reader.runs("rewards", *runs["rows"])
            for name in self._present:
                per = "rows" if name in ("durations", "action_labels") else "states"
                if name in file.offsets:
                    out[name] = reader.runs(name, *runs[per])
                else:
                    out[name] = _default(name, out["action_ptr"], out["rewards"].size)
        return out


def _runs_of(states: IntArray) -> tuple[IntArray, IntArray]:
    """Ascending states as runs begin[i] .. end[i]-1 of consecutive ones."""
    cut = np.flatnonzero(np.diff(states) != 1) + 1
    return states[np.concatenate([[0], cut])], states[np.concatenate([cut - 1, [states.size - 1]])] + 1


class _Reader:
    """An open spool file."""

    def __init__(self, file: SpoolFile) -> None:
        self._file = file
        self._fd = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def all(self, name: str, count: int) -> npt.NDArray[Any]:
        """The first `count` values of an array."""
        return self.runs(name, np.zeros(1, np.int64), np.full(1, count, np.int64))

    def counts(self, name: str, begin: IntArray, end: IntArray) -> tuple[IntArray, tuple[IntArray, IntArray]]:
        """Differences of a pointer array inside the runs, and the runs of what it points to."""
        values = self.runs(name, begin, end + 1)
        last = np.cumsum(end + 1 - begin) - 1
        first = np.concatenate([[0], last[:-1] + 1])
        return np.delete(np.diff(values), last[:-1]), (values[first], values[last])

    def names(self, begin: IntArray, end: IntArray) -> IntArray:
        """Numbers of the names of rows in ascending runs."""
        if NAMES in self._file.offsets:
            return self.runs(NAMES, begin, end)
        return np.full(int((end - begin).sum()), -1)

    def runs(self, name: str, begin: IntArray, end: IntArray) -> npt.NDArray[Any]:
        """Values of an array at the positions begin[i] .. end[i]-1, for ascending runs i."""
        dtype = np.dtype(np.int64 if name == NAMES else _DTYPES.get(name, np.float64))
        base = self._file.offsets[name]
        lengths = end - begin
        stops = np.cumsum(lengths)
        out = np.empty(int(stops[-1]), dtype)
        splits = np.flatnonzero((begin[1:] - end[:-1]) * dtype.itemsize > _LARGEST_GAP) + 1
        bounds = [0, *splits.tolist(), begin.size]
        for i, j in pairwise(bounds):
            target = out[int(stops[i] - lengths[i]) : int(stops[j - 1])]
            low, high = int(begin[i]), int(end[j - 1])
            if j - i == 1:
                self._fill(target, base + low * dtype.itemsize)
            else:
                span = np.empty(high - low, dtype)
                self._fill(span, base + low * dtype.itemsize)
                shift = begin[i:j] - low - (stops[i:j] - lengths[i:j] - stops[i] + lengths[i])
                target[:] = span[np.repeat(shift, lengths[i:j]) + np.arange(target.size)]
        return out

    def _fill(self, target: npt.NDArray[Any], offset: int) -> None:
        view = target.data.cast("B") if target.size else memoryview(b"")
        done = 0
        while done < len(view):
            got = os.preadv(self._fd, [view[done:]], offset + done)
            if got == 0:
                raise EOFError(f"{self._file.path} ends at byte {offset + done}")
            done += got


def _default(name: str, actions: IntArray, n_rows: int) -> npt.NDArray[Any]:
    """The values of an optional array in a block that does not have it."""
    if name == "durations":
        return np.ones(n_rows)
    if name == "action_labels":
        return np.arange(n_rows) - np.repeat(np.cumsum(actions) - actions, actions)
    return np.zeros(actions.size)


def _ptr(counts: npt.NDArray[Any]) -> IntArray:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])


def _extent(values: IntArray) -> tuple[int, int]:
    return (int(values.min()), int(values.max())) if values.size else (0, 0)
