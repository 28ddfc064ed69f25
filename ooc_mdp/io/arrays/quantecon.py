"""Format "quantecon": the arrays of QuantEcon's DiscreteDP in one NumPy archive (numpy.savez).

    pairs     R [L], Q [L, n], s_indices [L], a_indices [L]    row i is that of s_indices[i], a_indices[i]
    product   R [n, A], Q [n, A, n]                            every state has every action
    V(s) = opt_a { r(s,a) + gamma sum_s' Q[s, a, s'] V(s') }

Pairs come in the order of their states, as QuantEcon keeps them. An action whose reward is -inf (inf for "min") is not
available, and its row of Q is not read; every state needs one that is. Q is read forward, a block of states at a time;
the indices and the rewards of all rows are held in memory.
Source: quantecon.markov.DiscreteDP.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from ooc_mdp.errors import InputError
from ooc_mdp.io.annotations import SourceAnnotations
from ooc_mdp.io.arrays.array_stream import ArrayStream, ZipArrays, zip_names
from ooc_mdp.io.arrays.in_memory import exact_floats
from ooc_mdp.io.block_memory import ENTRY_BYTES, check_block_memory
from ooc_mdp.io.checked_rows import check_block
from ooc_mdp.io.left_out import LeftOut
from ooc_mdp.io.raw_rows import RawRows
from ooc_mdp.io.source import BlockReader, ReadOptions, Source
from ooc_mdp.model.mdp import FloatArray, IntArray

__all__ = ["QUANTECON", "QuantEconFormat"]

_INDICES = ("s_indices", "a_indices")
_NAMES = ("R", "Q", *_INDICES)


class _QuantEconSource:
    """An open archive."""

    format = "quantecon"

    def __init__(self, path: str, options: ReadOptions) -> None:
        self.path = path
        self.left_out = LeftOut()
        self.annotations = SourceAnnotations()
        self._options = options
        self._archive = ZipArrays(path)
        try:
            self._open()
        except BaseException:
            self._archive.close()
            raise

    def _open(self) -> None:
        """Read indices and rewards, and compare all shapes."""
        archive = self._archive
        pairs = any(archive.has(name) for name in _INDICES)
        for name in _NAMES if pairs else _NAMES[:2]:
            if not archive.has(name):
                raise InputError(self.path, f"{name}.npy is missing: pairs are R, Q, s_indices and a_indices")
        archive.check_names(_NAMES)
        q = archive.open("Q").require("fiu", 2 if pairs else 3)
        if q.count == 0 or (not pairs and q.shape[0] != q.shape[2]):
            raise q.error(f"has shape {q.shape}; give (pairs, states), or (states, actions, states) without indices")
        n = q.shape[-1]
        self.n_states: int | None = n
        rewards = archive.open("R").require("fiu", len(q.shape) - 1)
        if rewards.shape != q.shape[:-1]:
            raise rewards.error(f"has shape {rewards.shape}; Q of shape {q.shape} asks for {q.shape[:-1]}")
        self._rewards = exact_floats(self.path, "R", rewards.read(rewards.count).reshape(rewards.shape)).ravel()
        if pairs:
            self._states, self._actions = (self._indices(name, rewards.count, n) for name in _INDICES)
        else:
            self._states, self._actions = (x.ravel() for x in np.indices(q.shape[:2]))
        self._ptr: IntArray = np.searchsorted(self._states, np.arange(n + 1))
        self._available = self._rewards != (-np.inf if self._options.sense == "max" else np.inf)
        counts = np.bincount(self._states[self._available], minlength=n)
        if not counts.all():
            state = int(np.argmin(counts))
            raise InputError(
                self.path,
                f"state {state} has no available action; QuantEcon's models have one in every state: let it stay in "
                f"{state} without reward where the process ends",
            )

    def _indices(self, name: str, count: int, n_states: int) -> IntArray:
        stream = self._archive.open(name).require("iu", 1)
        if stream.count != count:
            raise stream.error(f"has {stream.count} entries, but Q has {count} rows")
        values: IntArray = stream.read(count)
        below = n_states if name == "s_indices" else np.iinfo(np.int64).max
        wrong = np.flatnonzero((values < 0) | (values >= below))
        if wrong.size:
            i = int(wrong[0])
            raise stream.error(f"entry {i} is {values[i]}; numbers begin at 0, and Q has {n_states} states")
        if name == "s_indices" and (np.diff(values) < 0).any():
            i = int(np.argmax(np.diff(values) < 0)) + 1
            raise stream.error(
                f"entry {i} is {values[i]}, after {values[i - 1]}; sort R, Q and both indices by "
                "numpy.lexsort((a_indices, s_indices))"
            )
        return values

    def blocks(self) -> Iterator[BlockReader]:
        """Readers of blocks of about options.segment_bytes: arrays are read here, in order, rows are checked there."""
        q, ptr, n = self._archive.open("Q"), self._ptr, int(self._ptr.size - 1)
        rows = max(1, self._options.segment_bytes // (8 * n))
        first = 0
        while first < n:
            last = max(int(np.searchsorted(ptr, ptr[first] + rows, side="right")) - 1, first + 1)
            own = slice(int(ptr[first]), int(ptr[last]))
            check_block_memory(self.path, first, last - first, ENTRY_BYTES * (own.stop - own.start) * n)
            raw = self._read_block(q, first, last, own)
            yield partial(check_block, self.path, first, raw, n_states=n, normalize=self._options.normalize)
            first = last

    def _read_block(self, q: ArrayStream, first: int, last: int, own: slice) -> RawRows:
        """The available rows of the states first .. last-1."""
        n = int(self._ptr.size - 1)
        matrix: FloatArray = q.read_floats((own.stop - own.start) * n).reshape(-1, n)[self._available[own]]
        states = self._states[own][self._available[own]]
        row, successors = np.nonzero(matrix)
        return RawRows(
            action_ptr=_pointers(np.bincount(states - first, minlength=last - first)),
            successor_ptr=_pointers(np.bincount(row, minlength=matrix.shape[0])),
            successors=successors.astype(np.int64),
            probabilities=matrix[row, successors],
            row_rewards=self._rewards[own][self._available[own]],
            action_labels=self._actions[own][self._available[own]],
        )

    def check_totals(self) -> None:
        """Do nothing: all shapes were compared when the archive was opened."""

    def close(self) -> None:
        """Close the archive."""
        self._archive.close()


def _pointers(counts: IntArray) -> IntArray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


class QuantEconFormat:
    """Format "quantecon": R and Q, by pairs of states and actions or for all of them."""

    name = "quantecon"
    description = "NumPy archive (.npz) of QuantEcon's R and Q, with s_indices and a_indices or without"
    reward_options: tuple[str, ...] = ()

    def detect(self, source: str, head: bytes) -> bool:
        """Whether the source is a zip archive with a member Q.npy."""
        return head.startswith(b"PK\x03\x04") and "Q.npy" in zip_names(source)

    def open(self, source: str, options: ReadOptions) -> Source:
        """Open the archive; raises InputError on a missing, malformed or inconsistent member."""
        return _QuantEconSource(source, options)


QUANTECON = QuantEconFormat()
