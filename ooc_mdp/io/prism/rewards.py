"""PRISM's reward files: which of them belong to a .tra file, and the rewards of a range of states.

    stem.srew     `states entries`, then `s r`: r(s)
    stem.trew     `states choices entries`, then `s k s' r`: r(s,k,s')
    stem1.srew, stem2.srew, ...     one for each of several reward structures

Those of a DTMC have no choices, in the header and in the lines; each may be compressed (stem.srew.gz). Entries are
ordered by state, so the bytes for a range of states are found by bisection. Comments (#) are allowed anywhere;
`# Reward structure "name"` at the top names the structure. This module knows no probabilities.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ooc_mdp.errors import InputError, OptionsError
from ooc_mdp.io.compressed import SUFFIXES, plain_name
from ooc_mdp.io.prism.header import read_header
from ooc_mdp.io.raw_rows import RawRows
from ooc_mdp.io.source import ReadOptions
from ooc_mdp.io.text.columns import column_table
from ooc_mdp.io.text.errors import Field, error_at, negative_state
from ooc_mdp.io.text.file import TextFile
from ooc_mdp.io.text.source import Table, first_lines, iter_lines, truncate_table
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.quoting import printable, quote, shorten
from ooc_mdp.runtime.compiled import loop

__all__ = ["RewardFile", "Structure", "choose_rewards", "companion_files"]


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of reward file: the counts of its header and the fields of its lines."""

    counts: tuple[Field, ...]
    fields: tuple[Field, ...]

    @property
    def transitions(self) -> bool:
        """Whether it has rewards of transitions, not of states."""
        return len(self.fields) > 2


_STATE, _CHOICE, _SUCCESSOR = Field("state", True), Field("choice", True), Field("successor", True)
_REWARD = Field("reward", False)
_STATES, _CHOICES = Field("number of states", True), Field("number of choices", True)
_ENTRIES = Field("number of entries", True)
_SREW = _Kind((_STATES, _ENTRIES), (_STATE, _REWARD))
_TREW = _Kind((_STATES, _CHOICES, _ENTRIES), (_STATE, _CHOICE, _SUCCESSOR, _REWARD))
_DTMC_TREW = _Kind((_STATES, _ENTRIES), (_STATE, _SUCCESSOR, _REWARD))
_COUNTS = "a header of counts"
_LOOK = 1 << 14
_LISTED = 6
"""Reward structures that a message lists."""


@dataclass(frozen=True, slots=True)
class Structure:
    """The files of one reward structure."""

    label: str
    """What --reward-model may call it besides its name: "" or its number."""
    name: str | None
    files: tuple[TextFile, ...]

    @property
    def shown(self) -> str:
        """Its name, else its number, else "unnamed"."""
        return self.name or self.label or "unnamed"


