"""Models as NumPy arrays with one member altered, and what the altered arrays say: .npz archives and folders.

An alteration changes a number, a type, a name, a shape, or which members there are; what the arrays then say is
computed from them one number at a time.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import scipy.sparse as sparse
from exact_rows import Entry, Exact, Invalid, Row, random_model, ranges, rational, reward_of, row
from text_models import Model

__all__ = [
    "ArraysMaker",
    "Made",
    "MdptoolboxMaker",
    "Members",
    "alter_members",
    "flat_arrays",
    "number_array",
    "number_column",
    "save_members",
]

Members = dict[str, Any]
Made = tuple[str, dict[str, Any], Callable[[], Exact]]
_NUMBERS = (0, 1, 2, 3, 4, 5, -1, 7, 0.25, 0.5, 0.75, 1.5, 1e-320, 2**40, float("nan"), float("inf"), -0.0)
_TYPES = ("<i4", "<f8", "<f4", ">f8", ">i8", "<u8", "<u1", "<f2", "?", "<c16", "<U4", "S3", "<M8[s]", "longdouble")
_NAMES = (
    "rewards",
    "R",
    "r",
    "r_s",
    "r_sa",
    "r_sas",
    "r_SA",
    "durations",
    "row_label",
    "P",
    "data",
    "indptr",
    "Data",
    "x",
)


def flat_arrays(model: Model) -> Members:
    """The CSR arrays of a model, with rewards of transitions and states."""
    rows = [action for state in model.rows for action in state]
    entries = [(t, p, r) for action in rows for t, (p, r) in action.items()]
    return {
        "state_ptr": np.cumsum([0, *(len(state) for state in model.rows)]),
        "indptr": np.cumsum([0, *(len(action) for action in rows)]),
        "indices": np.array([t for t, _, _ in entries], np.int64),
        "data": np.array([p for _, p, _ in entries], np.float64),
        "r_sas": np.array([r for _, _, r in entries], np.float64),
        "r_s": np.array(model.state_rewards, np.float64),
    }


def alter_members(rng: Random, members: Members, names: Iterable[str] = _NAMES) -> Members:
    """The members with one of them altered, left out, renamed, or another added."""
    members = dict(members)
    name = rng.choice(list(members))
    array = members[name]
    match rng.choice("vvvvvvttdnnaascp"):
        case "v" if array.size:
            flat = array.copy().reshape(-1)
            value = rng.choice((*_NUMBERS, *flat.tolist()))
            try:
                flat[rng.randrange(flat.size)] = value
            except (ValueError, OverflowError):
                flat[rng.randrange(flat.size)] = 0
            members[name] = flat.reshape(array.shape)
        case "t":
            with np.errstate(all="ignore"):
                members[name] = _as_type(array, rng.choice(_TYPES))
        case "d":
            del members[name]
        case "n":
            members[rng.choice(list(names))] = members.pop(name)
        case "a":
            members[rng.choice(list(names))] = array.copy()
        case "s" if array.ndim:
            members[name] = array[:-1] if rng.random() < 0.5 else np.concatenate([array, array[-1:]])
        case "c":
            members[name] = rng.choice((array.reshape(1, *array.shape), array[..., None], array.reshape(-1)))
        case "p" if array.ndim:
            members[name] = array[::-1].copy()
    return members


def _as_type(array: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    try:
        return array.astype(name)
    except (ValueError, TypeError):
        return array.astype("S8")


def save_members(path: Path, members: Members) -> None:
    """Write an archive of arrays, whatever their types."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in members.items():
            data = io.BytesIO()
            np.lib.format.write_array(data, np.asanyarray(array), allow_pickle=False)
            archive.writestr(f"{name}.npy", data.getvalue())


def number_column(members: Members, name: str, kinds: str) -> list[Any]:
    """The numbers of a one-dimensional array."""
    array = members[name]
    if array.ndim != 1 or array.dtype.kind not in kinds or array.dtype.itemsize > 8:
        raise Invalid(f"{name} is {array.dtype} {array.shape}")
    return list(array.tolist())


