"""Format "arrays": an MDP as CSR arrays in one NumPy archive (numpy.savez or numpy.savez_compressed).

n states, m rows (state, action), nnz transitions:

    state_ptr int [n+1]   rows of state s are state_ptr[s]:state_ptr[s+1], none for a terminal state
    indptr    int [m+1]   transitions of row j are indptr[j]:indptr[j+1]
    indices   int [nnz]   successor states               data float [nnz]   probabilities
    r_s [n], r_sa [m], r_sas [nnz]   rewards, each optional
    row_label int [m]   the source's action numbers, optional      durations [m]   tau(s,a), optional

    V(s) = r_s(s) + opt_a { r_sa(s,a) + sum_s' p(s'|s,a) [ r_sas(s,a,s') + gamma**tau V(s') ] },
    V(s) = r_s(s) where s has no action.

Every member stays an open stream from which blocks of states are read, so that memory is that of a few blocks.
A member under any other name is an error: it would be left out of the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from ooc_mdp.errors import InputError
from ooc_mdp.io.annotations import SourceAnnotations
from ooc_mdp.io.arrays.array_stream import ArrayStream, ZipArrays, zip_names
from ooc_mdp.io.arrays.pointer_stream import PointerStream, segments
from ooc_mdp.io.checked_rows import check_block
from ooc_mdp.io.left_out import LeftOut
from ooc_mdp.io.raw_rows import RawRows
from ooc_mdp.io.source import BlockReader, ReadOptions, Source
from ooc_mdp.model.mdp import IntArray

__all__ = ["ARRAYS", "ArraysFormat"]

_NAMES = ("state_ptr", "indptr", "indices", "data", "r_s", "r_sa", "r_sas", "row_label", "durations")


@dataclass(frozen=True, slots=True)
class _Members:
    """The members at their beginnings; of pointer arrays the first pointer has been read."""

    states: PointerStream
    rows: PointerStream
    indices: ArrayStream
    data: ArrayStream
    r_s: ArrayStream | None
    r_sa: ArrayStream | None
    r_sas: ArrayStream | None
    durations: ArrayStream | None
    row_label: ArrayStream | None


def _required(archive: ZipArrays, name: str, kinds: str) -> ArrayStream:
    if not archive.has(name):
        there = ", ".join(sorted(archive.members)[:8]) or "nothing"
        raise InputError(
            archive.path,
            f"{name}.npy is missing: an archive of arrays holds state_ptr, indptr, indices and data, this one {there}",
        )
    return archive.open(name).require(kinds, 1)


def _sized(stream: ArrayStream, count: int, like: str) -> ArrayStream:
    if stream.count != count:
        raise stream.error(f"has {stream.count} entries, but {like} asks for {count}")
    return stream


def _open_members(archive: ZipArrays) -> _Members:
    """Open all members and compare their sizes."""
    path = archive.path
    archive.check_names(_NAMES)
    state_ptr = _required(archive, "state_ptr", "iu")
    indptr = _required(archive, "indptr", "iu")
    indices = _required(archive, "indices", "iu")
    data = _sized(_required(archive, "data", "f"), indices.count, "indices.npy")
    if state_ptr.count < 2:
        raise state_ptr.error(f"has {state_ptr.count} entries; a model of n states has n + 1 and n > 0")
    rows = PointerStream(path, indptr, indices.count, "entries in indices.npy")
    states = PointerStream(path, state_ptr, rows.n_segments, "rows in indptr.npy")

    def optional(name: str, kinds: str, count: int, like: str) -> ArrayStream | None:
        if not archive.has(name):
            return None
        return _sized(archive.open(name).require(kinds, 1), count, like)

    return _Members(
        states=states,
        rows=rows,
        indices=indices,
        data=data,
        r_s=optional("r_s", "fiu", states.n_segments, "state_ptr.npy"),
        r_sa=optional("r_sa", "fiu", rows.n_segments, "indptr.npy"),
        r_sas=optional("r_sas", "fiu", indices.count, "indices.npy"),
        durations=optional("durations", "fiu", rows.n_segments, "indptr.npy"),
        row_label=optional("row_label", "iu", rows.n_segments, "indptr.npy"),
    )


class _ArraysSource:
    """An open archive of arrays."""

    format = "arrays"

    def __init__(self, path: str, options: ReadOptions) -> None:
        self.path = path
        self.left_out = LeftOut()
        self.annotations = SourceAnnotations()
        self._options = options
        self._archive = ZipArrays(path)
        try:
            self.n_states: int | None = _open_members(self._archive).states.n_segments
        except BaseException:
            self._archive.close()
            raise

    def blocks(self) -> Iterator[BlockReader]:
        """Readers of blocks of about options.segment_bytes: arrays are read here, in order, rows are checked there."""
        members = _open_members(self._archive)
        n_states = members.states.n_segments
        for first, states, rows in segments(members.states, members.rows, self._options.segment_bytes):
            yield partial(
                check_block,
                self.path,
                first,
                self._read_block(members, states, rows),
                n_states=n_states,
                normalize=self._options.normalize,
            )

    def _read_block(self, members: _Members, states: IntArray, rows: IntArray) -> RawRows:
        """The rows of the next states.size - 1 states."""
        n, m = states.size - 1, rows.size - 1
        lengths = np.diff(rows)
        if lengths.max(initial=0) > members.states.n_segments:
            row = int(np.argmax(lengths))
            raise InputError(
                self.path,
                f"indptr.npy: row {int(states[0]) + row} has {lengths[row]} transitions, more than the "
                f"{members.states.n_segments} states; add up those to the same successor",
            )
        nnz = int(rows[-1] - rows[0])
        action_ptr = states - states[0]
        rewards = members.r_sa.read_floats(m) if members.r_sa else None
        terminal = members.r_s.read_floats(n) if members.r_s else None
        if terminal is not None:
            paid = np.repeat(terminal, np.diff(action_ptr))
            rewards = paid if rewards is None else rewards + paid
        return RawRows(
            action_ptr=action_ptr,
            successor_ptr=rows - rows[0],
            successors=members.indices.read(nnz),
            probabilities=members.data.read_floats(nnz),
            row_rewards=rewards,
            transition_rewards=members.r_sas.read_floats(nnz) if members.r_sas else None,
            terminal_rewards=terminal,
            durations=members.durations.read_floats(m) if members.durations else None,
            action_labels=members.row_label.read(m) if members.row_label else None,
        )

    def check_totals(self) -> None:
        """Do nothing: every count was compared while the blocks were read."""

    def close(self) -> None:
        """Close the archive."""
        self._archive.close()


class ArraysFormat:
    """Format "arrays": a .npz of CSR arrays, read in bounded memory."""

    name = "arrays"
    description = "NumPy archive (.npz) of state_ptr, indptr, indices, data and rewards"
    reward_options: tuple[str, ...] = ()

    def detect(self, source: str, head: bytes) -> bool:
        """Whether the source is a zip archive with a member state_ptr.npy."""
        return head.startswith(b"PK\x03\x04") and "state_ptr.npy" in zip_names(source)

    def open(self, source: str, options: ReadOptions) -> Source:
        """Open the archive; raises InputError on a missing, malformed or inconsistent member."""
        return _ArraysSource(source, options)


ARRAYS = ArraysFormat()
