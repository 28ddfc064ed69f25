"""JSON objects whose names are a closed list: an unknown or missing name is refused, and nothing has a default."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ooc_mdp.store.sealed_file import SealError

__all__ = ["check_kinds", "check_names"]


def check_names(document: Any, names: Collection[str], where: str) -> None:
    """Refuse what is no object of exactly these names."""
    if not isinstance(document, Mapping):
        raise SealError(f"{where}: {str(document)[:40]!r} is no object")
    unknown, missing = sorted(set(document) - set(names)), sorted(set(names) - set(document))
    said = [f"{what}: {', '.join(names)}" for what, names in (("unknown", unknown), ("missing", missing)) if names]
    if said:
        raise SealError(f"{where}: {'; '.join(said)}")


def check_kinds(document: Mapping[str, Any], kinds: Mapping[str, type], where: str) -> None:
    """Refuse values of other types; an int counts as a float, a bool as neither int nor float."""
    for name, kind in kinds.items():
        value = document[name]
        number = kind in (int, float) and isinstance(value, int | float) and not isinstance(value, bool)
        if not number and (kind in (int, float) or not isinstance(value, kind)):
            raise SealError(f"{where}: {name} is {str(value)[:40]!r}, and should be of the kind {kind.__name__}")
