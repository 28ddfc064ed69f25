"""Texts of a UMB archive: a member of bytes, and one that says where each text begins and ends.

string-mapping.bin   uint64 [strings + 1], from 0, never falling        strings.bin   their bytes, UTF-8
"""

from __future__ import annotations

import numpy as np

from ooc_mdp.errors import InputError
from ooc_mdp.io.umb.archive import Member

__all__ = ["MAPPING", "STRINGS", "read_strings"]

_MOST = 1 << 26
MAPPING, STRINGS = "string-mapping.bin", "strings.bin"


def read_strings(mapping: Member, strings: Member | None) -> list[str]:
    """All texts, of members of which the caller has compared the size of the first.

    Raises
    ------
    InputError : a text is not UTF-8, or the places of the texts are not those of such a mapping.
    """
    if strings is None:
        raise InputError(mapping.path, f"{mapping.name.replace(MAPPING, STRINGS)} is missing; export the model again")
    if strings.size > _MOST:
        what = f"{strings.name} has {strings.size} bytes, more than the {_MOST} that are read"
        raise InputError(mapping.path, f"{what}; export the model without these texts")
    places = np.frombuffer(mapping.read(0, mapping.size), "<u8")
    if places[0] != 0:
        raise InputError(mapping.path, f"{mapping.name} begins with {places[0]}, not with 0")
    falls = np.flatnonzero(places[1:] < places[:-1])
    if falls.size:
        before, after = places[falls[0]], places[falls[0] + 1]
        raise InputError(mapping.path, f"{mapping.name} falls from {before} to {after}; export the model again")
    if int(places[-1]) != strings.size:
        what = f"{mapping.name} ends at byte {places[-1]}; {STRINGS} has {strings.size}"
        raise InputError(mapping.path, f"{what}, of which all belong to texts")
    data = strings.read(0, strings.size)
    texts = []
    for i, (begin, end) in enumerate(zip(places[:-1].tolist(), places[1:].tolist(), strict=True)):
        try:
            texts.append(data[begin:end].decode())
        except UnicodeDecodeError as error:
            raise InputError(mapping.path, f"{strings.name}: string {i} is not UTF-8 ({error})") from None
    return texts
