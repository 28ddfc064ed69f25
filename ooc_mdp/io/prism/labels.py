"""PRISM's companion file of labels, stem.lab.

    0="init" 1="deadlock" 2="goal"
    0: 0
    7: 1 2

A label that no state has is one of the model's all the same.
"""

from __future__ import annotations

import re

import numpy as np

from ooc_mdp.errors import InputError
from ooc_mdp.io.annotations import SourceAnnotations
from ooc_mdp.io.prism.header import first_text
from ooc_mdp.io.text.errors import error_at
from ooc_mdp.io.text.file import TextFile
from ooc_mdp.io.text.source import iter_lines
from ooc_mdp.quoting import printable, quote, shorten

__all__ = ["check_last_state", "declared_labels", "read_labels"]

_LOOK = 1 << 14
"""Bytes at the beginning and the end of a file that are examined."""
_PIECE = 1 << 20
_LABEL = re.compile(r'[ \t]*([0-9]{1,9})="([^"]*)"')
_EXAMPLE = 'such as `0="init" 1="goal"`'
_STATE = re.compile(rb"[ \t]*([0-9]{1,18})[ \t]*:[ \t]*((?:[0-9]{1,9}[ \t]*)*)\r?")


def check_last_state(file: TextFile, n_states: int, tra: str, every: bool = False) -> None:
    """Check that the last line names a state of the .tra file, or its last state where `every` state has a line."""
    begin = max(0, file.size - _LOOK)
    for line in reversed(file.read(begin, file.size - begin).split(b"\n")):
        match = re.match(rb"[ \t]*([0-9]+)[ \t]*:", line)
        if match is None:
            continue
        digits = match[1].lstrip(b"0") or b"0"
        last = int(digits[:19])
        if len(digits) > 18 or last >= n_states or (every and last != n_states - 1):
            shown = shorten(printable(digits.decode()))
            message = f"its last state is {shown}, but {tra} announces {n_states} states"
            raise InputError(file.path, f"{message}; take it away if they do not belong together")
        break


def declared_labels(file: TextFile) -> dict[int, str]:
    """The labels that the first line of a .lab file names, by number; raises InputError where it is malformed."""
    return _declaration(file)[0]


def _declaration(file: TextFile) -> tuple[dict[int, str], int]:
    """The labels that the first line names, by number, and the offset after that line."""
    at, end, text = first_text(file, f"a line that names the labels, {_EXAMPLE},")
    names: dict[int, str] = {}
    seen: set[str] = set()
    place = 0
    while place < len(text):
        match = _LABEL.match(text, place)
        if match is None:
            following = _LABEL.search(text, place)
            unknown = text[place : following.start() if following else len(text)].strip()
            raise error_at(
                file, at, f"{quote(unknown, 40)} is not understood in the line that names the labels, {_EXAMPLE}"
            )
        number, name = int(match[1]), match[2]
        if number in names:
            raise error_at(file, at, f"label number {number} is named twice; give each label its own number")
        if name in seen:
            raise error_at(file, at, f'label "{shorten(printable(name))}" is named twice; keep one')
        names[number] = name
        seen.add(name)
        place = match.end()
    return names, end


def read_labels(file: TextFile, n_states: int, tra: str, annotations: SourceAnnotations) -> None:
    """Give states the labels of a .lab file.

    Raises
    ------
    InputError : a line is none of this format, or names a state or a label that is not there.
    """
    names, begin = _declaration(file)
    for offset, buffer in iter_lines(file, begin, file.size, _PIECE):
        marked: dict[int, list[int]] = {}
        at = offset
        for raw in buffer.tobytes().split(b"\n")[:-1]:
            match = _STATE.fullmatch(raw)
            if match is not None:
                state = int(match[1])
                if state >= n_states:
                    raise error_at(file, at, f"state {state} has labels, but {tra} announces {n_states} states")
                for label in map(int, match[2].split()):
                    if label not in names:
                        listed = shorten(", ".join(f'{n}="{printable(name)}"' for n, name in names.items()), 200)
                        raise error_at(file, at, f"label {label} is none of {listed}")
                    marked.setdefault(label, []).append(state)
            elif raw.strip() and not raw.lstrip().startswith(b"#"):
                text = quote(raw.decode("utf-8", "replace"), 40)
                raise error_at(file, at, f"{text} is no line of labels, such as `7: 1 2`")
            at += len(raw) + 1
        for label, states in marked.items():
            annotations.mark(names[label], np.array(states, np.int64))