@loop
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

    def __init__(self, file: TextFile, counts: Sequence[int], tra: str, dtmc: bool) -> None:
        """Check the header against the counts of the .tra file's: states, and choices but for a DTMC."""
        self.file = file
        kind = _kind(file, dtmc)
        self.transitions = kind.transitions
        self._dtmc = dtmc
        self._n_states = counts[0]
        self._fields = kind.fields
        what = f"a header `{' '.join(field.name.removeprefix('number of ') for field in kind.counts)}`"
        header = read_header(file, (kind.counts,), what)
        for given, wanted, field in zip(header.counts[:-1], counts, kind.counts, strict=False):
            if given != wanted:
                name = field.name.removeprefix("number of ")
                raise error_at(file, header.at, f"{given} {name} announced, but {tra} announces {wanted}")
        self._begin = header.end
        self._announced = header.counts[-1]
        self._header_at = header.at
        self._lock = threading.Lock()
        self._found: dict[int, int] = {}

    def _offset(self, state: int) -> int:
        """Offset of a line after which no state is below `state`, in an ordered file."""
        low, high = self._begin, self.file.size
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
        for offset, buffer in iter_lines(self.file, position - 1, self.file.size, _LOOK):
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
        for offset, buffer in iter_lines(self.file, low, self.file.size, _LOOK):
            at = offset
            for raw in buffer.tobytes().split(b"\n")[:-1]:
                match = re.match(rb"[ \t]*([0-9]{1,18})[ \t]", raw)
                if match and int(match[1]) >= state:
                    return at
                at += len(raw) + 1
        return self.file.size

    def _entries(self, first: int, end: int, last: bool) -> Table:
        """The entries of states first..end - 1, up to the first that is malformed or misplaced, which is the error."""
        begin = self._begin if first == 0 else self._offset(first)
        stop = self.file.size if last else self._offset(end)
        table, _ = column_table(self.file, begin, max(begin, stop), self._fields)
        if self._dtmc and self.transitions:
            table = replace(table, ints=np.insert(table.ints, 1, 0, axis=0))
        states = table.ints[0]
        wrong = (states < first) | (states >= end)
        wrong[1:] |= states[1:] < states[:-1]
        if self.transitions:
            same = np.diff(states) == 0
            wrong[1:] |= same & (np.diff(table.ints[1]) < 0)
        for i in np.flatnonzero(wrong)[:1].tolist():
            table = truncate_table(table, i, error_at(self.file, int(table.offsets[i]), self._misplaced(table, i)))
        with self._lock:
            self._found[first] = states.size
        return table

    def _misplaced(self, table: Table, i: int) -> str:
        """The message for an entry that is out of range or out of order."""
        state = int(table.ints[0, i])
        if state < 0:
            return negative_state(state)
        if state >= self._n_states:
            return f"state {state} does not exist: there are {self._n_states} states, 0..{self._n_states - 1}"
        place, after = f"state {state}", ""
        if i and table.ints[0, i - 1] == state:
            place, after = f"choice {table.ints[1, i]} of {place}", f": it comes after choice {table.ints[1, i - 1]}"
        elif i and table.ints[0, i - 1] > state:
            after = f": it comes after state {table.ints[0, i - 1]}"
        return f"{place} is out of order{after}; entries must be ordered by state, then choice"

    def state_rewards(self, first: int, end: int, last: bool) -> FloatArray:
        """float64 [end - first]: r(s) of a .srew file, 0 where it has no entry."""
        table = self._entries(first, end, last)
        states = table.ints[0]
        for i in (np.flatnonzero(np.diff(states) == 0) + 1)[:1].tolist():
            raise error_at(self.file, int(table.offsets[i]), f"state {states[i]} has two rewards; keep one")
        if table.error is not None:
            raise table.error
        rewards = np.zeros(end - first)
        rewards[states - first] = table.floats[0]
        return rewards

    def transition_rewards(self, first: int, end: int, last: bool, raw: RawRows) -> FloatArray:
        """float64 [nnz]: r(s,k,s') of a .trew file, 0 where it has no entry; the rows must be sorted."""
        table = self._entries(first, end, last)
        states, choices, targets = (np.ascontiguousarray(column) for column in table.ints)
        rewards = np.zeros(raw.successors.size)
        values = np.ascontiguousarray(table.floats[0])
        successors = np.ascontiguousarray(raw.successors)
        bad = _place(raw.action_ptr, raw.successor_ptr, successors, first, states, choices, targets, values, rewards)
        if bad >= 0:
            why = f"there is no transition {states[bad]} {choices[bad]} {targets[bad]} to pay this reward on"
            raise error_at(self.file, int(table.offsets[bad]), why)
        keys: list[IntArray] = [targets, choices, states]
        order = np.lexsort(keys)
        twice = np.ones(max(states.size - 1, 0), np.bool_)
        for key in keys:
            twice &= np.diff(key[order]) == 0
        for i in order[1:][twice][:1].tolist():
            why = f"transition {states[i]} {choices[i]} {targets[i]} has two rewards; keep one"
            raise error_at(self.file, int(table.offsets[i]), why)
        if table.error is not None:
            raise table.error
        return rewards

    def check_totals(self) -> None:
        """Compare the number of entries with the header; raises InputError at the header."""
        with self._lock:
            found = sum(self._found.values())
        if found != self._announced:
            raise error_at(self.file, self._header_at, f"{self._announced} entries announced, {found} are given")


def _kind(file: TextFile, dtmc: bool) -> _Kind:
    """The kind of a reward file, by its name or else by the number of fields of its lines."""
    suffix = Path(plain_name(file.path)).suffix.lower()
    if suffix not in (".srew", ".trew"):
        lines = first_lines(file.read(0, _LOOK))
        first = 1 if dtmc else 0  # headers of a DTMC's files have two counts, whatever their kind
        fields = len(lines[first].split()) if len(lines) > first else 2
        suffix = ".trew" if fields == 3 else ".srew"
    if suffix == ".srew":
        return _SREW
    return _DTMC_TREW if dtmc else _TREW


