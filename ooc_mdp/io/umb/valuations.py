"""State variables of a UMB archive: bit fields of fixed-size records, one record per state.

    index.json   valuations: {states: {classes: [{variables: [{name, type: {type, size}, offset}, {padding}]}]}}
    valuations/states/valuations.bin   records; the first variable is in the lowest bits of a little-endian number

Variables of the types bool, int and uint of one class are read. Optional ones, those of other types, and archives that
give states several classes are left out. Source: "Specification of the UMB Format", section Valuations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import InputError
from ooc_mdp.io.umb.archive import Member
from ooc_mdp.quoting import quote

__all__ = ["VALUATIONS_FILE", "Field", "StateRecords", "no_records", "read_records"]

VALUATIONS_FILE = "valuations/states/valuations.bin"
_SIZES = {"bool": 1, "int": 64, "uint": 64, "double": 64, "rational": 128, "string": 64}
"""Bits of each type without a size."""
_READ = ("bool", "int", "uint")
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
        """[states]; the variable in records of bits [states, bits of a record].

        Raises
        ------
        OverflowError : a value does not fit in int64.
        """
        own = bits[:, self.begin : self.begin + self.size]
        if self.type == "bool":
            return np.asarray(own.any(axis=1))
        wide = np.zeros((bits.shape[0], 64), np.uint8)
        wide[:, : self.size] = own
        if self.type == "int":
            wide[:, self.size :] = own[:, -1:]
        numbers = np.packbits(wide, axis=1, bitorder="little").view("<u8" if self.type == "uint" else "<i8").ravel()
        low, high = int(numbers.min()) + self.offset, int(numbers.max()) + self.offset
        if low < _INT64.min or high > _INT64.max:
            raise OverflowError(f"{self.name} has values from {low} to {high}, which do not fit in int64")
        return numbers.astype(np.int64) + np.int64(self.offset)


@dataclass(frozen=True, slots=True)
class StateRecords:
    """The records of states, and which of their variables are read."""

    size: int
    """Bytes of a record; 0 where there are none."""
    fields: tuple[Field, ...]
    left_out: tuple[str, ...]
    """Names of the other variables."""

    def blocks(self, member: Member) -> Iterator[tuple[int, dict[str, npt.NDArray[Any]]]]:
        """First state and values of each variable, for consecutive states.

        Raises
        ------
        InputError : a value does not fit in int64.
        """
        n_states, step = member.size // self.size, max(1, _PIECE // (8 * self.size))
        for first in range(0, n_states, step):
            count = min(step, n_states - first)
            records = np.frombuffer(member.read(first * self.size, count * self.size), np.uint8)
            bits = np.unpackbits(records.reshape(count, self.size), axis=1, bitorder="little")
            try:
                yield first, {field.name: field.values(bits) for field in self.fields}
            except OverflowError as error:
                raise InputError(member.path, f"{member.name}: {error}") from None


def no_records() -> StateRecords:
    """Of an archive whose states have no valuations, or none that are read."""
    return StateRecords(0, (), ())


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
    if len(classes) != 1:
        names = {str(entry["name"]) for each in listed for entry in each if "name" in entry}
        return StateRecords(0, (), tuple(sorted(names)))
    return _read_class(listed[0])


def _read_class(entries: list[dict[str, Any]]) -> StateRecords:
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
        if optional or field.type not in _READ or (field.type != "bool" and field.size > 64):
            left_out.append(field.name)
        else:
            fields.append(field)
        at = field.begin + field.size + optional
        if at > _MOST:
            raise ValueError(f"a valuation has more than {_MOST} bits")
    if at % 8:
        raise ValueError(f"a valuation has {at} bits, which are no whole bytes")
    return StateRecords(at // 8, tuple(fields) if at else (), tuple(left_out))


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
    offset = _whole(f"the offset of variable {quote(name)}", entry.get("offset", 0), int(_INT64.min), int(_INT64.max))
    return Field(name, kind, begin, size, offset)


def _whole(what: str, value: Any, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{what} is {quote(value)}; it must be a whole number from {least} to {most}")
    return value
