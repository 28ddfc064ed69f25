"""PRISM's reward files: which of them belong to a .tra file, and the rewards of a range of states.

    stem.srew     `states entries`, then `s r`: r(s)
    stem.trew     `states choices entries`, then `s k s' r`: r(s,k,s')
    stem1.srew, stem2.srew, ...     one for each of several reward structures

Entries are ordered by state, so the bytes for a range of states are found by bisection. Comments (#) are
allowed anywhere; `# Reward structure "name"` at the top names the structure. This module knows no
probabilities.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numba import njit

from ooc_mdp.errors import InputError, OptionsError
from ooc_mdp.io.files import file_size
from ooc_mdp.io.raw_rows import RawRows
from ooc_mdp.io.source import ReadOptions
from ooc_mdp.io.text.columns import column_table
from ooc_mdp.io.text.errors import Field, diagnose_fields, encoding_error, error_at, number_error
from ooc_mdp.io.text.source import Table, iter_lines
from ooc_mdp.model.mdp import FloatArray, IntArray

__all__ = ["RewardFile", "choose_rewards", "read_header"]

_STATE = Field("state", True)
_REWARD = Field("reward", False)
_FIELDS = {
    ".srew": (_STATE, _REWARD),
    ".trew": (_STATE, Field("choice", True), Field("successor", True), _REWARD),
}
_COUNTS = {
    ".srew": [Field("number of states", True), Field("number of entries", True)],
    ".trew": [
        Field("number of states", True),
        Field("number of choices", True),
        Field("number of entries", True),
    ],
}
_LOOK = 1 << 14


@dataclass(frozen=True, slots=True)
class _Structure:
    """The files of one reward structure."""

    label: str
    """What --reward-model may call it besides its name: "" or its number."""
    name: str | None
    files: tuple[Path, ...]


def read_header(path: str, size: int, fields: list[Field], what: str) -> tuple[list[int], int, int, str | None]:
    """The counts of a header line, its offset, the offset after it, and the name of the reward structure.

    Raises
    ------
    InputError : there is no such line, or a count is not a number or negative.
    """
    if size == 0:
        raise InputError(path, f"the file is empty; {what} is expected", 1)
    name = None
    for offset, buffer in iter_lines(path, 0, size, _LOOK):
        at = offset
        for raw in buffer.tobytes().split(b"\n")[:-1]:
            line = raw.removeprefix(b"\xef\xbb\xbf") if at == 0 else raw
            if at == 0 and line[:2] in (b"\xff\xfe", b"\xfe\xff"):
                raise InputError(path, "a UTF-16 file (byte-order mark); save it as UTF-8 text", 1)
            error = encoding_error(line)
            if error is not None:
                raise error_at(path, at, error)
            text = line.decode("utf-8").strip()
            if text and not text.startswith("#"):
                texts = text.split()
                wrong = len(texts) != len(fields) or any(map(number_error, texts, fields))
                if wrong:
                    raise error_at(path, at, f"{diagnose_fields(texts, fields, 'a header')}; {what} is expected")
                counts = [int(number) for number in texts]
                for count, field in zip(counts, fields, strict=True):
                    if count < 0:
                        raise error_at(path, at, f"{field.name} is {count}; it cannot be negative")
                return counts, at, min(size, at + len(raw) + 1), name
            match = re.match(r'#\s*reward structure:?\s*"?(.*?)"?\s*$', text, re.IGNORECASE)
            name = match[1] or name if match else name
            at += len(raw) + 1
    raise error_at(path, size - 1, f"nothing but blank lines and comments; {what} is expected")


@njit(cache=True, nogil=True)
def _place(  # type: ignore[no-untyped-def]
    action_ptr, successor_ptr, successors, first, states, choices, targets, values, out
):
    """Write each entry's reward to its transitions (sorted in each row); return the first entry without any, or -1.

    Where a transition is given twice, its probability is the sum of both, and both earn the reward.
    """
    for i in range(states.size):
        state = states[i] - first
        if choices[i] < 0 or choices[i] >= action_ptr[state + 1] - action_ptr[state]:
            return i
        row = action_ptr[state] + choices[i]
        begin = successor_ptr[row]
        end = successor_ptr[row + 1]
        k = begin + np.searchsorted(successors[begin:end], targets[i])
        if k == end or successors[k] != targets[i]:
            return i
        while k < end and successors[k] == targets[i]:
            out[k] = values[i]
            k += 1
    return -1


class RewardFile:
    """One .srew or .trew file, open for reading by ranges of states from any thread."""

    def __init__(self, path: Path, counts: list[int], tra: str) -> None:
        """Check the header against the counts of the .tra file's: states and choices."""
        self.path = str(path)
        self.transitions = _kind(path) == ".trew"
        self._fields = _FIELDS[_kind(path)]
        self._size = file_size(path)
        what = "a header `states choices entries`" if self.transitions else "a header `states entries`"
        header, at, self._begin, _ = read_header(self.path, self._size, _COUNTS[_kind(path)], what)
        for given, wanted, name in zip(header[:-1], counts, ("states", "choices"), strict=False):
            if given != wanted:
                raise error_at(self.path, at, f"{given} {name} announced, but {tra} announces {wanted}")
        self._announced = header[-1]
        self._header_at = at
        self._lock = threading.Lock()
        self._found: dict[int, int] = {}

    def _offset(self, state: int) -> int:
        """Offset of a line after which no state is below `state`, in an ordered file."""
        low, high = self._begin, self._size
        # Lines before low belong to states below `state`; no such line starts between high and the result.
        while high - low >= _LOOK:
            middle = (low + high) // 2
            at, number = self._line_after(middle, high)
            if at >= 0 and number < state:
                low = at
            else:
                high = middle
        return self._scan(low, state)

    def _line_after(self, position: int, high: int) -> tuple[int, int]:
        """Offset and state of the first entry that starts in position..high; -1 if there is none."""
        for offset, buffer in iter_lines(self.path, position - 1, self._size, _LOOK):
            start = int(np.flatnonzero(buffer == 10)[0]) + 1 if offset == position - 1 else 0
            at = offset + start
            for raw in buffer[start:].tobytes().split(b"\n")[:-1]:
                match = re.match(rb"[ \t]*([0-9]{1,18})[ \t]", raw)
                if match:
                    return (at, int(match[1])) if at < high else (-1, -1)
                at += len(raw) + 1
            if at >= high:
                break
        return -1, -1

    def _scan(self, low: int, state: int) -> int:
        """Offset of the first line from `low` on whose state is not below `state`."""
        for offset, buffer in iter_lines(self.path, low, self._size, _LOOK):
            at = offset
            for raw in buffer.tobytes().split(b"\n")[:-1]:
                match = re.match(rb"[ \t]*([0-9]{1,18})[ \t]", raw)
                if match and int(match[1]) >= state:
                    return at
                at += len(raw) + 1
        return self._size

    def _entries(self, first: int, end: int, last: bool) -> Table:
        begin = self._begin if first == 0 else self._offset(first)
        stop = self._size if last else self._offset(end)
        table = column_table(self.path, begin, max(begin, stop), self._fields)
        if table.error is not None:
            raise table.error
        states = table.ints[0]
        wrong = (states < first) | (states >= end)
        wrong[1:] |= states[1:] < states[:-1]
        if self.transitions:
            same = np.diff(states) == 0
            wrong[1:] |= same & (np.diff(table.ints[1]) < 0)
        for i in np.flatnonzero(wrong)[:1].tolist():
            what = f"state {states[i]} is out of order or range; entries must be ordered by state, then choice"
            raise error_at(self.path, int(table.offsets[i]), what)
        with self._lock:
            self._found[first] = states.size
        return table

    def state_rewards(self, first: int, end: int, last: bool) -> FloatArray:
        """float64 [end - first]: r(s) of a .srew file, 0 where it has no entry."""
        table = self._entries(first, end, last)
        states = table.ints[0]
        for i in (np.flatnonzero(np.diff(states) == 0) + 1)[:1].tolist():
            raise error_at(self.path, int(table.offsets[i]), f"state {states[i]} has two rewards; keep one")
        rewards = np.zeros(end - first)
        rewards[states - first] = table.floats[0]
        return rewards

    def transition_rewards(self, first: int, end: int, last: bool, raw: RawRows) -> FloatArray:
        """float64 [nnz]: r(s,k,s') of a .trew file, 0 where it has no entry; the rows must be sorted."""
        table = self._entries(first, end, last)
        states, choices, targets = (np.ascontiguousarray(column) for column in table.ints)
        keys: list[IntArray] = [targets, choices, states]
        order = np.lexsort(keys)
        twice = np.ones(max(states.size - 1, 0), np.bool_)
        for key in keys:
            twice &= np.diff(key[order]) == 0
        for i in order[1:][twice][:1].tolist():
            why = f"transition {states[i]} {choices[i]} {targets[i]} has two rewards; keep one"
            raise error_at(self.path, int(table.offsets[i]), why)
        rewards = np.zeros(raw.successors.size)
        values = np.ascontiguousarray(table.floats[0])
        successors = np.ascontiguousarray(raw.successors)
        bad = _place(raw.action_ptr, raw.successor_ptr, successors, first, states, choices, targets, values, rewards)
        if bad >= 0:
            why = f"there is no transition {states[bad]} {choices[bad]} {targets[bad]} to pay this reward on"
            raise error_at(self.path, int(table.offsets[bad]), why)
        return rewards

    def check_totals(self) -> None:
        """Compare the number of entries with the header; raises InputError at the header."""
        with self._lock:
            found = sum(self._found.values())
        if found != self._announced:
            raise error_at(self.path, self._header_at, f"{self._announced} entries announced, {found} are given")