def _arrays_meaning(members: Members) -> Exact:
    known = {"state_ptr", "indptr", "indices", "data", "r_s", "r_sa", "r_sas", "row_label", "durations"}
    if not {"state_ptr", "indptr", "indices", "data"} <= set(members) <= known:
        raise Invalid(f"members {sorted(members)}")
    indices, data = number_column(members, "indices", "iu"), number_column(members, "data", "f")
    rows = ranges(number_column(members, "indptr", "iu"), len(indices))
    states = ranges(number_column(members, "state_ptr", "iu"), len(rows))

    def optional(name: str, kinds: str, count: int, default: Any) -> list[Any]:
        values = number_column(members, name, kinds) if name in members else [default] * count
        if len(values) != count:
            raise Invalid(f"{name} has {len(values)} entries, not {count}")
        return values

    n = len(states)
    r_s, r_sa = optional("r_s", "fiu", n, 0.0), optional("r_sa", "fiu", len(rows), 0.0)
    r_sas = optional("r_sas", "fiu", len(indices), 0.0)
    durations = optional("durations", "fiu", len(rows), 1.0)
    labels = optional("row_label", "iu", len(rows), None)
    if n < 1 or len(data) != len(indices):
        raise Invalid("no state, or other probabilities than successors")

    def one(s: int, j: int) -> Row:
        entries = [Entry(indices[k], rational(data[k]), reward_of(r_sas[k])) for k in rows[j]]
        label = j - states[s].start if labels[j] is None else labels[j]
        return row(entries, n, rational(r_s[s]) + rational(r_sa[j]), label, rational(durations[j]))

    exact = Exact([[one(s, j) for j in state] for s, state in enumerate(states)])
    if any(len({r.label for r in state}) < len(state) for state in exact.rows):
        raise Invalid("an action number twice")
    exact.terminal = {s: rational(r_s[s]) for s in range(n) if not exact.rows[s]}
    return exact


class ArraysMaker:
    """Archives of CSR arrays."""

    name = "arrays"

    def make(self, rng: Random, folder: Path, altered: bool) -> Made:
        """Write a model into a folder: the source, the options for reading it, and what says its meaning."""
        model = random_model(rng)
        members = flat_arrays(model)
        n_rows = members["indptr"].size - 1
        if rng.random() < 0.5:
            members["r_sa"] = np.array([rng.choice((0, 1, 5, -2)) for _ in range(n_rows)], rng.choice(("<f8", "<i4")))
        if rng.random() < 0.5:
            members["row_label"] = np.array([label for labels in model.labels for label in labels], np.int64)
        if rng.random() < 0.3:
            members["durations"] = np.array([rng.choice((0.5, 1.0, 2.0)) for _ in range(n_rows)])
        if altered:
            members = alter_members(rng, members)
        save_members(folder / "m.npz", members)
        return str(folder / "m.npz"), {}, lambda: _arrays_meaning(members)


def _dense(model: Model) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    n, actions = len(model.rows), len(model.rows[0])
    p, r = np.zeros((actions, n, n)), np.zeros((actions, n, n))
    for s, state in enumerate(model.rows):
        for a, action in enumerate(state):
            for t, (probability, reward) in action.items():
                p[a, s, t], r[a, s, t] = probability, reward
    return p, r


def number_array(array: Any) -> np.ndarray[Any, Any]:
    """An array of integers or floats up to float64."""
    if array.dtype.kind not in "fiu" or array.dtype.itemsize > 8:
        raise Invalid(f"dtype {array.dtype}")
    return np.asarray(array)


def _matrix_meaning(transitions: Any, rewards: Any) -> Exact:
    """P [A, S, S] of numbers, and R of one of the three shapes."""
    p, r = number_array(transitions), number_array(rewards)
    if p.ndim != 3 or p.shape[1] != p.shape[2] or p.size == 0:
        raise Invalid(f"P has shape {p.shape}")
    a, n, _ = p.shape
    if r.shape not in ((n,), (n, a), (a, n, n)):
        raise Invalid(f"R has shape {r.shape}")

    def one(s: int, action: int) -> Row:
        of_transition = r[action, s].tolist() if r.ndim == 3 else [0] * n
        own = 0 if r.ndim == 3 else (r[s] if r.ndim == 1 else r[s, action]).item()
        weights = p[action, s].tolist()
        entries = [Entry(t, rational(weights[t]), reward_of(of_transition[t])) for t in range(n) if weights[t] != 0]
        return row(entries, n, rational(own), action)

    return Exact([[one(s, action) for action in range(a)] for s in range(n)])


