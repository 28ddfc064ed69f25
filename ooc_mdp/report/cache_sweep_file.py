"""The file of a cache sweep: JSON, replaced as a whole after each solve, from which a killed sweep continues.

{"format": "ooc-mdp-cache-sweep", "version": 1, "store": ..., "fingerprint": ..., "discount": ..., ...,
 "complete": false, "points": [{...}], "same_accesses": [{...}], "digest": "SHA-256 of all but itself"}
"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from ooc_mdp.errors import InputError, OptionsError
from ooc_mdp.quoting import quote
from ooc_mdp.report.cache_sweep import CachePoint, CacheSweep, SameAccesses
from ooc_mdp.store.atomic_file import atomic_file
from ooc_mdp.store.regular_file import read_regular_file
from ooc_mdp.store.seal import DIGEST, digest_of, holds_digest

__all__ = ["continued", "read_cache_sweep", "write_cache_sweep"]

_FORMAT, _VERSION = "ooc-mdp-cache-sweep", 1
_MAX_BYTES = 256 << 20
_REMEDY = "give a file that cache-sweep --output wrote; to replace it, give cache-sweep --overwrite"


def write_cache_sweep(sweep: CacheSweep, file: Path) -> None:
    """Write a sweep, in place of what an earlier solve of it left; raises StoreError where it cannot be written."""
    document: dict[str, Any] = {"format": _FORMAT, "version": _VERSION, **sweep.to_dict()}
    document[DIGEST] = digest_of(document)
    with atomic_file(file, overwrite=True) as temporary:
        temporary.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def read_cache_sweep(path: Path) -> CacheSweep:
    """Read what :func:`write_cache_sweep` wrote; raises InputError for anything else, or bytes that have changed."""
    try:
        document = json.loads(read_regular_file(path, _MAX_BYTES).tobytes())
    except OSError as error:
        raise InputError(path, f"cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise InputError(path, f"is no cache sweep: no JSON; {_REMEDY}") from None
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise InputError(path, f"is no cache sweep; {_REMEDY}")
    if document.get("version") != _VERSION:
        raise InputError(
            path, f"a cache sweep of version {quote(document.get('version'))}, this release reads {_VERSION}; {_REMEDY}"
        )
    if not holds_digest(document):
        raise InputError(path, f"the cache sweep has changed since it was written: its digest differs; {_REMEDY}")
    del document["format"], document["version"], document[DIGEST]
    points = tuple(CachePoint(**{f.name: p[f.name] for f in fields(CachePoint)}) for p in document.pop("points"))
    replayed = tuple(
        SameAccesses(each["schedule"], each["accesses"], tuple(each["lru_loads"]), tuple(each["belady_loads"]))
        for each in document.pop("same_accesses")
    )
    complete = document.pop("complete")
    return CacheSweep(document, points, replayed, complete)


def continued(path: Path, facts: dict[str, Any]) -> CacheSweep:
    """The sweep of a file, to be continued under these facts; an empty one where there is no file.

    Raises
    ------
    InputError : the file is no cache sweep.
    OptionsError : it is of another table, or of solves that cannot be compared with those that are asked for.
    """
    if not path.exists():
        return CacheSweep(facts)
    sweep = read_cache_sweep(path)
    for name, value in facts.items():
        if name != "store" and sweep.facts.get(name) != value:
            what = "fingerprint of the table" if name == "fingerprint" else name.replace("_", " ")
            raise OptionsError(
                f"{path} is of another {what}, {quote(sweep.facts.get(name))} and not {quote(value)}: its solves "
                f"cannot be compared with these; name another --output, or replace it with --overwrite instead of "
                f"--resume"
            )
    return CacheSweep(facts, sweep.points, sweep.same_accesses)
