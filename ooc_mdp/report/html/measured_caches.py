"""The loads of one table with caches of several sizes, from the JSON file of a cache sweep.

{"format": "ooc-mdp-cache-sweep", "version": 1, "fingerprint": ...,
 "points": [{"schedule", "fraction", "loads_per_partition", "hit_rate", "outcome", ...}, ...], ..., "digest": ...}

Only what a chart shows is read: one curve for each schedule, of the solves that reached their target.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ooc_mdp.errors import InputError
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.model.solution import Outcome
from ooc_mdp.quoting import quote
from ooc_mdp.store.regular_file import read_regular_file
from ooc_mdp.store.seal import DIGEST, digest_of

__all__ = ["CacheSizes", "MeasuredCaches", "read_measured_caches"]

_FORMAT, _VERSION = "ooc-mdp-cache-sweep", 1
_MAX_BYTES = 256 << 20
_REMEDY = "give a file that ooc-mdp cache-sweep wrote"


@dataclass(frozen=True, slots=True, eq=False)
class CacheSizes:
    """Solves of one schedule, by ascending cache."""

    schedule: str
    """Its priority, or its method where it has none."""
    fraction: FloatArray
    """float64 [n]; the cache as a fraction of the table."""
    loads_per_partition: FloatArray
    hit_rate: FloatArray


@dataclass(frozen=True, slots=True)
class MeasuredCaches:
    """A cache sweep, as far as it is drawn."""

    fingerprint: str
    """Of the table that was solved."""
    curves: tuple[CacheSizes, ...]


def read_measured_caches(path: Path) -> MeasuredCaches:
    """Read the file of a cache sweep.

    Raises
    ------
    InputError : it is no such file, of another version, or has changed since it was written.
    """
    try:
        document = json.loads(read_regular_file(path, _MAX_BYTES).tobytes())
    except OSError as error:
        raise InputError(path, f"cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise InputError(path, f"is no cache sweep: no JSON; {_REMEDY}") from None
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise InputError(path, f"is no cache sweep; {_REMEDY}")
    if document.get("version") != _VERSION:
        version = quote(document.get("version"))
        raise InputError(path, f"a cache sweep of version {version}, this release reads {_VERSION}; {_REMEDY}")
    try:
        intact = document.pop(DIGEST, None) == digest_of(document)
    except ValueError:  # NaN or an infinity, which is never written
        intact = False
    if not intact:
        raise InputError(path, f"the cache sweep has changed since it was written: its digest differs; {_REMEDY}")
    reached = {outcome.value for outcome in Outcome if outcome.proved}
    points = [point for point in document["points"] if point["outcome"] in reached]
    schedules = dict.fromkeys(point["schedule"] for point in points)
    return MeasuredCaches(document["fingerprint"], tuple(_curve(name, points) for name in schedules))


def _curve(schedule: str, points: list[dict[str, Any]]) -> CacheSizes:
    own = sorted((p for p in points if p["schedule"] == schedule), key=lambda p: p["fraction"])
    return CacheSizes(
        schedule,
        *(np.array([p[name] for p in own], np.float64) for name in ("fraction", "loads_per_partition", "hit_rate")),
    )
