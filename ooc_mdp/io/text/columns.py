"""Lines of integers, one decimal and perhaps a name, and their rows: shared by transition lists and PRISM's files.

    state action successor probability [name]

The kernel parses columns; :func:`group_rows` groups a segment's lines, which are ordered by state, then action, into
rows. This module knows no headers and no rewards.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ooc_mdp.errors import InputError
from ooc_mdp.io.raw_rows import RawRows
from ooc_mdp.io.text.errors import Field, diagnose_fields, encoding_error, error_at, negative_state
from ooc_mdp.io.text.file import TextFile
from ooc_mdp.io.text.numbers import (
    BAD,
    GOOD,
    MAX_LINE,
    NEWLINE,
    SLOW,
    SLOW_SLOTS,
    blank,
    decimal_at,
    integer_at,
    skip_blanks,
    skip_line,
)
from ooc_mdp.io.text.source import Table, TextSegment, read_bytes, read_table, truncate_rows, truncate_table
from ooc_mdp.io.text.words import distinct_words
from ooc_mdp.model.mdp import IntArray
from ooc_mdp.runtime.compiled import loop

__all__ = ["column_table", "diagnose_columns", "group_rows", "parse_columns"]

_SPACE, _HASH = 32, 35
_MARK, _NINE, _OPEN = 43, 57, 91
"""The characters + , - . / 0 ... 9, and [."""
_SORT = "lines must be ordered by state, then action: sort -n -k1,1 -k2,2 -s"


@loop
def parse_columns(  # type: ignore[no-untyped-def]
    buf, pos, end, columns, words, count, ints, floats, offsets, slow
):
    """Parse lines of integers, one decimal and perhaps a name; skip blank lines and # comments.

    columns is (n_integers, whether a name may follow). Fills ints [n_integers, capacity], floats [1, capacity] and the
    lines' offsets from `count` on, and where names may follow words [capacity, 2]: where each line's is. Decimals
    left to nearest_double() go to slow [SLOW_SLOTS, 3] as (flat index into floats, begin, end).

    Returns (pos, count, n_slow, bad): where to continue (`end`: everything is parsed), lines so far, slots filled,
    and whether the line at pos is malformed.
    """
    n_integers, word = columns
    n_slow = 0
    while pos < end:
        line = pos
        i = skip_blanks(buf, pos)
        if buf[i] == NEWLINE or buf[i] == _HASH:
            pos = skip_line(buf, i)
            continue
        if n_slow == SLOW_SLOTS:
            return line, count, n_slow, False
        for column in range(n_integers):
            status, number, i = integer_at(buf, i)
            if status != GOOD or not blank(buf[i]):
                return line, count, n_slow, True
            ints[column, count] = number
            i = skip_blanks(buf, i)
        begin = i
        status, value, i = decimal_at(buf, i)
        if status == BAD or not (blank(buf[i]) or buf[i] == NEWLINE):
            return line, count, n_slow, True
        after = i
        i = skip_blanks(buf, i)
        if word and buf[i] != NEWLINE:
            if buf[i] == _OPEN or _MARK <= buf[i] <= _NINE:  # a number or an interval, which is no name
                return line, count, n_slow, True
            first = i
            while buf[i] > _SPACE:
                i += 1
            words[count, 0] = first
            words[count, 1] = i
            i = skip_blanks(buf, i)
        if buf[i] != NEWLINE or i - line > MAX_LINE:
            return line, count, n_slow, True
        if status == SLOW:
            slow[n_slow, 0] = count
            slow[n_slow, 1] = begin
            slow[n_slow, 2] = after
            n_slow += 1
        floats[0, count] = value
        offsets[count] = line
        count += 1
        pos = i + 1
    return pos, count, n_slow, False


def diagnose_columns(fields: tuple[Field, ...], raw: bytes, word: bool = False) -> str:
    """The message for a line that is not these fields (and, if `word`, perhaps a name)."""
    error = encoding_error(raw)
    if error is not None:
        return error
    texts = raw.decode("utf-8").split()
    if word and len(texts) == len(fields) + 1:
        name = texts.pop()
        if name[0] in "+,-./0123456789[":
            return f"{name[:40]!r} after the {fields[-1].name}, where only the name of an action may be"
    error = diagnose_fields(texts, fields, "a line")
    return f"{error} (and perhaps a name without blanks)" if word and len(texts) > len(fields) else error


def column_table(
    file: TextFile,
    begin: int,
    end: int,
    fields: tuple[Field, ...],
    number_names: Callable[[list[str]], IntArray] | None = None,
    foreign: Callable[[bytes], str | None] = lambda raw: None,
) -> tuple[Table, IntArray | None]:
    """Parse the lines begin:end: integers, then one decimal, and perhaps a name.

    Parameters
    ----------
    number_names : gives different names their numbers; None where no name may follow.
    foreign : may have the message for a malformed line that belongs to another format.

    Returns
    -------
    tuple : the table, and the number of each line's name, -1 for none; None where no line has one.
    """
    n_integers, word = len(fields) - 1, number_names is not None
    buffer = read_bytes(file, begin, end)
    words = np.full((int(np.count_nonzero(buffer == NEWLINE)) if word else 0, 2), -1)

    def kernel(buf, pos, stop, count, letters, ints, floats, offsets, slow):  # type: ignore[no-untyped-def]
        return parse_columns(buf, pos, stop, (n_integers, word), words, count, ints, floats, offsets, slow)

    diagnose = lambda raw: foreign(raw) or diagnose_columns(fields, raw, word)  # noqa: E731
    table = read_table(file, begin, buffer, (n_integers, 1), kernel, diagnose)
    if number_names is None or not (words[: table.letters.size, 0] >= 0).any():
        return table, None
    of_lines, names = distinct_words(buffer, words[: table.letters.size])
    return table, np.append(number_names(names), -1)[of_lines]


def _order_error(table: Table, segment: TextSegment, gaps: bool, numbered: bool) -> tuple[int, str] | None:
    """Index and message of the first line out of order; for `gaps` and `numbered` see :func:`group_rows`."""
    states, actions = table.ints[0], table.ints[1]
    before = np.concatenate([[segment.first_state - 1], states[:-1]])
    step = states - before
    same = step == 0
    same[:1] = False
    move = np.diff(actions, prepend=0)
    wrong_state = (step < 0) | (~same & (step < 1))
    if not gaps:
        wrong_state |= step > 1
    wrong_action = np.where(same, move < 0, actions < 0)
    if numbered:
        wrong_action |= np.where(same, move > 1, actions != 0)
    wrong = np.flatnonzero(wrong_state | wrong_action)
    if not wrong.size:
        return None
    i = int(wrong[0])
    state, last, action = int(states[i]), int(before[i]), int(actions[i])
    if wrong_state[i]:
        return i, _state_error(state, last)
    if action < 0:
        return i, f"state {state}: action {action} is negative"
    if same[i] and move[i] < 0:
        return i, f"state {state}: action {action} comes after action {actions[i - 1]}; {_SORT}"
    wanted = f"{actions[i - 1]} or {actions[i - 1] + 1}" if same[i] else "0"
    return i, f"state {state}: choice {action} where {wanted} is expected; choices of a state are numbered 0, 1, ..."


def _state_error(state: int, last: int) -> str:
    if state < 0:
        return negative_state(state)
    if state <= last:
        return f"state {state} comes again after state {last}; {_SORT}"
    return (
        f"state {state} where state {last + 1} is expected: state {last + 1} has no transition, and this format "
        "cannot say that a state has no action (a loop to itself with probability 1 ends there)"
    )


def group_rows(
    file: TextFile,
    table: Table,
    segment: TextSegment,
    n_states: int | None,
    *,
    gaps: bool,
    numbered: bool,
    names: IntArray | None = None,
) -> tuple[RawRows, InputError | None]:
    """Group columns s, a, s' and p into rows (s, a), up to the first line with an error.

    Parameters
    ----------
    n_states : states that exist, if known.
    gaps : states without any line are states without action, which belong to the segment before the next state.
    numbered : whether the actions of a state must be 0, 1, ...
    names : the number of each line's name, -1 for none; the name of a row is that of its first line.
    """
    found = _order_error(table, segment, gaps, numbered)
    states = table.ints[0]
    if n_states is not None:
        beyond = np.flatnonzero(states >= n_states)
        if beyond.size and (found is None or beyond[0] < found[0]):
            i = int(beyond[0])
            found = i, f"state {states[i]} does not exist: there are {n_states} states, 0..{n_states - 1}"
    if found is not None:
        table = truncate_table(table, found[0], error_at(file, int(table.offsets[found[0]]), found[1]))
        states = table.ints[0]
    error = table.error
    first = segment.first_state
    end = int(states[-1]) + 1 if states.size else first
    if error is None and segment.next_state >= 0:
        following = segment.next_state
        if n_states is not None and following >= n_states:
            why = f"state {following} does not exist: there are {n_states} states, 0..{n_states - 1}"
            error = error_at(file, segment.end, why)
        elif following < end or (following > end and not gaps):
            error = error_at(file, segment.end, _state_error(following, end - 1))
        else:
            end = following
    elif error is None and segment.last and gaps and n_states is not None:
        end = n_states
    opens = np.ones(states.size, np.bool_)
    opens[1:] = (np.diff(states) != 0) | (np.diff(table.ints[1]) != 0)
    starts = np.flatnonzero(opens)
    counts = np.bincount(states[starts] - first, minlength=end - first)
    raw = RawRows(
        action_ptr=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        successor_ptr=np.append(starts, states.size).astype(np.int64),
        successors=table.ints[2],
        probabilities=table.floats[0],
        action_labels=table.ints[1, starts],
        action_names=None if names is None else names[starts],
        row_positions=table.offsets[starts],
        transition_positions=table.offsets,
    )
    if table.error is not None and found is None and starts.size:
        raw = truncate_rows(raw, starts.size - 1)
    return raw, error
