"""The result of a solve on disk: a Zarr group that is there whole or not at all, and what can be made of it.

    value    float64 [n_states]   in the source's state order and sign
    policy   int32   [n_states]   the state's own action index, -1 where it has none
    action   int64   [n_states]   the source's number of that action, where it does not number them 0, 1, ...
    lower, upper  float64 [n_states]   bounds on V*, at discount 1 only

Attributes: format "ooc-mdp-result", version, identity (table fingerprint, sense, discount), provenance, certificate,
statistics, options. ``docs/result-format.md`` lists them.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import OptionsError, StoreError
from ooc_mdp.mdp import IntArray
from ooc_mdp.methods.checkpoint import CHECKPOINT_SUFFIX, checkpoint_path, remove_checkpoint
from ooc_mdp.methods.target import default_target
from ooc_mdp.options import SolveOptions
from ooc_mdp.solution import Certificate, Outcome, Solution, SolveStatistics
from ooc_mdp.store.metadata import PARTIAL_SUFFIX, PREVIOUS_SUFFIX
from ooc_mdp.store.transaction import check_outside, writing
from ooc_mdp.table_source import TableSource

__all__ = [
    "Result",
    "check_output",
    "finished_before",
    "is_result",
    "open_result",
    "unkept",
    "write_result",
]

_FORMAT = "ooc-mdp-result"
_VERSION = 1
_CHUNK_STATES = 1 << 20


@dataclass(frozen=True, slots=True)
class Result:
    """A result as it lies on disk."""

    path: Path
    identity: dict[str, Any]
    """Fingerprint of the table, sense, discount."""
    solution: Solution
    provenance: dict[str, Any] = field(default_factory=dict)
    """Where the table came from, as its store says it; empty in results of releases that did not keep it."""
    actions: IntArray | None = None
    """int64 [n_states]; the source's numbers of the policy's actions, -1 where the policy has none; None where it
    numbers them 0, 1, ... in each state, and in results of releases that did not keep it."""


def check_output(output: Path, replace: bool) -> None:
    """Refuse early what :func:`write_result` would refuse after hours of work.

    Raises
    ------
    StoreError : the directory is missing or inside a store, or something is there that may not be replaced.
    """
    if output.name.endswith((PARTIAL_SUFFIX, PREVIOUS_SUFFIX, CHECKPOINT_SUFFIX)):
        raise StoreError(
            f"{output}: names that end in {PARTIAL_SUFFIX}, {PREVIOUS_SUFFIX} or {CHECKPOINT_SUFFIX} mark what is "
            f"unfinished; name another output"
        )
    if not output.parent.is_dir():
        raise StoreError(f"{output} cannot be written: {output.parent} is no directory")
    check_outside(output)
    if not os.access(output.parent, os.W_OK | os.X_OK):
        raise StoreError(f"{output} cannot be written: no permission to write in {output.parent}")
    if output.is_symlink():
        raise StoreError(f"{output} is a symbolic link, which is not replaced; give the path that it points to")
    if output.exists():
        if not replace:
            raise StoreError(f"{output} exists; name another output, or replace it with --overwrite")
        _recognise(output)
    if not replace and checkpoint_path(output).exists():
        raise StoreError(
            f"{checkpoint_path(output)} is the checkpoint of an earlier run; go on from it with --resume, or start "
            f"again with --overwrite"
        )


def is_result(path: Path) -> bool:
    """Whether a path looks like what :func:`write_result` wrote, whole or not."""
    try:
        document = json.loads((path / "zarr.json").read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(document, dict) and dict(document.get("attributes") or {}).get("format") == _FORMAT


def _recognise(path: Path) -> dict[str, Any]:
    """Attributes of a result; StoreError where the path is none."""
    if path.name.endswith(PARTIAL_SUFFIX):
        raise StoreError(f"{path} is a half-written result; solve again (with --resume, from its checkpoint)")
    if not path.exists():
        raise StoreError(f"{path} does not exist")
    try:
        document = json.loads((path / "zarr.json").read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise StoreError(f"{path} is no result of ooc-mdp solve: it holds no zarr.json") from None
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} is no result of ooc-mdp solve: its zarr.json cannot be read ({error})") from None
    attributes = document.get("attributes") if isinstance(document, dict) else None
    if not isinstance(attributes, dict) or attributes.get("format") != _FORMAT:
        raise StoreError(f"{path} is no result of ooc-mdp solve; give the directory that --output named")
    if attributes.get("format_version") != _VERSION:
        raise StoreError(
            f"{path} is a result of version {attributes.get('format_version')}, this release reads {_VERSION}"
        )
    return attributes


def write_result(
    output: Path, store: TableSource, solution: Solution, identity: dict[str, Any], *, replace: bool = False
) -> None:
    """Write a solution as a Zarr group, in one atomic step.

    Raises
    ------
    StoreError : the place is taken, or the disk is full; a previous result stays.
    """
    import zarr
    from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec

    attributes: dict[str, Any] = {
        "format": _FORMAT,
        "format_version": _VERSION,
        "identity": identity,
        "store": Path(store.name).name,
        "provenance": store.attributes.get("provenance", {}),
        "outcome": solution.outcome.word,
        "method": solution.method,
        "device": solution.device,
        "discount": solution.discount,
        "certificate": _finite(asdict(solution.certificate)),
        "statistics": asdict(solution.statistics),
        "memory_plan": solution.memory_plan,
    }
    with writing(output, overwrite=replace, recognise=_recognise) as place:
        group = zarr.create_group(place, zarr_format=3, overwrite=False)
        for name, data in _arrays(solution, store):
            chunk = max(1, min(data.size, _CHUNK_STATES))
            array = group.create_array(
                name,
                shape=data.shape,
                chunks=(chunk,),
                dtype=data.dtype,
                serializer=BytesCodec(),
                compressors=[BloscCodec(cname="zstd", clevel=3), Crc32cCodec()],
                config={"write_empty_chunks": True},  # else a lost chunk would read as zeros
            )
            for start in range(0, data.size, chunk):
                array[start : start + chunk] = data[start : start + chunk]
        group.attrs.update(attributes)


def _arrays(solution: Solution, store: TableSource) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """The arrays of a result by name."""
    yield "value", solution.values
    yield "policy", solution.policy
    if "action_labels" in store.fields:
        yield "action", _source_actions(solution.policy, store)
    if solution.lower is not None and solution.upper is not None:
        yield "lower", solution.lower
        yield "upper", solution.upper


def _source_actions(policy: npt.NDArray[np.int32], store: TableSource) -> IntArray:
    """int64 [n_states]: the source's numbers of the policy's actions, -1 where it has none."""
    found = np.full(policy.size, -1, np.int64)
    for p in range(store.n_partitions):
        states, counts = store.original_states(p), store.action_counts(p)
        labels, _ = store.read_field("action_labels", p)
        rows = np.cumsum(counts) - counts + policy[states]
        acts = policy[states] >= 0
        found[states[acts]] = labels[rows[acts]]
    return found


def open_result(path: str | Path) -> Result:
    """Read a result back.

    Raises
    ------
    StoreError : the path is no result, half-written, or damaged.
    """
    import zarr

    path = Path(path)
    attributes = _recognise(path)
    try:
        group = zarr.open_group(path, mode="r")
        values, policy = (_whole(group[name], dtype) for name, dtype in (("value", "float64"), ("policy", "int32")))
        bounds = [_whole(group[name], "float64") if name in group else None for name in ("lower", "upper")]
        actions = _whole(group["action"], "int64") if "action" in group else None
        outcome = next(o for o in Outcome if o.word == attributes["outcome"])
        if not values.shape == policy.shape == (attributes["statistics"]["n_states"],):
            raise ValueError(f"{values.size} values and {policy.size} actions")
        if any(array is not None and array.shape != values.shape for array in (actions, *bounds)):
            raise ValueError(f"bounds or actions of other sizes than {values.size}")
        solution = Solution(
            outcome=outcome,
            method=attributes["method"],
            device=attributes["device"],
            discount=attributes["discount"],
            certificate=Certificate(**_unfinite(attributes["certificate"])),
            statistics=SolveStatistics(**attributes["statistics"]),
            values=values,
            policy=policy,
            memory_plan=attributes["memory_plan"],
            lower=bounds[0],
            upper=bounds[1],
        )
        return Result(path, dict(attributes["identity"]), solution, dict(attributes.get("provenance") or {}), actions)
    except Exception as error:  # whatever Zarr and its codecs make of damaged files
        raise StoreError(f"the result {path} is damaged ({error or type(error).__name__}); solve again") from error


def unkept(solution: Solution, store: TableSource) -> Result:
    """A solution that was not written, as the result of a table.

    Raises
    ------
    OptionsError : the table has another number of states.
    """
    if solution.values.size != store.n_states:
        raise OptionsError(
            f"the solution has {solution.values.size} values and {store.name} has {store.n_states} states; give the "
            f"table that it was solved from"
        )
    identity = {"fingerprint": store.fingerprint, "sense": store.sense, "discount": solution.discount}
    return Result(Path("the solution"), identity, solution)


def _whole(array: Any, dtype: str) -> npt.NDArray[Any]:
    """All values of a Zarr array; ValueError where it is of another type or a chunk is lost."""
    if array.dtype != dtype or array.nchunks_initialized != array.nchunks:
        raise ValueError(f"{array.name} is {array.dtype} and has {array.nchunks_initialized} of {array.nchunks} chunks")
    return np.asarray(array[:])


def _finite(figures: dict[str, Any]) -> dict[str, Any]:
    """JSON has no infinity: unknown bounds become null."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in figures.items()}


