"""Tables whose rows share a few distributions: what sweeps read is to the last bit what rows of their own would be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cpu_visits import LIMITS, started
from hypothesis import given, settings
from hypothesis import strategies as st

import ooc_mdp
from ooc_mdp.backends.cpu import backend as cpu_backend
from ooc_mdp.backends.cpu.distributions import share_distributions
from ooc_mdp.model.partition import Coupling, PartitionTable
from ooc_mdp.runtime.arena import SYSTEM_MEMORY, TableMemory
from ooc_mdp.store import Store

MOST = 64


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return ooc_mdp.generate("GW-32x4", tmp_path_factory.mktemp("stores") / "s", partitions=2)


def table_of(store: Store, probabilities: np.ndarray, actions: int) -> PartitionTable:
    """A table with these rows of probabilities, float [m, width]; its other arrays are those of another."""
    m, width = probabilities.shape
    return replace(
        store.read(0)[0],
        n_states=m // max(actions, 1),
        actions_per_state=actions,
        successors_per_action=width,
        rewards=np.zeros(m),
        probabilities=probabilities.ravel(),
    )


@settings(max_examples=60)
@given(
    seed=st.integers(0, 1 << 31),
    rows=st.integers(MOST + 1, 400),
    width=st.integers(1, 5),
    kinds=st.integers(1, MOST + 10),
    actions=st.integers(0, 5),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_rows_have_the_distributions_that_they_had(store, seed, rows, width, kinds, actions, dtype) -> None:
    rng = np.random.default_rng(seed)
    of = rng.integers(kinds, size=rows)
    probabilities = rng.random((kinds, width)).astype(dtype)[of]
    shared, numbers = share_distributions(table_of(store, probabilities, actions), SYSTEM_MEMORY)
    found = shared.probabilities.reshape(-1, width)
    assert found.dtype == dtype
    if np.unique(of).size > MOST:
        assert numbers.size == 0
        np.testing.assert_array_equal(found, probabilities)
    else:
        assert len(found) == np.unique(of).size
        np.testing.assert_array_equal(found[numbers], probabilities)


def test_rows_of_several_lengths_keep_their_own(store: Store) -> None:
    table = replace(store.read(0)[0], successors_per_action=0)
    assert share_distributions(table, SYSTEM_MEMORY)[0] is table


def test_what_is_swept_and_measured_is_to_the_last_bit_what_it_would_be(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def alone(table: PartitionTable, memory: TableMemory) -> tuple[PartitionTable, np.ndarray]:
        return table, np.empty(0, np.uint8)

    found = []
    for share in (share_distributions, alone):
        monkeypatch.setattr(cpu_backend, "share_distributions", share)
        backend, residents = started(store, 0.95, threads=1)
        assert all((r.arrays[0].distributions.size > 0) == (share is share_distributions) for r in residents)
        steps = []
        for packed in (True, False):
            backend._packed_buffers.suited &= packed
            for _ in range(4):
                report = backend.relax(residents, LIMITS).report()
                steps += [report.residuals, backend.values().copy(), backend.policy().copy()]
        for resident in residents:
            backend.sweep([resident], LIMITS).report()
        for _ in range(3):
            steps.append(backend.sweep_synchronously(residents).residuals)
            backend.commit()
        backend.open_rows(Coupling(np.array([0, 2, 4]), np.array([0, 1, 0, 1]), np.full(4, 1.0)))
        steps += [backend.improve(residents, 0.0).measured, backend.values().copy(), backend._orders.traversals.copy()]
        assert backend._rows is not None
        steps += [backend._rows.probabilities.copy(), backend._rows.successors.copy()]
        found.append(steps)
        backend.close()
    assert len(found[0]) > 20
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_row_takes_a_byte(store: Store) -> None:
    backend, residents = started(store, 0.95)
    for resident in residents:
        swept = resident.arrays[0]
        width = swept.table.successors_per_action
        assert swept.distributions.nbytes == swept.table.n_rows
        assert swept.table.probabilities.size == (int(swept.distributions.max()) + 1) * width < 64 * width
    backend.close()


def test_the_table_of_a_control_problem_is_as_it_was(tmp_path: Path) -> None:
    car = ooc_mdp.generate("mountain-car", tmp_path / "s", {"grid": "40,40"})
    backend, residents = started(car, 0.9)
    assert all(r.arrays[0].distributions.size == 0 for r in residents)
    backend.close()