def _companion_structures(tra: Path, dtmc: bool) -> Iterator[Structure]:
    """Reward structures in companion files of a .tra file: stem.srew/.trew, and those with a number after the stem.

    Raises
    ------
    InputError : a file is there twice, plain and compressed.
    """
    groups: dict[str, dict[str, Path]] = {}
    for label, path in _companion_rewards(tra):
        name, files = plain_name(path.name), groups.setdefault(label, {})
        if name in files:
            why = f"{files[name].name} is there as well; keep one of the two, or name one by --rewards"
            raise InputError(path, why)
        files[name] = path
    for label in sorted(groups, key=lambda text: int(text or 0)):
        files_of = tuple(TextFile(path) for path in groups[label].values())
        headers = (read_header(file, (_kind(file, dtmc).counts,), _COUNTS) for file in files_of)
        yield Structure(label, next((header.name for header in headers if header.name), None), files_of)


def _companion_rewards(tra: Path) -> Iterator[tuple[str, Path]]:
    """Files named like reward files of a .tra file, with the number after the stem ("" without one)."""
    tra = Path(plain_name(str(tra)))
    pattern = re.compile(re.escape(tra.stem) + r"([1-9][0-9]{0,8})?\.(srew|trew)")
    for path in sorted(tra.parent.iterdir()):
        name = plain_name(path.name)
        match = pattern.fullmatch(name)
        if match is not None and not (match[1] and companion_files(path.with_name(name).with_suffix(".tra"))):
            yield match[1] or "", path


def companion_files(path: Path) -> list[Path]:
    """The files of this name that are there, plain and compressed."""
    named = [path, *(path.with_name(path.name + suffix) for suffix in SUFFIXES)]
    return [each for each in named if each.exists()]


def _names(files: tuple[TextFile, ...]) -> str:
    return " + ".join(os.path.basename(file.path) for file in files)


def choose_rewards(tra: str, options: ReadOptions, dtmc: bool) -> tuple[Structure | None, list[Structure], list[str]]:
    """The reward structure of a .tra file that is the table's, the other ones, and files that are left out.

    The table's is the file without a name, else the named or only structure of files with names, or where there are
    none of companion files; None where there is none, or none of several is named.

    Raises
    ------
    InputError : options.reward_model names none of the reward structures, or two have one name.
    OptionsError : the options name a file and a structure.
    """
    if options.rewards is not None:
        if options.reward_model is not None:
            raise OptionsError(
                f"{tra}: --rewards names the file, --reward-model chooses among the companion files of the .tra; leave "
                f"one out"
            )
        named = TextFile(options.rewards)
        others = [path.name for _, path in _companion_rewards(Path(tra)) if not path.samefile(options.rewards)]
        return Structure("", None, (named,)), [], others
    left_out: list[str] = []
    if options.named_rewards:
        structures = _named_structures(tra, options, dtmc)
        given = [path for _, path in options.named_rewards]
        companions = [path for _, path in _companion_rewards(Path(tra))]
        left_out = [path.name for path in companions if not any(path.samefile(each) for each in given)]
    else:
        structures = list(_companion_structures(Path(tra), dtmc))
    chosen = _chosen(tra, structures, options.reward_model)
    names = [structure.shown for structure in structures]
    if len(set(names)) < len(names):
        listed = ", ".join(f"{shorten(printable(s.shown))} ({_names(s.files)})" for s in structures[:_LISTED])
        raise InputError(tra, f"two reward structures have one name: {listed}; rename one, or name a file by --rewards")
    return chosen, [structure for structure in structures if structure is not chosen], left_out


def _named_structures(tra: str, options: ReadOptions, dtmc: bool) -> list[Structure]:
    """The reward structures of files with names, in the order in which they are given."""
    found = []
    for name in dict.fromkeys(name for name, _ in options.named_rewards):
        files = tuple(TextFile(path) for given, path in options.named_rewards if given == name)
        kinds = [_kind(file, dtmc).transitions for file in files]
        if len(set(kinds)) < len(kinds):
            what = f"{_names(files)} are more than one file of rewards of {'transitions' if all(kinds) else 'states'}"
            raise OptionsError(f"{tra}: reward structure {quote(name)}: {what}; give each a name of its own")
        found.append(Structure("", name, files))
    return found


def _chosen(tra: str, structures: list[Structure], wanted: str | None) -> Structure | None:
    """The structure that is meant; None where none is wanted and there is not exactly one."""
    if wanted is None and len(structures) <= 1:
        return structures[0] if structures else None
    shown = (f"{shorten(printable(s.shown))} ({_names(s.files)})" for s in structures[:_LISTED])
    listed = ", ".join(shown) + (", ..." if len(structures) > _LISTED else "")
    if wanted is None:
        return None
    named = [s for s in structures if wanted == s.name] or [s for s in structures if wanted == s.label]
    if len(named) != 1:
        raise InputError(tra, f"no single reward structure is {quote(wanted)}; there are: {listed or 'none'}")
    return named[0]
