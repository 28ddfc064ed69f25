"""A policy's rows on the devices of a group: where they lie, their improvement, and what evaluations report of them.

Rows lie in the devices' memory, divided among them (`parts.py`), or in page-locked memory of the host that kernels
read where they would not fit. Nothing here knows tables or tiles: `policy/improve.cu` writes the rows. How kernels are
launched is in `launches.py`, when an evaluation sweeps and when it solves in `evaluation.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.base import Backups, Evaluation, Improvement
from ooc_mdp.backends.cuda.device import Stream
from ooc_mdp.backends.cuda.driver import address_of
from ooc_mdp.backends.cuda.group import DeviceGroup
from ooc_mdp.backends.cuda.layout import aligned, numbers_of_encoded
from ooc_mdp.backends.cuda.policy.evaluation import DeviceEvaluation, EvaluationOptions
from ooc_mdp.backends.cuda.policy.launches import DISCOUNTED, Equation, RowLaunches
from ooc_mdp.backends.cuda.policy.layout import (
    IMPROVED,
    RESULTS,
    ROWS,
    VECTORS,
    RowSizes,
    chunks_of,
    descriptors_of,
    parts_of_rows,
    total_of,
)
from ooc_mdp.errors import MemoryBudgetError, OptionsError
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.options import format_bytes

__all__ = ["IMPROVE_KERNELS", "DeviceRows", "EvaluationOptions"]

IMPROVE_KERNELS = ("back_up_tiles", "take_backups", "improve_tiles")
"""Of policy/improve.cu, which is compiled with the kernels of tiles."""
_FRESH, _VALID = 1 << 31, 1 << 30
"""Flags in the number of a partition."""
Launch = Callable[[int, IntArray, np.uint64, np.uint64], None]
"""A kernel over partitions on a device: its place in the group, the partitions' places among those that were given, and
the addresses of their numbers with flags, and of results."""


class DeviceRows:
    """Rows of all partitions on a group of devices.

    Parameters
    ----------
    group, streams : where they lie; what clears and fills them, one of each device.
    facts : sizes, discount and row sums.
    room : bytes of each device's memory that may be taken; None for what is free.
    first : int64 [P]; first state of each partition as the devices number them; None as the store does.
    equation : of the policy's values.

    Raises
    ------
    OptionsError : there are 2**32 states or more.
    MemoryBudgetError : even the workspace finds no room.
    """

    def __init__(
        self,
        group: DeviceGroup,
        streams: Sequence[Stream],
        facts: ModelFacts,
        room: int | None = None,
        first: IntArray | None = None,
        equation: Equation = DISCOUNTED,
    ) -> None:
        if facts.n_states >= 1 << 32:
            raise OptionsError(
                f"a device keeps rows of fewer than 2^32 states, not of {facts.n_states}; use --method p-eva"
            )
        self._group, self._streams, self._facts = group, tuple(streams), facts
        self._parts = parts_of_rows(facts, first, len(group))
        self._descriptors = descriptors_of(facts, self._parts)
        self.options = EvaluationOptions()
        self.launches = RowLaunches(group, self._streams, facts, equation)
        sizes = RowSizes.of(facts, self._parts, self.launches.most_blocks, group.page)
        free = min(group.memory_free())
        room = free if room is None else min(room, free)
        placed = sizes.placed(room)
        if placed is None:
            least = sizes.on_device(False, False)
            raise MemoryBudgetError(
                f"evaluations of a policy of {facts.n_states} states take {format_bytes(least)} on {group.name} "
                f"beside rows in the host's memory, {format_bytes(max(room, 0))} are left for them; lower --cache by "
                f"{least - room} or use --method p-eva"
            )
        self.on_device, self.solves = placed
        self._work: tuple[int, ...] = ()
        self._spread: dict[str, int] = {}
        self._pinned: list[npt.NDArray[np.uint8]] = []
        self.at: dict[str, int] = {}
        """Addresses by name of what all devices share."""
        self._own: list[dict[str, int]] = []
        """Addresses by name of what each device has for itself."""
        self._allocate(sizes)
        partitions = facts.n_partitions
        self.valid = np.zeros(partitions, np.bool_)
        """bool [P]; whether a partition has rows."""
        self.outdated = np.zeros(partitions, np.bool_)
        """bool [P]; whether a partition's policy may have changed since its rows were written."""
        self._listed = np.zeros(partitions, np.bool_)
        self._batch = group.devices[0].pinned(4 * partitions).view(np.uint32)
        self._improved = group.devices[0].pinned(8 * IMPROVED * partitions).view(np.uint64).reshape(-1, IMPROVED)
        results = group.devices[0].pinned(8 * RESULTS * partitions * len(group)).view(np.uint64)
        self._results = results.reshape(len(group), partitions, RESULTS)
        self._fill_structures()
        self._fill_memory(sizes)

    @staticmethod
    def nbytes(facts: ModelFacts, devices: int = 1, page: int = 1, first: IntArray | None = None) -> int:
        """Bytes of rows and of all that evaluations take, where it lies on devices, on the one that has most of them.

        Parameters
        ----------
        devices, page : of a group: how many, and the bytes of whose multiples their parts consist.
        first : int64 [P]; first state of each partition as the devices number them; None as the store does.
        """
        return RowSizes.of(facts, parts_of_rows(facts, first, devices), page=page).on_device(True, True)

    @staticmethod
    def placed(
        facts: ModelFacts, room: int, devices: int = 1, page: int = 1, first: IntArray | None = None
    ) -> tuple[int, int]:
        """Bytes on the device that has most of them, and page-locked ones of the host, where each has so much room.

        What must lie on the devices may take more than that. The other parameters are those of :meth:`nbytes`.
        """
        sizes = RowSizes.of(facts, parts_of_rows(facts, first, devices), page=page)
        on_device, solves = sizes.placed(room) or (False, False)
        return sizes.on_device(on_device, solves), 0 if on_device else total_of(sizes.in_host())

    def _allocate(self, sizes: RowSizes) -> None:
        """All memory, and its addresses."""
        try:
            self._work = self._group.allocate_each(total_of(sizes.work))
            self._spread = self._group.allocate_arrays(sizes.spread(self.on_device, self.solves))
            self.at |= self._spread
            for name, size in {} if self.on_device else sizes.in_host().items():
                self._pinned.append(self._group.devices[0].pinned(size))
                self.at[name] = address_of(self._pinned[-1])
        except MemoryError as error:
            self.close()
            where = "the host's page-locked memory" if self.at else self._group.name
            raise MemoryBudgetError(
                f"{where} has no room for a policy's rows ({format_bytes(total_of(sizes.in_host()))}) or their "
                f"evaluation ({format_bytes(sizes.on_device(False, self.solves))}); lower --cache or use --method p-eva"
            ) from error
        for base in self._work:
            own: dict[str, int] = {}
            for name, size in sizes.work.items():
                own[name] = base
                base += aligned(size)
            self._own.append(own)

    def _fill_structures(self) -> None:
        """What kernels are given."""
        self.rows = [np.zeros((), ROWS) for _ in self._own]
        """The structure PolicyRows of each device, for kernels that write rows."""
        for member, (own, rows) in enumerate(zip(self._own, self.rows, strict=True)):
            at = {**self.at, **own}
            for name in ROWS.names or ():
                rows[name] = at[name]
            evaluation = self.launches.evaluations[member]
            evaluation["rows"] = rows
            names = ("chunks", "start", "progress", "partials", "ticket", "row_sums", "results")
            for name in (*names, *VECTORS):
                evaluation[name] = at.get(name, 0)
            evaluation["member"], evaluation["discount"] = member, self._facts.discount
            evaluation["progress_of"] = [of["progress"] for of in self._own]
            evaluation["sums_of"] = [of["sums"] for of in self._own]

    def _fill_memory(self, sizes: RowSizes) -> None:
        row_sums = np.ascontiguousarray(self._facts.row_sums)
        for own, stream in zip(self._own, self._streams, strict=True):
            stream.upload(own["descriptors"], self._descriptors)
            stream.upload(own["row_sums"], row_sums)
            stream.clear(own["ticket"], sizes.work["ticket"])
        for name in ("p", "r") if self.solves else ():  # partitions without rows stay at 0
            self._group.clear(self._streams, self.at[name], sizes.vectors[name][-1])
        self.launches.wait()

    def close(self) -> None:
        """Free them."""
        self.launches.wait()
        self._group.free_each(self._work)
        self._group.free_arrays(self._spread)
        self._work, self._spread, self._pinned = (), {}, []

    # ------------------------------------------------------------------------------------------------ improvement

    def improve(
        self,
        partitions: IntArray,
        fresh: npt.NDArray[np.bool_],
        launch: Launch,
        members: IntArray,
    ) -> Improvement:
        """Have partitions improved, each device its own.

        Parameters
        ----------
        fresh : bool [k]; whether states of a partition have no actions yet.
        members : int64 [k]; places in the group of the devices that have the partitions.
        """
        flags = np.where(fresh, _FRESH, 0) | np.where(self.valid[partitions] & ~self.outdated[partitions], _VALID, 0)
        found = self._over(partitions | flags, members, (launch,))
        self.valid[partitions] = True
        self.outdated[partitions] = False
        return Improvement(numbers_of_encoded(found[:, :4].T), found[:, 4].astype(np.int64))

    def back_up(self, partitions: IntArray, launches: Sequence[Launch], members: IntArray) -> Backups:
        """Have partitions backed up, each device its own.

        Parameters
        ----------
        launches : one after the other; all devices have done each before the next begins.
        members : as in :meth:`improve`.
        """
        found = self._over(partitions, members, launches)
        rise, fall, largest, smallest = numbers_of_encoded(found[:, :4].T)
        return Backups(rise, fall, largest, -smallest)

    def _over(self, numbers: IntArray, members: IntArray, launches: Sequence[Launch]) -> npt.NDArray[np.uint64]:
        """uint64 [k, IMPROVED]: what launches over partitions, given as numbers with flags, have found of each."""
        order = np.argsort(members, kind="stable")
        self._batch[: order.size] = numbers[order]
        ends = np.cumsum(np.bincount(members, minlength=len(self._own))).tolist()
        shares = [
            (member, slice(begin, end), self._own[member], self._streams[member])
            for member, (begin, end) in enumerate(pairwise([0, *ends]))
            if begin < end
        ]
        for _, share, own, stream in shares:
            stream.upload(own["batch"], self._batch[share])
            stream.clear(own["improved"], self._improved[share].nbytes)
        for launch in launches:
            self._group.meet(self._streams)
            for member, share, own, _ in shares:
                launch(member, order[share], np.uint64(own["batch"]), np.uint64(own["improved"]))
        for _, share, own, stream in shares:
            stream.download(self._improved[share], own["improved"])
        self.launches.wait()
        found = np.empty_like(self._improved[: order.size])
        found[order] = self._improved[: order.size]
        return found

    # ------------------------------------------------------------------------------------------------- evaluation

    def evaluation(self, values: int, limit: float, most: int, changed: Callable[[], None]) -> DeviceEvaluation:
        """See :class:`ooc_mdp.backends.base.PolicyRows`.

        Parameters
        ----------
        values : address of the value vector, which is spread over the devices.
        changed : called whenever values may have changed.
        """
        self.begin(values)
        return DeviceEvaluation(self, limit, most if self.valid.any() else 0, changed)

    def begin(self, values: int) -> None:
        """What is launched from now on is about the value vector at an address, and all rows that are valid now."""
        if any(evaluation["values"] != values for evaluation in self.launches.evaluations):
            for evaluation in self.launches.evaluations:
                evaluation["values"] = values
            self.launches.forget_graphs()
        self._list_chunks()
        self.begin_changes()

    def begin_changes(self) -> None:
        """Changes are reported against the values as they are now."""
        values = int(self.launches.evaluations[0]["values"])
        self._group.meet(self._streams)
        self._group.copy(self._streams, self.at["start"], values, self.value_bytes)

    def report(self, sweeps: int) -> Evaluation:
        """Measure all that has rows, after so many sweeps or products."""
        rise, fall, *measured, second_best, largest, smallest = self.measured()
        states = int(np.diff(self._facts.partition_ptr)[self.valid].sum())
        return Evaluation(sweeps * states, rise, fall, np.array(measured), second_best, largest, -smallest)

    def measured(self) -> FloatArray:
        """float64 [RESULTS, P]; what the equation's kernel measures, 0 for partitions without rows."""
        for own, stream, results in zip(self._own, self._streams, self._results, strict=True):
            stream.clear(own["results"], results.nbytes)
        if self.valid.any():
            self.launches.measure()
        for own, stream, results in zip(self._own, self._streams, self._results, strict=True):
            stream.download(results, own["results"])
        self.launches.wait()
        return np.where(self.valid, numbers_of_encoded(self._results.max(axis=0).T), 0.0)

    @property
    def value_bytes(self) -> int:
        """Of the value vector."""
        return 8 * self._facts.n_states

    def _list_chunks(self) -> None:
        """The chunks of all partitions with rows, each device's in its list."""
        if np.array_equal(self._listed, self.valid):
            return
        chunks, ptr = chunks_of(self._facts, self.valid, self._descriptors, self._parts)
        for member, (own, stream) in enumerate(zip(self._own, self._streams, strict=True)):
            begin, end = ptr[member : member + 2].tolist()
            stream.upload(own["chunks"], chunks[begin:end])
            self.launches.evaluations[member]["count"] = end - begin
        self.launches.wait()
        self.launches.forget_graphs()
        self._listed[:] = self.valid

    def rounding(self, size: float) -> float:
        """Change below which sweeps of values up to `size` are nothing but rounding."""
        return (int(self._descriptors["width"].max()) + 4) * 2.0**-53 * size