def _sparse_matrix(members: Members) -> np.ndarray[Any, Any]:
    """The matrix that scipy.sparse.save_npz wrote, as float64 [S, S]."""
    if set(members) - {"_is_array"} != {"format", "shape", "indptr", "indices", "data"}:
        raise Invalid(f"members {sorted(members)}")
    word, shape = members["format"], members["shape"]
    if word.dtype.kind != "S" or word.ndim or word.item() != b"csr":
        raise Invalid("no CSR matrix")
    rows, columns = (
        (int(extent) for extent in number_column({"s": shape}, "s", "iu")[:2]) if shape.size == 2 else (0, 0)
    )
    indices, data = number_column(members, "indices", "iu"), number_column(members, "data", "fiu")
    pointers = ranges(number_column(members, "indptr", "iu"), len(indices))
    if rows < 1 or rows > 9 or rows != columns or len(pointers) != rows or len(data) != len(indices):
        raise Invalid("sizes")
    dense = np.zeros((rows, columns))
    for s, span in enumerate(pointers):
        for k in span:
            if not 0 <= indices[k] < columns:
                raise Invalid("a column")
            dense[s, indices[k]] += data[k]
    return dense


class MdptoolboxMaker:
    """P and R in an archive, in a folder of arrays, and in a folder of sparse matrices."""

    name = "mdptoolbox"

    def make(self, rng: Random, folder: Path, altered: bool) -> Made:
        """Write a model into a folder: the source, the options for reading it, and what says its meaning."""
        model = random_model(rng, actions=rng.randint(1, 2))
        p, r = _dense(model)
        shape = rng.choice((1, 2, 3))
        if shape < 3:
            r = np.array([rng.choice((0, 1.5, -2)) for _ in range(r[0].shape[0] * (1 if shape == 1 else r.shape[0]))])
            r = r if shape == 1 else r.reshape(p.shape[1], p.shape[0])
        forms = (self._archive, self._dense_folder, self._sparse_folder)
        return rng.choice(forms)(rng, folder, altered, {"P": p, "R": r})

    def _archive(self, rng: Random, folder: Path, altered: bool, members: Members) -> Made:
        if altered:
            members = alter_members(rng, members, ("P", "R", "r", "rewards", "state_ptr"))
        save_members(folder / "m.npz", members)
        return str(folder / "m.npz"), {}, lambda: self._meaning(members)

    def _dense_folder(self, rng: Random, folder: Path, altered: bool, members: Members) -> Made:
        if altered:
            members = alter_members(rng, members, ("P", "R", "r", "rewards", "P0"))
        for name, array in members.items():
            np.save(folder / f"{name}.npy", array)
        return str(folder), {}, lambda: self._meaning(members)

    def _meaning(self, members: Members) -> Exact:
        if set(members) != {"P", "R"}:
            raise Invalid(f"members {sorted(members)}")
        return _matrix_meaning(members["P"], members["R"])

    def _sparse_folder(self, rng: Random, folder: Path, altered: bool, members: Members) -> Made:
        files: dict[str, Members] = {}
        for kind in "PR" if members["R"].ndim == 3 else "P":
            for action, matrix in enumerate(members[kind]):
                held = sparse.csr_array(matrix) if rng.random() < 0.5 else sparse.csr_matrix(matrix)
                path = folder / f"{kind}{action}.npz"
                sparse.save_npz(path, held, compressed=False)
                with np.load(path) as arrays:
                    files[path.stem] = dict(arrays)
        kept = members["R"] if members["R"].ndim < 3 else None
        if kept is not None:
            np.save(folder / "R.npy", kept)
        if altered:
            chosen = rng.choice(list(files))
            files[chosen] = alter_members(rng, files[chosen], ("data", "diagonal", "indices", "offsets"))
            save_members(folder / f"{chosen}.npz", files[chosen])
            if rng.random() < 0.1:
                names = {"P1.npz", "R0.npz", "P00.npz", "P.npz", "p0.npz"} - {f"{chosen}.npz"}
                (folder / f"{chosen}.npz").rename(folder / rng.choice(sorted(names)))
                return str(folder), {}, self._renamed

        def meaning() -> Exact:
            p, r = ([_sparse_matrix(files[name]) for name in sorted(files) if name[0] == kind] for kind in "PR")
            if len({matrix.shape for matrix in p + r}) != 1:
                raise Invalid("shapes that differ")
            return _matrix_meaning(np.array(p), np.array(r) if kept is None else kept)

        return str(folder), {}, meaning

    def _renamed(self) -> Exact:
        raise Invalid("a file is missing, replaced or of no known name")
