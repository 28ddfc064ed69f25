"""The attributes of a result, format 5, and the arrays of its history: made of a solution, and back.

    format, format_version   "ooc-mdp-result", 5
    of          fingerprint, sense, criterion, discount, other parameters of the criterion
    solution    outcome, method, device, certificate, statistics, memory_plan
    about       store, provenance, geometry, partitions, peak_memory_bytes, tool, version

Format 4, which is read as well, has neither criterion (which the discount shows) nor quantity, lower and upper in its
certificate; format 3 has neither partitions nor peak_memory_bytes either. The list is closed at every level, but for
the parameters of a criterion, which are its own: an unknown or missing name is refused, and nothing has a default. JSON
has no infinity: null is written for a bound that is not known. Knows no files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from ooc_mdp.model.criterion import recorded_criterion
from ooc_mdp.model.solution import Certificate, Outcome, Quantity, Solution, SolveHistory
from ooc_mdp.model.statistics import SolveStatistics
from ooc_mdp.model.table import Table
from ooc_mdp.runtime.memory import peak_bytes
from ooc_mdp.store.attributes import STATE_ORDER
from ooc_mdp.store.closed_object import (
    FINGERPRINT,
    OBJECT,
    SCALAR,
    TEXT,
    WORD,
    Rule,
    check_names,
    check_object,
    count,
    number,
    one_of,
    or_null,
)
from ooc_mdp.store.sealed_file import SealError
from ooc_mdp.store.sealed_group import sealed_names
from ooc_mdp.store.statistics import statistics_of

__all__ = [
    "FORMAT",
    "HISTORY",
    "READABLE",
    "VERSION",
    "ResultAttributes",
    "attributes_of",
    "grid_partitions",
    "history_arrays",
    "history_of",
    "parse_attributes",
]

FORMAT, VERSION = "ooc-mdp-result", 5
READABLE = (3, 4, VERSION)
"""Versions that are read."""
_SINCE_4 = {"partitions": None, "peak_memory_bytes": None}
_SINCE_5 = {"quantity": "value", "lower": None, "upper": None}
"""What results have in their place that were written before."""
HISTORY = "history"
"""The group of the arrays of a solve's history."""

_TOP = sealed_names({"of": OBJECT, "solution": OBJECT, "about": OBJECT})
_OF: dict[str, Rule] = {
    "fingerprint": FINGERPRINT,
    "sense": one_of("max", "min"),
    "criterion": WORD,
    "discount": number(0.0, 1.0),
}
_SOLUTION: dict[str, Rule] = {
    "outcome": one_of(*(outcome.value for outcome in Outcome)),
    "method": TEXT,
    "device": TEXT,
    "certificate": OBJECT,
    "statistics": OBJECT,
    "memory_plan": OBJECT,
}
_CERTIFICATE: dict[str, Rule] = {
    "error_bound": number(0.0, math.inf),
    "error_lower": number(-math.inf, 0.0),
    "error_upper": number(0.0, math.inf),
    "residual_bound": number(0.0, math.inf),
    "rounding_bound": number(0.0, math.inf),
    "target": number(0.0, math.inf),
    "stopping_rule": one_of("epsilon", "residual"),
    "policy_loss_bound": number(0.0, math.inf),
    "proof": TEXT,
    "quantity": one_of(*get_args(Quantity)),
    "lower": number(-math.inf, math.inf),
    "upper": number(-math.inf, math.inf),
}
"""With infinities in place of null."""
_ABOUT: dict[str, Rule] = {
    "store": TEXT,
    "provenance": OBJECT,
    "geometry": or_null(OBJECT),
    "partitions": or_null((lambda order: STATE_ORDER[0](order) and order["kind"] == "grid", "blocks of a grid")),
    "peak_memory_bytes": or_null(count(1)),
    "tool": TEXT,
    "version": TEXT,
}
_MEMORY: dict[str, Rule] = {"host": OBJECT, "device": OBJECT}

_TIME, _PARTITION = "time", "partition"
_FLOAT, _INT = "float64", "int64"
_SECONDS = "seconds"
_HISTORY = {
    _SECONDS: (_FLOAT, _TIME, "s", "seconds of work"),
    "bytes_read": (_INT, _TIME, "B", "bytes read so far"),
    "error_bound": (_FLOAT, _TIME, "", "proved bound on the error of the values"),
    "residual_bound": (_FLOAT, _TIME, "", "bound on the plain Bellman residual"),
    "hits": (_INT, _TIME, "", "cache hits so far"),
    "misses": (_INT, _TIME, "", "cache misses so far"),
    "dirty": (_INT, _TIME, "", "partitions whose bound is above the target"),
    "resident": (_INT, _TIME, "", "partitions in the cache"),
    "loads": (_INT, _PARTITION, "", "loads of each partition"),
    "visits": (_INT, _PARTITION, "", "visits of each partition"),
    "sweeps": (_INT, _PARTITION, "", "sweeps of each partition"),
    "first_visit": (_FLOAT, _PARTITION, "s", "seconds of the first visit, NaN if there was none"),
    "last_visit": (_FLOAT, _PARTITION, "s", "seconds of the last visit, NaN if there was none"),
}


@dataclass(frozen=True, slots=True)
class ResultAttributes:
    """What the attributes of a result state."""

    of: dict[str, Any]
    outcome: Outcome
    method: str
    device: str
    certificate: Certificate
    statistics: SolveStatistics
    memory_plan: dict[str, dict[str, int]]
    provenance: dict[str, Any]
    geometry: dict[str, Any] | None
    partitions: dict[str, Any] | None
    peak_memory_bytes: int | None


def grid_partitions(table: Table) -> dict[str, Any] | None:
    """The store's order of the states where its partitions are blocks of a grid: shape and edges; else None."""
    order = dict(table.facts.attributes.get("state_order") or {})
    return order if order.get("kind") == "grid" else None


