"""A text model as a sequence of segments: byte ranges that can be parsed in any order, in bounded memory.

    file       | header | state 0 ... state k-1 | state k ... | ... |
    segments            [ segment 0             )[ segment 1   )...

The end of a segment is found by seeking near the target and reading on to the next line that opens a state. The id of
that state tells a segment which states it must contain, without its neighbours. Errors carry byte offsets until they
are raised; only then are the lines before them counted. This module knows no format's grammar.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ooc_mdp.errors import InputError
from ooc_mdp.io.annotations import SourceAnnotations
from ooc_mdp.io.block_memory import TEXT_BYTES, check_block_memory
from ooc_mdp.io.checked_rows import check_block
from ooc_mdp.io.compressed import compression
from ooc_mdp.io.foreign import binary_kind
from ooc_mdp.io.left_out import LeftOut
from ooc_mdp.io.raw_rows import RawRewards, RawRows
from ooc_mdp.io.source import BlockReader, ReadOptions
from ooc_mdp.io.text.errors import error_at, line_bytes
from ooc_mdp.io.text.file import Bytes, TextFile
from ooc_mdp.io.text.lines import mark_lines, next_state
from ooc_mdp.io.text.numbers import MAX_LINE, SLOW_SLOTS, nearest_double
from ooc_mdp.model.mdp import Block, FloatArray, IntArray

__all__ = [
    "Table",
    "TextSegment",
    "TextSource",
    "count_lines",
    "first_lines",
    "iter_lines",
    "read_bytes",
    "read_table",
    "truncate_rows",
    "truncate_table",
]

_LOOK = 1 << 16
"""Bytes read at a time to find a line."""
_COUNT = 1 << 22
"""Bytes read at a time to count the lines of a whole file."""


@dataclass(frozen=True, slots=True)
class TextSegment:
    """Bytes begin:end of a file, which hold whole states."""

    begin: int
    end: int
    first_state: int
    """The state that must come first; 0 where its id is negative or cannot be parsed, which is an error."""
    next_state: int
    """Id of the state at `end`; -1 at the end of the file or where the id is negative or cannot be parsed."""
    last: bool


@dataclass(frozen=True, slots=True)
class Table:
    """Parsed lines: n lines as columns, up to the first malformed line."""

    letters: Bytes
    """uint8 [n], the kind of line, in formats that have kinds."""
    ints: IntArray
    """int64 [columns, n]."""
    floats: FloatArray
    """float64 [columns, n]."""
    offsets: IntArray
    """int64 [n], byte offset of each line in the file."""
    error: InputError | None
    """The error in the line after the last of these."""


def first_lines(head: bytes, comment: bytes = b"#") -> list[bytes]:
    """Stripped lines of a file's head, without blank lines, comments and a last line that may be incomplete."""
    lines = head.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if len(lines) > 1 and len(head) >= 4096:
        lines.pop()
    stripped = (line.strip(b" \t\r") for line in lines)
    return [line for line in stripped if line and not line.startswith(comment)]


def truncate_table(table: Table, count: int, error: InputError | None) -> Table:
    """The first `count` lines of a table, with the error in the next."""
    return Table(table.letters[:count], table.ints[:, :count], table.floats[:, :count], table.offsets[:count], error)


def read_bytes(file: TextFile, begin: int, end: int) -> Bytes:
    """uint8 [end - begin (+ 1)]: those bytes of the file, with a newline appended if there is none."""
    size = end - begin
    buffer = np.empty(size + 1, np.uint8)
    file.readinto(begin, buffer.data[:size])
    if size and buffer[size - 1] == 10:
        return buffer[:size]
    buffer[size] = 10
    return buffer


def iter_lines(file: TextFile, begin: int, end: int, size: int) -> Iterator[tuple[int, Bytes]]:
    """Yield offset and bytes of pieces of whole lines that cover begin:end, each of about `size` bytes."""
    while begin < end:
        want = size
        while True:
            stop = min(end, begin + want)
            buffer = read_bytes(file, begin, stop)
            if stop == end:
                yield begin, buffer
                return
            newlines = np.flatnonzero(buffer[: stop - begin][::-1] == 10)
            if newlines.size:
                keep = stop - begin - int(newlines[0])
                yield begin, buffer[:keep]
                begin += keep
                break
            if want > MAX_LINE:
                raise error_at(file, begin, f"the line is longer than {MAX_LINE} bytes; is this a text file?")
            want *= 4


