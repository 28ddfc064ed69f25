"""A virtual store: what defines a generated problem's table, and what its first pass found, without the table.

    zarr.json   format, format_version
                table   sense, dtype, state_order, partitioning, table_version, fingerprint, and `TableSummary.facts`
                about   provenance, geometry
                and the seal of :mod:`ooc_mdp.store.sealed_group`
    NAME/       an array of `TableSummary.arrays`; original_state [n] where states are permuted

Reading it runs nothing. Opening it makes the problem again and compares the fingerprint, which hashes the rows of a
sample of states; then each partition is computed when it is loaded, without another first pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.select import select_rows
from ooc_mdp.errors import MissingExtraError, OptionsError, StoreError
from ooc_mdp.io.conversion.write_store import Progress
from ooc_mdp.io.first_pass import TABLE_VERSION, TableDescription, describe
from ooc_mdp.io.recomputed_table import RecomputedTable
from ooc_mdp.model.mdp import IntArray
from ooc_mdp.model.state_order import GridOrder, IdentityOrder, PermutedOrder, StateOrder
from ooc_mdp.problems.control.user_file import load_problem
from ooc_mdp.problems.problem import Problem
from ooc_mdp.problems.registry import built_in_problem
from ooc_mdp.quoting import printable, quote, shorten
from ooc_mdp.runtime import quotas
from ooc_mdp.store.attributes import STATE_ORDER
from ooc_mdp.store.check_sizes import summary_error
from ooc_mdp.store.closed_object import (
    FINGERPRINT,
    OBJECT,
    SHA256,
    TEXT,
    Rule,
    check_names,
    check_object,
    count,
    one_of,
    or_null,
)
from ooc_mdp.store.layout import VIRTUAL_FORMAT
from ooc_mdp.store.metadata import check_is_store
from ooc_mdp.store.output_lock import locked_output
from ooc_mdp.store.seal import canonical
from ooc_mdp.store.sealed_file import SealError
from ooc_mdp.store.sealed_group import SealedGroup, SealedGroupWriter, group_attributes, sealed_names
from ooc_mdp.store.table_summary import TableSummary
from ooc_mdp.store.transaction import atomic_directory, check_destination
from ooc_mdp.store.trusted_file import trusted_file
from ooc_mdp.table_options import ConvertOptions

__all__ = [
    "generate_virtual",
    "is_virtual_store",
    "open_virtual_store",
    "read_virtual_store",
]

VERSION = 1
_REMEDY = "generate it again"

_TOP = sealed_names({"table": OBJECT, "about": OBJECT})
_TRUTH = one_of(True, False)
_TABLE: dict[str, Rule] = {
    "sense": one_of("max", "min"),
    "dtype": one_of("float32", "float64"),
    "successors": one_of("uint8", "uint16", "uint32"),
    "durations": one_of(None, "float32", "float64"),
    "state_order": STATE_ORDER,
    "partitioning": OBJECT,
    "table_version": count(),
    "fingerprint": FINGERPRINT,
    "actions_per_state": count(0, 1 << 32),
    "successors_per_action": count(0, 1 << 32),
    "dyadic_probabilities": _TRUTH,
    "terminal_rewards": _TRUTH,
    "initial_values": _TRUTH,
}
_ABOUT: dict[str, Rule] = {"provenance": OBJECT, "geometry": or_null(OBJECT)}
_PROVENANCE: dict[str, Rule] = {
    "source": TEXT,
    "format": one_of("problem"),
    "options": OBJECT,
    "device": TEXT,
    "tool": TEXT,
    "version": TEXT,
    "time": TEXT,
}
_FILE: dict[str, Rule] = {"path": TEXT, "sha256": SHA256}
_FLOATS = ("reward_range", "duration_range", "row_sum_range", "coupling_mass")


def generate_virtual(
    problem: Problem, path: Path, options: ConvertOptions, progress: Progress | None = None
) -> RecomputedTable:
    """Make the first pass over a problem, write a virtual store, all of it or nothing, and return its table.

    Raises
    ------
    OptionsError : the options do not fit the problem.
    InputError : the problem's rows are no probability distributions.
    StoreError : the store exists, is being written or read, or cannot be written.
    """
    with locked_output(path, partial(check_destination, overwrite=options.overwrite)):
        table = RecomputedTable.after_first_pass(problem, options, str(path), progress)
        with atomic_directory(path, options.overwrite) as root:
            _write(root, table.known)
    return table


def _write(root: Path, known: TableDescription) -> None:
    group = SealedGroupWriter(root)
    for name, values in _arrays(known).items():
        group.write(name, values.reshape(-1), values.shape, (f"{name}_index", "bound")[: values.ndim])
    group.seal(
        {
            "format": VIRTUAL_FORMAT,
            "format_version": VERSION,
            "table": {
                "sense": known.sense,
                "dtype": known.summary.dtype.name,
                "state_order": known.order.state_order(),
                "partitioning": dict(known.partitioning),
                "table_version": TABLE_VERSION,
                "fingerprint": known.fingerprint,
                **known.summary.facts(),
            },
            "about": {"provenance": dict(known.provenance), "geometry": known.geometry},
        }
    )


def _arrays(known: TableDescription) -> dict[str, npt.NDArray[Any]]:
    """What is kept in arrays, by name."""
    arrays = known.summary.arrays()
    if known.order.state_order()["kind"] == "array":
        states = [known.order.states(p) for p in range(known.summary.n_partitions)]
        arrays["original_state"] = np.concatenate(states)
    return arrays


def is_virtual_store(path: Path) -> bool:
    """Whether a path looks like a virtual store, whole or not."""
    try:
        return group_attributes(path).get("format") == VIRTUAL_FORMAT
    except (OSError, SealError):
        return False


def read_virtual_store(path: Path) -> TableDescription:
    """What a virtual store says, each file of it compared with the seal; runs nothing.

    Raises
    ------
    StoreError : the path is no virtual store, half-written, damaged, or of another version.
    """
    attributes = check_is_store(path)
    if attributes["format"] != VIRTUAL_FORMAT:
        raise StoreError(f"{path} is a store with chunks, not a virtual one; open it with ooc_mdp.open_store")
    if attributes.get("format_version") != VERSION:
        version = attributes.get("format_version")
        raise StoreError(
            f"{path} is a virtual store of version {quote(version)}, this release reads {VERSION}; {_REMEDY}"
        )
    try:
        group = SealedGroup(path, attributes)
        table, about = _checked_attributes(attributes)
        if table["table_version"] != TABLE_VERSION:
            raise StoreError(
                f"{path} was generated when this program computed other tables (version {table['table_version']}, now "
                f"{TABLE_VERSION}); {_REMEDY}"
            )
        return _description(str(path), group, table, about)
    except SealError as error:
        raise StoreError(f"the virtual store {path} is damaged ({error}); {_REMEDY}") from error


def open_virtual_store(
    path: Path, trust: bool = False, note: Callable[[str], None] = lambda _: None
) -> RecomputedTable:
    """The table of a virtual store, whose problem is made again.

    Parameters
    ----------
    trust : run the Python file that the store names, if its SHA-256 is the recorded one.
    note : called with a sentence before a trusted file is run.

    Raises
    ------
    OptionsError : the store is of a Python file that is not trusted, cannot be read or has changed, or its rows are
        computed by a device that is not there.
    StoreError : as from :func:`read_virtual_store`, or the problem gives another table now.
    """
    known = read_virtual_store(path)
    problem = _rows_by(path, known, _problem(path, known, trust, note))
    if problem.n_states != known.partition_ptr[-1]:
        raise StoreError(
            f"the problem of {path} has {problem.n_states} states now and {known.partition_ptr[-1]} in the store; "
            f"{_REMEDY}"
        )
    now = describe(problem, known.order, known.summary, known.sense, known.partitioning)
    if now.fingerprint != known.fingerprint or canonical(now.geometry) != canonical(known.geometry):
        raise StoreError(
            f"the problem of {path} gives another table now than when the store was generated (fingerprint "
            f"{now.fingerprint}, recorded {known.fingerprint}): this program, or what a Python file imports, has "
            f"changed since; {_REMEDY}"
        )
    return RecomputedTable(problem, known, str(path), quotas.cores())


def _problem(path: Path, known: TableDescription, trust: bool, note: Callable[[str], None]) -> Problem:
    """The problem that a store records, its rows computed by the CPU."""
    origin = known.provenance
    file = None
    if "file" in origin:
        otherwise = "generate another store from the file to run (ooc-mdp generate FILE.py STORE --virtual)"
        file = trusted_file(path, origin["file"], trust, otherwise, note)
    try:
        if file is not None:
            return load_problem(file[0], origin["options"], file[1])
        return built_in_problem(origin["source"], origin["options"])
    except OptionsError as error:
        raise StoreError(f"the problem of {path} cannot be made any more: {error}; {_REMEDY}") from error


def _rows_by(path: Path, known: TableDescription, problem: Problem) -> Problem:
    """The problem with its rows computed by what computed them in the first pass."""
    try:
        return select_rows(problem, known.rows_by)
    except (OptionsError, MissingExtraError) as error:
        raise OptionsError(
            f"the rows of {path} are computed by {shorten(printable(known.rows_by))}: {shorten(error, 400)}; open it "
            f"on a machine with that device, or generate it again with --device cpu"
        ) from error


def _checked_attributes(attributes: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The attributes `table` and `about`; SealError where they are not as the format has them."""
    check_object(attributes, _TOP, "its attributes")
    table, about = attributes["table"], attributes["about"]
    check_object(table, _TABLE, "table")
    check_object(about, _ABOUT, "about")
    origin = about["provenance"]
    file = ("file",) if "file" in origin else ()
    check_object(origin, _PROVENANCE | dict.fromkeys(file, OBJECT), "provenance")
    for name in file:
        check_object(origin[name], _FILE, f"provenance: {name}")
    named = {name: origin[name] for name in (*_PROVENANCE, *file)}
    return dict(table), {"provenance": named, "geometry": about["geometry"]}


