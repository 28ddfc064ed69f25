"""The header of Storm's DRN text: the sections before @model, with the types of models and values that are read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ooc_mdp.io.foreign import model_kind
from ooc_mdp.io.text.errors import INTERVALS, Field, encoding_error, error_at, number_error
from ooc_mdp.io.text.file import TextFile
from ooc_mdp.io.text.source import iter_lines
from ooc_mdp.quoting import quote

__all__ = ["Header", "read_header"]


@dataclass(slots=True)
class Header:
    """What the sections before @model say."""

    kind: str | None = None
    value_type: str = "double"
    rewards: list[str] = field(default_factory=list)
    n_states: int | None = None
    n_choices: int | None = None
    seen: dict[str, int] = field(default_factory=dict)


def _header_lines(file: TextFile, begin: int, end: int) -> Iterator[tuple[int, int, str]]:
    """Yield the offset of a line, the offset of the next, and its text; raises InputError where it is not text."""
    for offset, buffer in iter_lines(file, begin, end, 1 << 16):
        at = offset
        for raw in buffer.tobytes().split(b"\n")[:-1]:
            error = encoding_error(raw)
            if error is not None:
                raise error_at(file, at, error)
            yield at, at + len(raw) + 1, raw.decode("utf-8").strip()
            at += len(raw) + 1


def _count(file: TextFile, offset: int, text: str, name: str) -> int:
    error = number_error(text, Field(name, True))
    if error is None and int(text) < 1:
        error = f"{name} {text} is not positive"
    if error is not None:
        raise error_at(file, offset, error)
    return int(text)


def read_header(file: TextFile, begin: int, end: int) -> tuple[Header, int, int]:
    """The sections before @model, the offset after that line, and the offset of @nr_states."""
    header = Header()
    section = ""
    nr_states_at = begin
    for at, behind, text in _header_lines(file, begin, end):
        if section == "@placeholders" and text.startswith("$"):
            raise error_at(file, at, "placeholders are not read; export the model without them")
        if section in ("@parameters", "@reward_models", "@nr_states", "@nr_choices") and not text.startswith("@"):
            if section == "@parameters" and text:
                raise error_at(file, at, f"the model has parameters ({quote(text)}); instantiate them first")
            if section == "@reward_models":
                header.rewards = text.split()
            if section == "@nr_states":
                header.n_states, nr_states_at = _count(file, at, text, "number of states"), at
            if section == "@nr_choices":
                header.n_choices = _count(file, at, text, "number of choices")
            section = ""
            continue
        if not text or text.startswith("//"):
            continue
        name, _, value = text.partition(":")
        if name in header.seen:
            raise error_at(file, at, f"{name} is declared twice")
        header.seen[name] = at
        section = name
        if name == "@model":
            return header, behind, nr_states_at
        if name == "@type":
            header.kind = value.strip()
            _check_kind(file, at, header.kind)
        elif name == "@value_type":
            _check_value_type(file, at, value.strip())
        elif name not in ("@parameters", "@placeholders", "@reward_models", "@nr_states", "@nr_choices"):
            raise error_at(file, at, f"{quote(text)} is no section of a DRN header; is @model missing?")
    raise error_at(file, end - 1, "the file ends before @model; its header is incomplete")


def _check_value_type(file: TextFile, at: int, kind: str) -> None:
    if kind in ("double", "rational"):
        return
    why = f"values of type {quote(kind)}; double and rational are read"
    if "interval" in kind.lower():
        why = f"an interval model (values of type {quote(kind)}); {INTERVALS}"
    raise error_at(file, at, why)


def _check_kind(file: TextFile, at: int, kind: str) -> None:
    if kind.lower() in ("mdp", "dtmc"):
        return
    why = model_kind(kind) or f"a model of type {quote(kind)}"
    raise error_at(file, at, f"this is {why}; MDP and DTMC are read")