def count_lines(file: TextFile, begin: int, end: int, step: int) -> tuple[int, IntArray, int]:
    """Count the lines that are neither blank nor # comments.

    Returns their number, the offsets of every `step`-th, and the offset of the last.
    """
    seen = 0
    last = begin
    marks: list[IntArray] = []
    for offset, buffer in iter_lines(file, begin, end, _COUNT):
        room = np.empty(buffer.size // 2 // step + 2, np.int64)
        before = seen
        seen, n_marks, place = mark_lines(buffer, buffer.size, before, step, room)
        marks.append(room[:n_marks] + offset)
        if place >= 0:
            last = offset + int(place)
    return int(seen), np.concatenate(marks) if marks else np.empty(0, np.int64), last


def read_table(
    file: TextFile,
    begin: int,
    buffer: Bytes,
    shape: tuple[int, int],
    kernel: Callable[..., tuple[int, int, int, bool]],
    diagnose: Callable[[bytes], str],
) -> Table:
    """Parse whole lines at offset `begin` of a file with the kernel of a format.

    Parameters
    ----------
    shape : integer and decimal columns.
    kernel : called as kernel(buffer, pos, end, count, letters, ints, floats, offsets, slow).
    diagnose : returns the message for a malformed line.
    """
    capacity = int(np.count_nonzero(buffer == 10))
    letters = np.empty(capacity, np.uint8)
    ints = np.empty((shape[0], capacity), np.int64)
    floats = np.empty((shape[1], capacity))
    offsets = np.empty(capacity, np.int64)
    slow = np.empty((SLOW_SLOTS, 3), np.int64)
    pos = count = 0
    error = None
    while error is None and pos < buffer.size:
        pos, count, n_slow, bad = kernel(buffer, pos, buffer.size, count, letters, ints, floats, offsets, slow)
        if bad:
            error = error_at(file, begin + pos, diagnose(line_bytes(file, begin + pos)))
        flat = floats.reshape(-1)
        for index, start, stop in slow[:n_slow].tolist():
            flat[index] = nearest_double(buffer[start:stop].tobytes().decode("ascii"))
            if np.isinf(flat[index]):
                count = index % capacity
                offset = begin + int(offsets[count])
                error = error_at(file, offset, diagnose(line_bytes(file, offset)))
                break
    return Table(letters[:count], ints[:, :count], floats[:, :count], offsets[:count] + begin, error)


class TextSource(ABC):
    """An open text model; a subclass parses one segment.

    Block readers run in any thread. Their counts are kept by segment, so that a segment read twice counts once.
    """

    format: str
    marker = 0
    """Byte that opens the first line of a state; 0 if every line of a state begins with its id."""

    def __init__(self, path: str, options: ReadOptions) -> None:
        if options.segment_bytes < 1:
            raise ValueError("segment_bytes must be positive")
        self.path = path
        self.n_states: int | None = None
        self.left_out = LeftOut()
        self.annotations = SourceAnnotations()
        self.file = TextFile(path)
        self.size = self.file.size
        self.begin = self._check_start()
        self._options = options
        self._lock = threading.Lock()
        self._found: dict[int, tuple[int, int, int, int]] = {}

    def _check_start(self) -> int:
        """Offset after a UTF-8 byte-order mark."""
        if self.size == 0:
            raise InputError(self.path, "the file is empty; a model has at least one state", 1)
        head = self.file.read(0, 16)
        if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise InputError(self.path, "a UTF-16 file (byte-order mark); save it as UTF-8 text", 1)
        again = compression(head)
        kind = f"a {again} file inside a compressed file; decompress it first" if again else binary_kind(head)
        if kind is not None:
            raise InputError(self.path, f"this is {kind}", 1)
        return 3 if head[:3] == b"\xef\xbb\xbf" else 0

    @abstractmethod
    def _rows(self, segment: TextSegment) -> tuple[RawRows, InputError | None]:
        """Rows of the segment's states up to the first malformed line and its error; lines are byte offsets."""

    def blocks(self) -> Iterator[BlockReader]:
        """Block readers in state order; the file is divided as they are drawn."""
        for segment in self._segments():
            states = segment.next_state - segment.first_state if segment.next_state >= 0 else None
            check_block_memory(self.path, segment.first_state, states, TEXT_BYTES * (segment.end - segment.begin))
            yield partial(self._run, segment)

    def _segments(self) -> Iterator[TextSegment]:
        begin, first, last = self.begin, 0, False
        while not last:
            end, following = self._cut(begin)
            last = end == self.size
            yield TextSegment(begin, end, first, following, last)
            begin, first = end, max(following, 0)

    def _cut(self, begin: int) -> tuple[int, int]:
        """Offset and id (or -1) of the first state that opens at least segment_bytes after `begin`."""
        target = begin + self._options.segment_bytes
        previous = -2
        if target >= self.size:
            return self.size, -1
        # The byte before the target shows whether a line starts there; otherwise the rest of its line is dropped.
        drop = True
        for offset, buffer in iter_lines(self.file, target - 1, self.size, _LOOK):
            skip = int(np.flatnonzero(buffer == 10)[0]) + 1 if drop else 0
            drop = False
            rest = buffer[skip:]
            where, number, previous = next_state(rest, rest.size, self.marker, previous)
            if where >= 0:
                return offset + skip + int(where), max(int(number), -1)
        return self.size, -1

    def _run(self, segment: TextSegment) -> Block:
        raw, error = self._rows(segment)
        first = segment.first_state
        try:
            block = check_block(self.path, first, raw, n_states=self.n_states, normalize=self._options.normalize)
        except InputError as row_error:
            if row_error.line is None:
                raise
            raise self._at_end(segment, raw, row_error) from None
        if error is not None:
            raise error
        found = (
            raw.successor_ptr.size - 1,
            raw.successors.size,
            block.max_successor,
            first + block.rows.n_states,
        )
        with self._lock:
            self._found[segment.begin] = found
        return replace(block, max_successor_line=None)

    def _at_end(self, segment: TextSegment, raw: RawRows, error: InputError) -> InputError:
        """The error of check_block at a line, not a byte offset; it adds where the file ends inside that line."""
        offset = error.line or 0
        rows, transitions = raw.row_positions, raw.transition_positions
        if not segment.last or rows is None or transitions is None or self._ends_in_newline():
            return error_at(self.file, offset, error.message)
        last_row = transitions[raw.successor_ptr[-2] :]
        if not last_row.size:  # the file ends after the line of an action
            last_row = rows[-1:]
        if offset < int(last_row[0]):
            return error_at(self.file, offset, error.message)
        message = f"{error.message}; the file ends inside this line, without a newline: it may be cut short"
        return error_at(self.file, int(last_row[-1]), message)

    def _ends_in_newline(self) -> bool:
        return bool(read_bytes(self.file, self.size - 1, self.size)[0] == 10)

    def _totals(self) -> tuple[int, int, int, int]:
        """Rows, transitions, largest successor and end of the states over all segments."""
        with self._lock:
            found = np.array(list(self._found.values()), np.int64).reshape(-1, 4)
        if not found.size:
            return 0, 0, -1, 0
        return int(found[:, 0].sum()), int(found[:, 1].sum()), int(found[:, 2].max()), int(found[:, 3].max())

    def check_totals(self) -> None:
        """Set the number of states, and check what only the whole file shows.

        Raises
        ------
        InputError : there is no state, or a successor is not among the states, with the first such line.
        """
        _, _, largest, end = self._totals()
        if self.n_states is None:
            if end == 0:
                raise error_at(self.file, self.size - 1, "nothing but blank lines and comments; no state is defined")
            self.n_states = end
            if largest >= end:
                for read in self.blocks():
                    read()

    def close(self) -> None:
        """Forget the counts, and remove the text of a compressed file."""
        with self._lock:
            self._found.clear()
        self.file.close()


def truncate_rows(raw: RawRows, rows: int) -> RawRows:
    """The first `rows` rows: those that can be checked before a malformed line."""
    end = int(raw.successor_ptr[rows])
    changes: dict[str, Any] = {
        "action_ptr": np.minimum(raw.action_ptr, rows),
        "successor_ptr": raw.successor_ptr[: rows + 1],
        "successors": raw.successors[:end],
        "probabilities": raw.probabilities[:end],
    }
    for name in ("row_rewards", "action_labels", "row_positions", "action_names"):
        value = getattr(raw, name)
        changes[name] = None if value is None else value[:rows]
    for name in ("transition_rewards", "transition_positions"):
        value = getattr(raw, name)
        changes[name] = None if value is None else value[:end]
    changes["reward_models"] = {
        name: RawRewards(
            None if model.row_rewards is None else model.row_rewards[:rows],
            None if model.transition_rewards is None else model.transition_rewards[:end],
            model.terminal_rewards,
        )
        for name, model in raw.reward_models.items()
    }
    return replace(raw, **changes)