def _unfinite(figures: dict[str, Any]) -> dict[str, Any]:
    signs = {"lower": -math.inf}
    return {k: signs.get(k, math.inf) if v is None else v for k, v in figures.items()}


def _default_target(solution: Solution) -> float:
    """The error that a solve at a discount below 1 would be asked for at these values, if nobody said."""
    values, claims = solution.values, solution.certificate
    return default_target(float(values.min()), float(values.max()), lambda: claims.error_bound, claims.rounding)


def finished_before(
    output: Path,
    identity: dict[str, Any],
    options: SolveOptions,
    note: Callable[[str], None],
    default: Callable[[Solution], float] = _default_target,
) -> Solution | None:
    """What `--resume` without a checkpoint begins with: the result that is there, if it proves what is asked, or None.

    Parameters
    ----------
    note : is told which.
    default : the error that is asked for at a solution's values where the options do not say.

    Raises
    ------
    OptionsError : a result is there that belongs to another table, sense or discount.
    """
    short = ""
    if output.exists():
        result = open_result(output)
        for name, mine in identity.items():
            if result.identity.get(name) != mine:
                theirs = result.identity.get(name)
                raise OptionsError(f"the result {output} belongs to {name} {theirs}, not {mine}; name another output")
        claims = result.solution.certificate
        if options.residual is not None:
            enough = claims.residual_bound <= options.residual
        else:
            asked = default(result.solution) if options.epsilon is None else options.epsilon
            enough = claims.error_bound <= asked
        if enough:
            remove_checkpoint(checkpoint_path(output))  # of which there is what a killed run began, at most
            note(f"{output} holds what is asked for: nothing is left to do")
            return result.solution
        short = f"{output} proves less than what is asked for, and "
    note(f"{short}there is no checkpoint {checkpoint_path(output)}: starting from the beginning")
    return None
