"""State variables of a UMB archive: bit fields of records, one record per state.

    index.json   valuations: {states: {classes: [{variables: [{name, type: {type, size}, offset}, {padding}]}]}}
    valuations/states/valuations.bin          records; the first variable is in the lowest bits, little-endian
                      valuation-to-class.bin  uint32 [n]: which class describes a state's record; absent: the first
                      string-mapping.bin, strings.bin   texts, by their numbers

Variables that every class has with one type are read; rationals become the nearest float64. Optional ones, and those
that some classes lack or have with another type, are left out.
Source: "Specification of the UMB Format", section Valuations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import InputError
from ooc_mdp.io.umb.archive import Member, nearest_rational
from ooc_mdp.io.variables import Texts
from ooc_mdp.model.mdp import IntArray
from ooc_mdp.quoting import quote

__all__ = ["CLASSES_FILE", "VALUATIONS", "VALUATIONS_FILE", "Field", "StateRecords", "no_records", "read_records"]

VALUATIONS = "valuations/states/"
VALUATIONS_FILE, CLASSES_FILE = f"{VALUATIONS}valuations.bin", f"{VALUATIONS}valuation-to-class.bin"
_SIZES = {"bool": 1, "int": 64, "uint": 64, "double": 64, "rational": 128, "string": 64}
"""Bits of each type without a size."""
_KINDS = {"bool": "bool", "int": "whole", "uint": "whole", "double": "double", "rational": "double", "string": "string"}
"""Types whose values are of one kind can be those of one variable in several classes."""
_KEYS = ("name", "is-optional", "type", "size", "lower", "upper", "offset")
_MOST = 1 << 20
"""Bits of a record that is believed."""
_PIECE = 1 << 22
"""Bits that are unpacked at a time."""
_INT64 = np.iinfo(np.int64)


@dataclass(frozen=True, slots=True)
class Field:
    """Where a variable is in a record."""

    name: str
    type: str
    begin: int
    size: int
    offset: int

    def values(self, bits: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        """[states]; the variable in records of bits [states, bits of a record]; of a string its number.

        Raises
        ------
        ValueError : a value does not fit in int64, or has the denominator 0.
        """
        own = bits[:, self.begin : self.begin + self.size]
        if self.type == "bool":
            return np.asarray(own.any(axis=1))
        if self.type == "rational":
            return self._rationals(own)
        wide = np.zeros((bits.shape[0], 64), np.uint8)
        wide[:, : self.size] = own
        if self.type == "int":
            wide[:, self.size :] = own[:, -1:]
        dtype = {"int": "<i8", "double": "<f8"}.get(self.type, "<u8")
        numbers = np.packbits(wide, axis=1, bitorder="little").view(dtype).ravel()
        if self.type == "double":
            return numbers.astype(np.float64)
        low, high = int(numbers.min()) + self.offset, int(numbers.max()) + self.offset
        if low < _INT64.min or high > _INT64.max:
            raise ValueError(f"{self.name} has values from {low} to {high}, which do not fit in int64")
        return numbers.astype(np.int64) + np.int64(self.offset)

    def _rationals(self, own: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
        """float64 [states]; a signed numerator and an unsigned denominator of half of the bits each."""
        different, which = np.unique(own, axis=0, return_inverse=True)
        half, found = self.size // 2, np.empty(different.shape[0])
        for i, row in enumerate(different):
            numerator, denominator = (
                int.from_bytes(np.packbits(part, bitorder="little").tobytes(), "little")
                for part in (row[:half], row[half:])
            )
            if denominator == 0:
                raise ValueError(f"{self.name} has a value with the denominator 0")
            found[i] = nearest_rational(numerator - (int(row[half - 1]) << half), denominator)
        return found[which.ravel()]

    @property
    def readable(self) -> bool:
        """Whether such a field has values that are kept."""
        return self.type in ("bool", "rational") or self.size <= 64


@dataclass(frozen=True, slots=True)
class StateRecords:
    """The classes of records of states, and which of their variables are read."""

    sizes: tuple[int, ...]
    """Bytes of a record of each class; none where there are no records."""
    fields: tuple[tuple[Field, ...], ...]
    """Of each class the variables that are read, in the same order."""
    left_out: tuple[str, ...]
    """Names of the other variables."""
    strings: int
    """Number of texts; 0 where no variable has any."""

    @property
    def names(self) -> list[str]:
        """Names of the variables that are read."""
        return [field.name for field in self.fields[0]] if self.fields else []

    def blocks(
        self, member: Member, classes: Member | None, n_states: int, texts: Sequence[str]
    ) -> Iterator[tuple[int, dict[str, npt.NDArray[Any] | Texts]]]:
        """First state and values of each variable, for consecutive states.

        Raises
        ------
        InputError : a value does not fit in int64, or is no text's number; there is no such class; or the records are
            more or fewer bytes than the member has.
        """
        step, at = max(1, _PIECE // (8 * max(self.sizes))), 0
        for first in range(0, n_states, step):
            count = min(step, n_states - first)
            which = self._classes(member, classes, first, count)
            sizes = np.array(self.sizes, np.int64)[which]
            begins = np.cumsum(sizes) - sizes
            end = at + int(sizes.sum())
            if end > member.size or (first + count == n_states and end != member.size):
                what = f"the records of states 0 to {first + count - 1} take {end}"
                raise InputError(member.path, f"{member.name} has {member.size} bytes; {what}")
            data = np.frombuffer(member.read(at, end - at), np.uint8)
            try:
                yield first, self._values(data, which, begins, texts)
            except ValueError as error:
                raise InputError(member.path, f"{member.name}: {error}") from None
            at = end

    def _classes(self, member: Member, classes: Member | None, first: int, count: int) -> IntArray:
        """int64 [count]; the class of each record."""
        if classes is None:
            return np.zeros(count, np.int64)
        which = np.frombuffer(classes.read(4 * first, 4 * count), "<u4").astype(np.int64)
        beyond = np.flatnonzero(which >= len(self.sizes))
        if beyond.size:
            state, given = first + int(beyond[0]), which[beyond[0]]
            what = f"state {state} has the class {given}; index.json has {len(self.sizes)}"
            raise InputError(member.path, f"{classes.name}: {what}")
        return which

    def _values(
        self, data: npt.NDArray[np.uint8], which: IntArray, begins: IntArray, texts: Sequence[str]
    ) -> dict[str, npt.NDArray[Any] | Texts]:
        """Values of each variable in records that begin at these bytes."""
        found: dict[str, npt.NDArray[Any] | Texts] = {}
        for number in np.unique(which).tolist():
            own = np.flatnonzero(which == number)
            records = data[begins[own, None] + np.arange(self.sizes[number])]
            bits = np.unpackbits(records, axis=1, bitorder="little")
            for field in self.fields[number]:
                values = field.values(bits)
                column = found.setdefault(field.name, np.zeros(which.size, values.dtype))
                assert isinstance(column, np.ndarray)
                column[own] = values
        for field in self.fields[0]:
            column = found[field.name]
            if field.type == "string" and isinstance(column, np.ndarray):
                if column.size and int(column.max()) >= len(texts):
                    raise ValueError(f"{field.name} is text {int(column.max())}; there are {len(texts)}")
                found[field.name] = Texts(column, texts)
        return found


def no_records() -> StateRecords:
    """Of an archive whose states have no valuations, or none that are read."""
    return StateRecords((), (), (), 0)


def read_records(described: dict[str, Any]) -> StateRecords:
    """The records that `valuations.states` of index.json describes.

    Raises
    ------
    ValueError : it does not describe any; says why.
    """
    classes = described.get("classes")
    if not isinstance(classes, list) or not all(isinstance(each, dict) for each in classes):
        raise ValueError(f"classes is {quote(classes)}; it must be a list of objects")
    listed = [each.get("variables") for each in classes]
    if not all(isinstance(each, list) and all(isinstance(entry, dict) for entry in each) for each in listed):
        raise ValueError("variables of a class must be a list of objects")
    parsed = [_read_class(each) for each in listed]
    every = {name: None for fields, left_out, _ in parsed for name in [*(f.name for f in fields), *left_out]}
    kinds = [{field.name: _KINDS[field.type] for field in fields} for fields, _, _ in parsed]
    kept = [name for name in every if len({each.get(name) for each in kinds}) == 1 and name in kinds[0]]
    fields = tuple(tuple(next(f for f in own if f.name == name) for name in kept) for own, _, _ in parsed)
    texts = any(field.type == "string" for own in fields for field in own)
    strings = _whole("#strings", described.get("#strings"), 1, 1 << 26) if texts else 0
    left_out = tuple(name for name in every if name not in kept)
    if not kept or 0 in (size for _, _, size in parsed):
        return StateRecords((), (), left_out, 0)
    return StateRecords(tuple(size for _, _, size in parsed), fields, left_out, strings)


def _read_class(entries: list[dict[str, Any]]) -> tuple[list[Field], list[str], int]:
    """The variables of a class that can be read, names of others, and bytes of its records."""
    fields: list[Field] = []
    left_out: list[str] = []
    at = 0
    for entry in entries:
        if "padding" in entry:
            at += _whole("padding", entry["padding"], 1, _MOST)
            continue
        field = _field(entry, at)
        optional = entry.get("is-optional", False) is True
        if field.name in left_out or field.name in (each.name for each in fields):
            raise ValueError(f"two variables are called {quote(field.name)}")
        if optional or not field.readable:
            left_out.append(field.name)
        else:
            fields.append(field)
        at = field.begin + field.size + optional
        if at > _MOST:
            raise ValueError(f"a valuation has more than {_MOST} bits")
    if at % 8:
        raise ValueError(f"a valuation has {at} bits, which are no whole bytes")
    return fields, left_out, at // 8


def _field(entry: dict[str, Any], begin: int) -> Field:
    """A variable whose record has it from a bit on."""
    name, declared = entry.get("name"), entry.get("type")
    if isinstance(declared, str):  # as in the specification's examples
        declared = {key: entry[key] for key in ("type", "size") if key in entry}
    if set(entry) - set(_KEYS) or not isinstance(name, str) or not name or not isinstance(declared, dict):
        raise ValueError(f"{quote(entry)} is no variable: a name and a type are needed, and {', '.join(_KEYS)} allowed")
    kind = declared.get("type")
    if not isinstance(kind, str) or kind not in _SIZES or set(declared) - {"type", "size"}:
        raise ValueError(f"variable {quote(name)} has the type {quote(declared)}, which is none of {', '.join(_SIZES)}")
    size = _whole(f"the size of variable {quote(name)}", declared.get("size", _SIZES[kind]), 1, _MOST)
    if (kind in ("double", "string") and size != _SIZES[kind]) or (kind == "rational" and size % 2):
        wanted = "an even number of bits" if kind == "rational" else f"{_SIZES[kind]} bits"
        raise ValueError(f"variable {quote(name)} has {size} bits; the type {kind} has {wanted}")
    offset = _whole(f"the offset of variable {quote(name)}", entry.get("offset", 0), int(_INT64.min), int(_INT64.max))
    return Field(name, kind, begin, size, 0 if _KINDS[kind] != "whole" else offset)


def _whole(what: str, value: Any, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{what} is {quote(value)}; it must be a whole number from {least} to {most}")
    return value
