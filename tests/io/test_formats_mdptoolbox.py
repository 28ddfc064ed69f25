"""P and R of pymdptoolbox, from files and from Python."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sparse
from format_checks import SIZES, read, refusal, rows_of, value_iteration
from paths import PUBLIC

from ooc_mdp.errors import InputError
from ooc_mdp.io.arrays.mdptoolbox import MDPTOOLBOX
from ooc_mdp.io.arrays.memory import ArrayModel, open_arrays
from ooc_mdp.io.source import ReadOptions

_GENERATOR = np.random.default_rng(20)
S, A = 6, 3
P = _GENERATOR.random((A, S, S)) * (_GENERATOR.random((A, S, S)) < 0.5)
P[:, :, 0] += 0.1
P /= P.sum(axis=2, keepdims=True)
REWARDS = {
    "of states": _GENERATOR.normal(size=S),
    "of states and actions": _GENERATOR.normal(size=(S, A)),
    "of transitions": _GENERATOR.normal(size=(A, S, S)) * (_GENERATOR.random((A, S, S)) < 0.7),
}


def pymdptoolbox_reward(rewards: np.ndarray) -> np.ndarray:
    """r(s,a) as pymdptoolbox computes it, in rows (s,a)."""
    if rewards.ndim == 1:
        return np.repeat(rewards, A)
    return rewards.ravel() if rewards.ndim == 2 else (P * rewards).sum(axis=2).T.ravel()


def is_p_and_r(rows: dict[str, np.ndarray], rewards: np.ndarray) -> None:
    np.testing.assert_array_equal(rows["action_ptr"], np.arange(S + 1) * A)
    dense = np.zeros((S * A, S))
    dense[np.repeat(np.arange(S * A), np.diff(rows["successor_ptr"])), rows["successors"]] = rows["probabilities"]
    np.testing.assert_array_equal(dense.reshape(S, A, S).transpose(1, 0, 2), P)
    np.testing.assert_allclose(rows["rewards"], pymdptoolbox_reward(rewards), rtol=1e-13, atol=1e-15)


def save_as(folder: Path, form: str, rewards: np.ndarray) -> Path:
    folder.mkdir()
    if form == "one archive":
        np.savez_compressed(folder / "model.npz", P=P, R=rewards)
        return folder / "model.npz"
    if form == "dense files":
        np.save(folder / "P.npy", P)
    else:
        for action in range(A):
            sparse.save_npz(folder / f"P{action}.npz", sparse.csr_array(P[action]))
    if form == "sparse files" and rewards.ndim == 3:
        for action in range(A):
            sparse.save_npz(folder / f"R{action}.npz", sparse.csr_matrix(rewards[action]), compressed=False)
    else:
        np.save(folder / "R.npy", rewards)
    return folder


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("form", ["one archive", "dense files", "sparse files"])
@pytest.mark.parametrize("rewards", REWARDS.values(), ids=REWARDS)
def test_every_form_on_disk_gives_the_arrays_of_pymdptoolbox(tmp_path, rewards, form, size):
    path = save_as(tmp_path / "model", form, rewards)
    assert MDPTOOLBOX.detect(str(path), b"" if path.is_dir() else path.read_bytes()[:4096])
    is_p_and_r(read(MDPTOOLBOX, path, segment_bytes=size), rewards)


def objects(matrices: list[object]) -> np.ndarray:
    held = np.empty(len(matrices), object)
    held[:] = matrices
    return held


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("rewards", REWARDS.values(), ids=REWARDS)
@pytest.mark.parametrize(
    "transitions",
    [
        P,
        list(P),
        [sparse.csr_matrix(p) for p in P],
        [sparse.coo_array(p) for p in P],
        objects([sparse.csc_matrix(p) for p in P]),
        [sparse.csr_matrix(P[0]), P[1], sparse.lil_matrix(P[2])],
    ],
    ids=["array", "arrays", "csr", "coo", "object array", "mixed"],
)
def test_arrays_from_python_give_the_same_rows(transitions, rewards, size):
    options = ReadOptions(segment_bytes=size)
    is_p_and_r(rows_of(open_arrays(ArrayModel(transitions, rewards), options)), rewards)
    if rewards.ndim == 3:
        held = [sparse.csc_matrix(r) for r in rewards]
        is_p_and_r(rows_of(open_arrays(ArrayModel(transitions, held), options)), rewards)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda d: (d / "P1.npz").unlink(), "P1.npz is missing"),
        (lambda d: (d / "R.npy").unlink(), "neither R.npy nor R0.npz"),
        (lambda d: np.save(d / "P.npy", P), "holds both P.npy and P0.npz"),
        (lambda d: sparse.save_npz(d / "P2.npz", sparse.csr_matrix(P[0][:3])), "has shape (3, 6)"),
        (lambda d: sparse.save_npz(d / "P2.npz", sparse.csc_matrix(P[0])), "has format csc; save M.tocsr()"),
        (lambda d: sparse.save_npz(d / "P2.npz", sparse.coo_matrix(P[0])), "not CSR"),
        (
            lambda d: np.save(d / "R.npy", np.asfortranarray(REWARDS["of states and actions"])),
            "Fortran order",
        ),
        (lambda d: np.save(d / "R.npy", objects([None] * S), allow_pickle=True), "Python objects"),
        (lambda d: np.save(d / "R.npy", np.zeros(S, bool)), "dtype is bool"),
        (lambda d: np.save(d / "rewards.npy", np.zeros(S)), "holds 'rewards.npy', which is not read"),
        (lambda d: np.save(d / "P3.npy", P[0]), "holds 'P3.npy', which is not read"),
        (lambda d: np.savez(d / "R.npz", np.zeros(S)), "holds 'R.npz', which is not read"),
        (lambda d: sparse.save_npz(d / "P01.npz", sparse.csr_matrix(P[0])), "holds 'P01.npz', which is not read"),
        (lambda d: add_member(d / "P2.npz", "diagonal"), "member 'diagonal.npy' is none that is read"),
    ],
)
def test_folders_that_do_not_fit_are_refused_by_file(tmp_path, spoil, said):
    folder = save_as(tmp_path / "model", "sparse files", REWARDS["of states"])
    spoil(folder)
    assert said in str(refusal(MDPTOOLBOX, folder))


def add_member(path: Path, name: str) -> None:
    with np.load(path) as held:
        arrays = dict(held)
    np.savez(path, **arrays, **{name: np.zeros(1)})


def test_members_of_an_archive_beside_p_and_r_are_refused_by_name(tmp_path):
    path = save_as(tmp_path / "model", "one archive", REWARDS["of states"])
    add_member(path, "rewards")
    assert "member 'rewards.npy' is none that is read: the arrays of this format are P, R" in str(
        refusal(MDPTOOLBOX, path)
    )


def with_column(matrix: np.ndarray, column: int) -> tuple[sparse.csr_matrix, int]:
    """A sparse matrix whose last entry is in that column, and its row."""
    made = sparse.csr_matrix(matrix)
    made.indices[-1] = column
    return made, int(np.flatnonzero(np.diff(made.indptr))[-1])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("column", [-1, S, S + 2])
@pytest.mark.parametrize("name", ["P", "R"])
def test_entries_outside_a_sparse_matrix_are_refused(tmp_path, name, column, size):
    folder = save_as(tmp_path / "model", "sparse files", REWARDS["of transitions"])
    matrices = {"P": [sparse.csr_matrix(p) for p in P], "R": [*map(sparse.csr_matrix, REWARDS["of transitions"])]}
    matrices[name][1], row = with_column(matrices[name][1].toarray(), column)
    sparse.save_npz(folder / f"{name}1.npz", matrices[name][1])
    said = f"row {row} has an entry in column {column}, which does not exist: the 6 states are 0..5"
    assert str(refusal(MDPTOOLBOX, folder, segment_bytes=size)) == f"{folder / name}1.npz: indices.npy: {said}"
    with pytest.raises(InputError) as caught:
        rows_of(open_arrays(ArrayModel(matrices["P"], matrices["R"]), ReadOptions(segment_bytes=size)))
    assert str(caught.value) == f"P and R: {name}[1]: {said}"


@pytest.mark.skipif(not PUBLIC.is_dir(), reason="the shared cases are not here")
@pytest.mark.parametrize("name", ["mdptoolbox-forest-3", "mdptoolbox-small-2"])
def test_published_pymdptoolbox_examples_have_their_reference_values(name):
    with np.load(PUBLIC / name / "model.npz") as case:
        n = case["state_ptr"].size - 1
        actions = (case["indptr"].size - 1) // n
        matrix = sparse.csr_array((case["data"], case["indices"], case["indptr"]), shape=(n * actions, n))
        transitions = matrix.toarray().reshape(n, actions, n).transpose(1, 0, 2)
        rows = rows_of(
            open_arrays(ArrayModel(transitions, case["r_sa"].reshape(n, actions), layout="action-first"), ReadOptions())
        )
    problem = json.loads((PUBLIC / name / "case.json").read_text())["problems"][0]
    with np.load(PUBLIC / name / "reference.npz") as reference:
        expected = reference["V_" + problem["key"]]
    np.testing.assert_allclose(value_iteration(rows, problem["discount"]), expected, rtol=1e-9)