def _kind(path: Path) -> str:
    """.srew or .trew, by the name or else by the number of fields in the first line."""
    suffix = path.suffix.lower()
    if suffix in _FIELDS:
        return suffix
    size = file_size(path)
    for _, buffer in iter_lines(str(path), 0, size, _LOOK):
        for raw in buffer.tobytes().split(b"\n"):
            if raw.strip() and not raw.strip().startswith(b"#"):
                return ".trew" if len(raw.split()) == 3 else ".srew"
    return ".srew"


def _structure_name(path: Path) -> str | None:
    return read_header(str(path), file_size(path), _COUNTS[_kind(path)], "a header of counts")[3]


def _companion_structures(tra: Path) -> Iterator[_Structure]:
    """Reward structures in companion files of a .tra file: stem.srew/.trew, and those with a number after the stem."""
    groups: dict[str, list[Path]] = {}
    pattern = re.compile(re.escape(tra.stem) + r"([1-9][0-9]*)?\.(srew|trew)")
    for path in sorted(tra.parent.iterdir()):
        match = pattern.fullmatch(path.name)
        if match and (not match[1] or not path.with_suffix(".tra").exists()):
            groups.setdefault(match[1] or "", []).append(path)
    for label in sorted(groups, key=lambda text: int(text or 0)):
        files = groups[label]
        names = [name for name in map(_structure_name, files) if name]
        yield _Structure(label, names[0] if names else None, tuple(files))


