"""Parse lines of DRN files from bytes, with the numbers of `io/text/numbers.py`."""

from __future__ import annotations

import numpy as np
from numba import njit

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
from ooc_mdp.runtime.compiled import loop

__all__ = ["parse_drn"]

_SPACE, _COLON, _COMMA, _SLASH = 32, 58, 44, 47
_OPEN, _CLOSE, _RATE, _BRACE, _CLOSE_BRACE, _QUOTE = 91, 93, 33, 123, 125, 34
_ZERO, _NINE = 48, 57
_LOWER_A, _LOWER_S, _LOWER_T = 97, 115, 116
_WORD_STATE = np.frombuffer(b"state", np.uint8)
_WORD_ACTION = np.frombuffer(b"action", np.uint8)


@loop
def _bracket(buf, i, wanted, n_rewards):  # type: ignore[no-untyped-def]
    """Return (status, value, begin, after, next) of number `wanted` of the `n_rewards` in a list `[x, y, ...]` at i.

    None is wanted where `wanted` is negative: the value is 0.
    """
    status, value, begin, after = GOOD if wanted < 0 else BAD, 0.0, i, i
    i += 1
    position = 0
    while True:
        i = skip_blanks(buf, i)
        first = i
        state, number, i = decimal_at(buf, i)
        if state == BAD:
            return BAD, 0.0, begin, after, i
        if position == wanted:
            status, value, begin, after = state, number, first, i
        i = skip_blanks(buf, i)
        position += 1
        if buf[i] == _CLOSE:
            return status if position == n_rewards else BAD, value, begin, after, i + 1
        if buf[i] != _COMMA:
            return BAD, 0.0, begin, after, i
        i += 1


@loop
def _is_rate(buf, i):  # type: ignore[no-untyped-def]
    """Whether an exit rate `!number` is at i, and not a label that begins with !."""
    if buf[i] != _RATE:
        return False
    status, _, i = decimal_at(buf, i + 1)
    return status != BAD and (blank(buf[i]) or buf[i] == NEWLINE)


@loop
def _is_observation(buf, i):  # type: ignore[no-untyped-def]
    """Whether an observation `{number}` is at i, and not a label that begins with a brace."""
    if buf[i] != _BRACE:
        return False
    status, _, i = integer_at(buf, skip_blanks(buf, i + 1))
    return status == GOOD and buf[skip_blanks(buf, i)] == _CLOSE_BRACE


@loop
def _starts(buf, i, word):  # type: ignore[no-untyped-def]
    """Whether `word` and a blank are at i."""
    for k in range(word.size):
        if buf[i + k] != word[k]:
            return False
    return blank(buf[i + word.size])


@njit(cache=True, nogil=True, forceinline=True)
def _skip_labels(buf, i):  # type: ignore[no-untyped-def]
    """The end of the line of labels at i; a quoted one may have blanks."""
    while buf[i] != NEWLINE:
        if buf[i] == _QUOTE:
            i += 1
            while buf[i] != NEWLINE and buf[i] != _QUOTE:
                i += 1
        while buf[i] != NEWLINE and not blank(buf[i]):
            i += 1
        i = skip_blanks(buf, i)
    return i


@njit(cache=True, nogil=True, forceinline=True)
def _drn_word_line(buf, i, rewards, words, at):  # type: ignore[no-untyped-def]
    """Parse `state id [rewards] labels` or `action name [rewards]` at i: (status, id, reward, begin, after, next).

    `next` is where the line must end; begin and after delimit the reward. Where the labels are, or a name that is
    no number, goes to words[at].
    """
    wanted, n_rewards = rewards
    status, number, value = GOOD, np.int64(0), 0.0
    begin, after = i, i
    is_state = buf[i] == _LOWER_S
    if is_state:
        if not _starts(buf, i, _WORD_STATE):
            return BAD, number, value, begin, after, i
        status, number, i = integer_at(buf, skip_blanks(buf, i + 5))
        if not (blank(buf[i]) or buf[i] == NEWLINE):
            status = BAD
    else:
        if not _starts(buf, i, _WORD_ACTION):
            return BAD, number, value, begin, after, i
        i = skip_blanks(buf, i + 6)
        first = i
        while buf[i] > _SPACE:
            i += 1
        if i == first:
            return BAD, number, value, begin, after, i
        if not _ZERO <= buf[first] <= _NINE:
            words[at, 0] = first
            words[at, 1] = i
    i = skip_blanks(buf, i)
    if status == GOOD and buf[i] == _OPEN:
        status, value, begin, after, i = _bracket(buf, i, wanted, n_rewards)
    elif _is_rate(buf, i) or _is_observation(buf, i):
        status = BAD
    if is_state and status != BAD:
        words[at, 0] = skip_blanks(buf, i)
        i = _skip_labels(buf, words[at, 0])
        words[at, 1] = i
    return status, number, value, begin, after, skip_blanks(buf, i)


@njit(cache=True, nogil=True, forceinline=True)
def _drn_transition_line(buf, i):  # type: ignore[no-untyped-def]
    """Parse `successor : probability` at i: (status, successor, probability, begin, after, next)."""
    status, number, i = integer_at(buf, i)
    i = skip_blanks(buf, i)
    if status == BAD or buf[i] != _COLON:
        return BAD, number, 0.0, i, i, i
    begin = skip_blanks(buf, i + 1)
    status, value, after = decimal_at(buf, begin)
    return status, number, value, begin, after, skip_blanks(buf, after)


@loop
def parse_drn(  # type: ignore[no-untyped-def]
    buf, pos, end, rewards, words, count, table, slow
):
    """Parse `state id [rewards] labels`, `action name [rewards]` and `successor : probability`; skip // comments.

    rewards is (wanted, n_rewards): which reward of a list of how many is read; words [capacity, 2] takes where the
    labels of each state are, and each name of an action.
    table is (letters, ints, floats, offsets): letters [capacity] takes s, a or t; ints [1, capacity] the id or
    successor; floats [1, capacity] that reward (0 without a list) or the probability. The rest is as in
    :func:`~ooc_mdp.io.text.columns.parse_columns`.
    """
    letters, ints, floats, offsets = table
    n_slow = 0
    while pos < end:
        line = pos
        i = skip_blanks(buf, pos)
        if buf[i] == NEWLINE or (buf[i] == _SLASH and buf[i + 1] == _SLASH):
            pos = skip_line(buf, i)
            continue
        if n_slow == SLOW_SLOTS:
            return line, count, n_slow, False
        letter = np.uint8(_LOWER_T)
        if buf[i] == _LOWER_S or buf[i] == _LOWER_A:
            letter = buf[i]
            status, number, value, begin, after, i = _drn_word_line(buf, i, rewards, words, count)
        else:
            status, number, value, begin, after, i = _drn_transition_line(buf, i)
        if status == BAD or buf[i] != NEWLINE or i - line > MAX_LINE:
            return line, count, n_slow, True
        if status == SLOW:
            slow[n_slow, 0] = count
            slow[n_slow, 1] = begin
            slow[n_slow, 2] = after
            n_slow += 1
        letters[count] = letter
        ints[0, count] = number
        floats[0, count] = value
        offsets[count] = line
        count += 1
        pos = i + 1
    return pos, count, n_slow, False