def _description(name: str, group: SealedGroup, table: dict[str, Any], about: dict[str, Any]) -> TableDescription:
    """What the group's arrays and attributes make; SealError where they do not belong together."""
    arrays = {name: group.read(name).reshape(array.shape) for name, array in group.arrays.items()}
    _check_shapes(arrays, table["state_order"]["kind"] == "array")
    order = _order(table["state_order"], arrays["partition_ptr"], arrays.pop("original_state", None))
    known = TableDescription(
        order=order,
        summary=TableSummary.restored(np.dtype(table["dtype"]), table, arrays),
        sense=table["sense"],
        partitioning=table["partitioning"],
        provenance=about["provenance"],
        geometry=about["geometry"],
        fingerprint=table["fingerprint"],
    )
    facts = known.facts(name)
    error = summary_error({**facts.attributes, **table}, arrays)
    if error is not None:
        raise SealError(f"it {error}")
    local = int((np.diff(facts.partition_ptr) + facts.partition_halo).max())
    if local - 1 > np.iinfo(table["successors"]).max:
        raise SealError(f"table: successors of type {table['successors']} cannot number {local} states of a partition")
    return known


def _check_shapes(arrays: Mapping[str, npt.NDArray[Any]], permuted: bool) -> None:
    """Refuse arrays of other names, types or shapes than the partitions and couplings ask for."""
    ends = {name: arrays.get(name, np.empty(0, np.int64)).reshape(-1) for name in ("partition_ptr", "coupling_ptr")}
    if any(ptr.size < 2 for ptr in ends.values()):
        raise SealError("partition_ptr or coupling_ptr is missing or empty")
    p, n, pairs = ends["partition_ptr"].size - 1, int(ends["partition_ptr"][-1]), int(ends["coupling_ptr"][-1])
    shapes: dict[str, tuple[int, ...]] = {
        "partition_ptr": (p + 1,),
        **dict.fromkeys(("partition_rows", "partition_transitions", "partition_halo", "max_successors"), (p,)),
        **dict.fromkeys(("reward_range", "duration_range", "row_sum_range"), (p, 2)),
        "coupling_ptr": (p + 1,),
        **dict.fromkeys(("coupling_partitions", "coupling_mass"), (pairs,)),
        "boundary": (-(-n // 8),),
        **({"original_state": (n,)} if permuted else {}),
    }
    check_names(arrays, shapes, "its arrays")
    for name, shape in shapes.items():
        dtype = "float64" if name in _FLOATS else "uint8" if name == "boundary" else "int64"
        if (arrays[name].dtype.name, arrays[name].shape) != (dtype, shape):
            raise SealError(
                f"{name} is {arrays[name].dtype.name} {arrays[name].shape}, it must be {dtype} {shape} in a table of "
                f"{n} states and {p} partitions"
            )


def _order(state_order: Mapping[str, Any], ptr: IntArray, original: IntArray | None) -> StateOrder:
    """The numbering of states that a store records; SealError where it is none, or not of these partitions."""
    order: StateOrder | None = None
    try:
        if original is not None:
            owner = np.full(original.size, -1, np.int64)
            owner[original] = np.repeat(np.arange(ptr.size - 1), np.diff(ptr))
            order = None if (owner < 0).any() else PermutedOrder(owner)
        elif state_order["kind"] == "grid":
            order = GridOrder.from_order(state_order, ptr)
        elif state_order["kind"] == "identity":
            order = IdentityOrder(ptr)
    except (OptionsError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise SealError(f"table: state_order is no order of the states ({error})") from error
    if order is None or order.state_order() != state_order or not np.array_equal(order.partition_ptr, ptr):
        raise SealError("table: state_order is not that of the partitions")
    return order