def _names(files: tuple[Path, ...]) -> str:
    return " + ".join(file.name for file in files)


def choose_rewards(tra: str, options: ReadOptions) -> tuple[Path, ...]:
    """The reward files to read with a .tra file: the named one, its companion files, or none.

    Raises
    ------
    InputError : there are several reward structures and options.reward_model names none of them.
    OptionsError : the options name a file and a structure.
    """
    if options.rewards is not None:
        if options.reward_model is not None:
            raise OptionsError(
                f"{tra}: --rewards names the file, --reward-model chooses among the companion files of the .tra; leave "
                f"one out"
            )
        return (options.rewards,)
    structures = list(_companion_structures(Path(tra)))
    wanted = options.reward_model
    if wanted is None and len(structures) <= 1:
        return structures[0].files if structures else ()
    listed = ", ".join(f"{s.name or s.label or 'unnamed'} ({_names(s.files)})" for s in structures)
    if wanted is None:
        raise InputError(tra, f"several reward structures; choose one by --reward-model or --rewards: {listed}")
    chosen = [s for s in structures if wanted == s.name] or [s for s in structures if wanted == s.label]
    if len(chosen) != 1:
        raise InputError(tra, f"no single reward structure is {wanted!r}; there are: {listed or 'none'}")
    return chosen[0].files