def attributes_of(table: Table, solution: Solution, identity: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a solution of a table, without the seal.

    Parameters
    ----------
    identity : fingerprint of the table, sense, criterion and its parameters.
    """
    geometry = table.facts.attributes.get("geometry")
    return {
        "format": FORMAT,
        "format_version": VERSION,
        "of": dict(identity),
        "solution": {
            "outcome": solution.outcome.value,
            "method": solution.method,
            "device": solution.device,
            "certificate": _finite(asdict(solution.certificate)),
            "statistics": _finite(asdict(solution.statistics)),
            "memory_plan": solution.memory_plan,
        },
        "about": {
            "store": Path(table.name).name,
            "provenance": _finite(dict(table.facts.attributes.get("provenance") or {})),
            "geometry": None if geometry is None else _finite(dict(geometry)),
            "partitions": grid_partitions(table),
            "peak_memory_bytes": peak_bytes() or None,
            "tool": "ooc-mdp",
            "version": _version(),
        },
    }


def _version() -> str:
    try:
        return metadata.version("ooc-mdp")
    except metadata.PackageNotFoundError:
        return "unknown"


def parse_attributes(attributes: Mapping[str, Any]) -> ResultAttributes:
    """What a result's attributes state.

    Raises
    ------
    SealError : a name is unknown or missing, or its value is of another kind.
    """
    check_object(attributes, _TOP, "its attributes")
    of, solution, about = (attributes[name] for name in ("of", "solution", "about"))
    check_object(solution, _SOLUTION, "solution")
    version = attributes["format_version"]
    if version < 5:
        check_names(of, set(_OF) - {"criterion"}, "of")
        of = {**of, "criterion": recorded_criterion(of)}
        check_names(solution["certificate"], set(_CERTIFICATE) - set(_SINCE_5), "certificate")
        solution = {**solution, "certificate": {**solution["certificate"], **_SINCE_5}}
    _check_question(of)
    if version < 4:
        check_names(about, set(_ABOUT) - set(_SINCE_4), "about")
        about = {**about, **_SINCE_4}
    check_object(about, _ABOUT, "about")
    check_object(solution["memory_plan"], _MEMORY, "memory_plan")
    for place, buffers in solution["memory_plan"].items():
        check_object(buffers, dict.fromkeys(buffers, count()), f"memory_plan: {place}")
    statistics = statistics_of(solution["statistics"])
    _check_partitions(about["partitions"], statistics)
    return ResultAttributes(
        of={**of, "discount": float(of["discount"])},
        outcome=next(o for o in Outcome if o.value == solution["outcome"]),
        method=solution["method"],
        device=solution["device"],
        certificate=_certificate(solution["certificate"]),
        statistics=statistics,
        memory_plan=solution["memory_plan"],
        provenance=about["provenance"],
        geometry=about["geometry"],
        partitions=about["partitions"],
        peak_memory_bytes=about["peak_memory_bytes"],
    )


def _check_question(of: Mapping[str, Any]) -> None:
    """Refuse what lacks a name that every question has, or a parameter of the criterion that is no plain value."""
    own = {name: value for name, value in of.items() if name not in _OF}
    check_object({name: of[name] for name in of if name in _OF}, _OF, "of")
    check_object(own, dict.fromkeys(own, SCALAR), "of")


def _check_partitions(order: Mapping[str, Any] | None, statistics: SolveStatistics) -> None:
    """Refuse blocks of another grid than that of the states; nothing of their size has been allocated."""
    if order is None:
        return
    found = math.prod(order["shape"]), math.prod(len(edges) - 1 for edges in order["edges"])
    if found != (statistics.n_states, statistics.n_partitions):
        raise SealError(
            f"about: partitions has {found[1]} blocks of {found[0]} states, not {statistics.n_partitions} of "
            f"{statistics.n_states}"
        )


def history_arrays(history: SolveHistory) -> dict[str, tuple[npt.NDArray[Any], str, dict[str, str]]]:
    """By name: values, dimension, and what xarray shows of them."""
    return {
        name: (np.asarray(getattr(history, name), dtype), dimension, _labels(name, dimension, units, text))
        for name, (dtype, dimension, units, text) in _HISTORY.items()
    }


def _labels(name: str, dimension: str, units: str, text: str) -> dict[str, str]:
    """Units and words, and of what is recorded over time that its coordinate is `seconds`, as CF names it."""
    at = {"coordinates": _SECONDS} if dimension == _TIME and name != _SECONDS else {}
    return {"units": units, "long_name": text, **at}


def history_of(arrays: Mapping[str, npt.NDArray[Any]]) -> SolveHistory:
    """The history that arrays make; SealError where one is missing, unknown, or of another type or length."""
    check_names(arrays, _HISTORY, HISTORY)
    lengths: dict[str, int] = {}
    for name, (dtype, dimension, _, _) in _HISTORY.items():
        array = arrays[name]
        if array.dtype.name != dtype or array.size != lengths.setdefault(dimension, array.size):
            raise SealError(f"{HISTORY}/{name} is {array.dtype.name} [{array.size}], not as long as the others")
    return SolveHistory(**arrays)


def _certificate(document: Any) -> Certificate:
    check_names(document, _CERTIFICATE, "certificate")
    figures: dict[str, Any] = {
        k: (-math.inf if k.endswith("lower") else math.inf) if v is None else v for k, v in document.items()
    }
    check_object(figures, _CERTIFICATE, "certificate")
    figures |= {k: float(v) for k, v in figures.items() if isinstance(v, int)}
    return Certificate(**figures)


def _finite(value: Any) -> Any:
    """JSON has no infinity: null instead."""
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
