"""Format "mdptoolbox": files of the transitions P and rewards R that pymdptoolbox takes.

    P   one S x S matrix per action: p(s'|s,a) = P[a][s, s'], every action in every state
    R   shape (S,): r(s);   (S, A): r(s,a);   (A, S, S) or one S x S matrix per action: r(s,a,s')
    V(s) = max_a { r(s,a) + gamma sum_s' P[a][s, s'] V(s') },    r(s,a) = sum_s' P[a][s, s'] R[a][s, s']

pymdptoolbox itself has no file format. This module reads its arrays as NumPy and SciPy write them:

    FILE.npz            numpy.savez(FILE, P=P, R=R) with dense P of shape (A, S, S)
    FOLDER/P.npy        numpy.save of the same P;    FOLDER/R.npy: R of any of the three shapes
    FOLDER/P0.npz ...   scipy.sparse.save_npz of each action's CSR matrix, with FOLDER/R.npy, or
    FOLDER/R0.npz ...   likewise, if rewards r(s,a,s') are sparse too

As in pymdptoolbox, every action is available in every state: a row of P that sums to 0 is an error. Matrices are read
forward, a block of states at a time; a compressed dense array is first copied to a temporary file, since a block needs
a part of each action's matrix.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import IO, Any

import numpy as np

from ooc_mdp.errors import InputError
from ooc_mdp.io.annotations import SourceAnnotations
from ooc_mdp.io.arrays.action_matrices import (
    CsrFile,
    DenseMatrix,
    Matrix,
    interleave_actions,
    lookup_rewards,
    sparse_shape,
)
from ooc_mdp.io.arrays.array_stream import ArrayStream, ZipArrays, open_npy, read_exactly, zip_names
from ooc_mdp.io.checked_rows import check_block
from ooc_mdp.io.files import open_file
from ooc_mdp.io.left_out import LeftOut
from ooc_mdp.io.raw_rows import RawRows
from ooc_mdp.io.source import BlockReader, ReadOptions, Source
from ooc_mdp.model.mdp import FloatArray

__all__ = ["MDPTOOLBOX", "MdptoolboxFormat", "MdptoolboxSource"]

_FILE = r"[PR](\.npy|(0|[1-9][0-9]{0,8})\.npz)"


class _Opened:
    """Matrices at their first row, and rewards in one of the three shapes."""

    def __init__(self, n_states: int, transitions: list[Matrix]) -> None:
        self.n_states = n_states
        self.transitions = transitions
        self.reward_matrices: list[Matrix] | None = None
        self.read_rewards: Callable[[int], FloatArray] | None = None
        """r(s) [count, 1] or r(s,a) [count, A] of the next `count` states."""


class MdptoolboxSource:
    """P and R as row blocks; every state has every action.

    Parameters
    ----------
    path : named in messages.
    options : normalize and segment_bytes are used.
    opened : opens the matrices again at their first rows; called once now and once for each call of `blocks`.
    files : closed by `close`.
    """

    format = "mdptoolbox"

    def __init__(self, path: str, options: ReadOptions, opened: Callable[[], _Opened], files: ExitStack) -> None:
        self.path = path
        self.left_out = LeftOut()
        self.annotations = SourceAnnotations()
        self._options = options
        self._opened = opened
        self._files = files
        self.n_states: int | None = opened().n_states

    def blocks(self) -> Iterator[BlockReader]:
        """Readers of blocks of about options.segment_bytes: arrays are read here, in order, rows are checked there."""
        opened = self._opened()
        n_actions = len(opened.transitions)
        matrices = opened.transitions + (opened.reward_matrices or [])
        limit = max(1, self._options.segment_bytes // (32 * len(matrices)))
        first = 0
        while first < opened.n_states:
            count = min(opened.n_states - first, max(1, limit // 2))
            count = min(matrix.rows_that_fit(count, limit) for matrix in matrices)
            raw = self._read_block(opened, count, n_actions)
            yield partial(
                check_block,
                self.path,
                first,
                raw,
                n_states=opened.n_states,
                normalize=self._options.normalize,
            )
            first += count

    def _read_block(self, opened: _Opened, count: int, n_actions: int) -> RawRows:
        parts = [matrix.rows(count) for matrix in opened.transitions]
        pointers, successors, probabilities = interleave_actions(parts, count)
        row_rewards = None
        transition_rewards = None
        if opened.reward_matrices is not None:
            rewards = []
            for part, matrix in zip(parts, opened.reward_matrices, strict=True):
                values = lookup_rewards(part, matrix.rows(count), opened.n_states)
                rewards.append((part[0], part[1], values))
            transition_rewards = interleave_actions(rewards, count)[2]
        elif opened.read_rewards is not None:
            row_rewards = np.broadcast_to(opened.read_rewards(count), (count, n_actions)).ravel()
        return RawRows(
            action_ptr=np.arange(count + 1, dtype=np.int64) * n_actions,
            successor_ptr=pointers,
            successors=successors,
            probabilities=probabilities,
            row_rewards=row_rewards,
            transition_rewards=transition_rewards,
        )

    def check_totals(self) -> None:
        """Do nothing: all shapes were compared when the arrays were opened."""

    def close(self) -> None:
        """Close all files."""
        self._files.close()


class _Folder:
    """The arrays of one model on disk; each call of `opened` reads them from the beginning."""

    def __init__(self, path: str, files: ExitStack) -> None:
        self.path = path
        self._files = files
        self._dense: dict[str, tuple[ArrayStream, IO[bytes], int]] = {}
        self._sparse: dict[str, list[ZipArrays]] = {"P": [], "R": []}
        self._open: Callable[[str], ArrayStream] = self._open_npy
        if os.path.isdir(path):
            self._find_files()
        else:
            archive = ZipArrays(path)
            files.callback(archive.close)
            self._open = archive.open
            for name in ("P", "R"):
                if not archive.has(name):
                    raise InputError(path, f"{name}.npy is missing; an archive for this format has P and R")
            archive.check_names(("P", "R"))
        self._measure()

    def _open_npy(self, name: str) -> ArrayStream:
        stream = open_npy(os.path.join(self.path, f"{name}.npy"))
        self._files.callback(stream.close)
        return stream

    def _find_files(self) -> None:
        names = set(os.listdir(self.path))
        for name in sorted(names):
            if name.lower().endswith((".npy", ".npz")) and not re.fullmatch(_FILE, name):
                raise InputError(
                    self.path,
                    f"holds {name[:80]!r}, which is not read: the arrays are P.npy or P0.npz, P1.npz, ... and R.npy or "
                    "R0.npz, R1.npz, ...; rename it or take it away",
                )
        for kind in ("P", "R"):
            numbers = sorted(int(m[1]) for n in names if (m := re.fullmatch(rf"{kind}([0-9]+)\.npz", n)))
            dense = f"{kind}.npy" in names
            if dense and numbers:
                raise InputError(self.path, f"holds both {kind}.npy and {kind}{numbers[0]}.npz; remove one")
            if not dense and not numbers:
                raise InputError(self.path, f"holds neither {kind}.npy nor {kind}0.npz, {kind}1.npz, ...")
            if numbers != list(range(len(numbers))):
                missing = next(i for i, number in enumerate(numbers) if i != number)
                raise InputError(self.path, f"{kind}{missing}.npz is missing; actions are numbered 0, 1, ...")
            for number in numbers:
                archive = ZipArrays(os.path.join(self.path, f"{kind}{number}.npz"))
                self._files.callback(archive.close)
                self._sparse[kind].append(archive)

    def _cube(self, name: str, stream: ArrayStream) -> None:
        """Make an (A, S, S) array readable in any order: in place, or from a temporary copy."""
        file: IO[bytes]
        if os.path.isdir(self.path):
            file, offset = open_file(stream.path), stream.offset
        else:
            file, offset = stream.to_temporary_file(), 0
        self._files.callback(file.close)
        self._dense[name] = (stream, file, offset)

    def _measure(self) -> None:
        """Set S and A, and check all shapes."""
        if self._sparse["P"]:
            self.n_actions = len(self._sparse["P"])
            self.n_states = sparse_shape(self._sparse["P"][0])[0]
        else:
            cube = self._open("P").require("fiu", 3)
            self.n_actions, self.n_states = cube.shape[0], cube.shape[2]
            if cube.shape[1] != cube.shape[2] or cube.count == 0:
                raise cube.error(
                    f"has shape {cube.shape}; P is (actions, states, states); from (states, states, actions) "
                    "make it with numpy.transpose(P, (2, 0, 1))"
                )
            self._cube("P", cube)
        s, a = self.n_states, self.n_actions
        for archive in self._sparse["P"] + self._sparse["R"]:
            shape = sparse_shape(archive)
            if shape != (s, s) or s == 0:
                raise InputError(archive.path, f"the matrix has shape {shape}; {s} states ask for ({s}, {s})")
        if self._sparse["R"]:
            if len(self._sparse["R"]) != a:
                raise InputError(self.path, f"has {a} files P and {len(self._sparse['R'])} files R")
            return
        rewards = self._open("R").require("fiu", 1, 2, 3)
        if rewards.shape not in ((s,), (s, a), (a, s, s)):
            raise rewards.error(
                f"R has shape {rewards.shape}; {s} states and {a} actions ask for ({s},), ({s}, {a}) or ({a}, {s}, {s})"
            )
        if len(rewards.shape) == 3:
            self._cube("R", rewards)

    def _matrices(self, name: str) -> list[Matrix]:
        if self._sparse[name]:
            return [CsrFile(archive, self.n_states) for archive in self._sparse[name]]
        stream, file, offset = self._dense[name]
        n_states, dtype = self.n_states, stream.dtype

        def read(action: int, first: int, count: int) -> np.ndarray[Any, Any]:
            start = (action * n_states + first) * n_states * dtype.itemsize
            file.seek(offset + start)
            values = read_exactly(stream.path, stream.name, file, count * n_states * dtype.itemsize)
            return np.frombuffer(values, dtype).reshape(count, n_states)

        return [DenseMatrix(n_states, partial(read, action)) for action in range(self.n_actions)]

    def opened(self) -> _Opened:
        """All arrays at their beginning."""
        result = _Opened(self.n_states, self._matrices("P"))
        if self._sparse["R"] or "R" in self._dense:
            result.reward_matrices = self._matrices("R")
            return result
        rewards = self._open("R")
        width = 1 if len(rewards.shape) == 1 else self.n_actions
        result.read_rewards = lambda count: rewards.read_floats(count * width).reshape(count, width)
        return result


class MdptoolboxFormat:
    """Format "mdptoolbox": P and R in a .npz, or a folder of .npy and SciPy files."""

    name = "mdptoolbox"
    description = "pymdptoolbox's P and R: .npz of dense arrays, or a folder with P.npy or P0.npz, ... and R"
    reward_options: tuple[str, ...] = ()

    def detect(self, source: str, head: bytes) -> bool:
        """Whether the source is a zip archive with P.npy, or a folder with P.npy or P0.npz."""
        if os.path.isdir(source):
            return any(os.path.isfile(os.path.join(source, name)) for name in ("P.npy", "P0.npz"))
        return head.startswith(b"PK\x03\x04") and "P.npy" in zip_names(source)

    def open(self, source: str, options: ReadOptions) -> Source:
        """Open the arrays; raises InputError for missing files and shapes that do not fit."""
        files = ExitStack()
        try:
            return MdptoolboxSource(source, options, _Folder(source, files).opened, files)
        except BaseException:
            files.close()
            raise


MDPTOOLBOX = MdptoolboxFormat()
