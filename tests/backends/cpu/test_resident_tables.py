"""What a resident partition takes of memory: its table's bytes, as the cache counts them."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

import ooc_mdp
from ooc_mdp.backends.cpu.backend import CpuBackend
from ooc_mdp.backends.layout import Needs
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import discounts
from ooc_mdp.model.table import Loader


def test_discounts_take_the_place_of_durations(tmp_path):
    store = ooc_mdp.generate("mountain-car", tmp_path / "car", {"grid": "40,40"}, partitions=4)
    facts = ModelFacts.of(store.facts, 0.9)
    with closing(CpuBackend()) as backend:
        backend.start(facts, backend.layout(facts, Needs()), None, None, store.loader("cpu"))
        for p in range(store.n_partitions):
            (swept,) = backend.fetch(p)[0].arrays
            assert swept.discounts.size == store.facts.partition_rows[p]
            assert np.shares_memory(swept.discounts, swept.table.durations)
            np.testing.assert_allclose(swept.discounts, discounts(0.9, store.read(p)[0].durations), rtol=2**-51, atol=0)


def test_tables_that_a_loader_keeps_stay_as_they_are(tmp_path):
    """They are given again at the next load: discounts lie beside them, and the resident table holds no durations."""
    store = ooc_mdp.generate("mountain-car", tmp_path / "car", {"grid": "40,40"}, partitions=4)
    facts, kept = ModelFacts.of(store.facts, 0.9), [store.read(p) for p in range(4)]
    with closing(CpuBackend()) as backend:
        backend.start(facts, backend.layout(facts, Needs()), None, None, Loader(kept.__getitem__, 0))
        for p in (0, 1, 0, 0):
            (swept,) = backend.fetch(p)[0].arrays
            durations = store.read(p)[0].durations
            np.testing.assert_array_equal(kept[p][0].durations, durations)
            np.testing.assert_allclose(swept.discounts, discounts(0.9, durations), rtol=2**-51, atol=0)
            assert swept.table.durations is swept.discounts


@pytest.mark.parametrize("gamma", [0.0, 0.9, 1.0])
def test_discounts_in_place_are_those_in_new_memory(gamma):
    durations = np.array([0.0, 0.5, 1.0, 7.25, np.inf])
    found = discounts(gamma, durations)
    assert found.tolist() == [1.0, gamma**0.5, gamma, gamma**7.25, 0.0]
    assert discounts(gamma, durations, out=durations) is durations
    np.testing.assert_array_equal(durations, found)
