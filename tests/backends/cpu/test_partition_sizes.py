"""Every measurement of the engine, of partitions of 1 to 300 states: below 256 loops are compiled for no shape."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from model_facts import facts_with

from ooc_mdp.backends.base import Resident, SweepLimits
from ooc_mdp.backends.cpu.backend import CpuBackend
from ooc_mdp.backends.cpu.table import MIN_COMPILED_FOR
from ooc_mdp.backends.layout import Needs
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.model.partition import Coupling, PartitionTable

SIZES = range(1, 301)
ACTIONS, WIDTH, DISCOUNT = 2, 2, 0.9
PTR = np.concatenate([[0], np.cumsum(SIZES)])
N = int(PTR[-1])
CLOSE = {"rtol": 1e-12, "atol": 1e-12}


def table_of(p: int, rng: np.random.Generator) -> PartitionTable:
    """A random table of partition p, which reads no other."""
    n = SIZES[p]
    weights = rng.random((n * ACTIONS, WIDTH))
    return PartitionTable(
        index=p,
        first_state=int(PTR[p]),
        n_states=n,
        actions_per_state=ACTIONS,
        successors_per_action=WIDTH,
        action_ptr=np.empty(0, np.uint32),
        successor_ptr=np.empty(0, np.uint32),
        successors=rng.integers(0, n, n * ACTIONS * WIDTH).astype(np.uint16),
        probabilities=(weights / weights.sum(axis=1, keepdims=True)).ravel(),
        rewards=rng.normal(size=n * ACTIONS),
        durations=np.empty(0),
        terminal_rewards=np.empty(0),
        initial_values=np.empty(0),
        halo=np.empty(0, np.int64),
        boundary=np.zeros(n, np.bool_),
    )


class Engine:
    """A backend at random values, with a partition of every size resident."""

    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        self.tables = [table_of(p, rng) for p in range(len(SIZES))]
        sizes = np.diff(PTR)
        facts = facts_with(
            PTR.tolist(),
            DISCOUNT,
            partition_rows=ACTIONS * sizes,
            partition_transitions=ACTIONS * WIDTH * sizes,
            partition_bytes=np.array([t.nbytes for t in self.tables]),
            row_widths=np.full(sizes.size, WIDTH),
            actions_per_state=ACTIONS,
            successors_per_action=WIDTH,
        )
        self.backend = CpuBackend("voted", 2)
        self.layout = self.backend.layout(facts, Needs(policy_rows=True, synchronous=True))
        self.backend.start(facts, self.layout, rng.normal(size=N), None)
        self.residents: list[Resident] = [self.backend.admit(self.backend.prepare(t)) for t in self.tables]

    def plain_residuals(self) -> FloatArray:
        """float64 [2, P]: rise and fall of max_a Q_a - V at the present values, by NumPy."""
        values, found = self.backend.values(), []
        for t in self.tables:
            own = values[t.first_state : t.first_state + t.n_states]
            expected = (t.probabilities * own[t.successors]).reshape(-1, WIDTH).sum(axis=1)
            residual = (t.rewards + DISCOUNT * expected).reshape(-1, ACTIONS).max(axis=1) - own
            found.append((residual.max(), -residual.min()))
        return np.array(found).T

    def assert_measured(self, residuals: FloatArray | None, expected: FloatArray) -> None:
        """Normalised and plain rise and fall of all partitions."""
        assert residuals is not None
        np.testing.assert_allclose(residuals[2:], expected, **CLOSE)
        np.testing.assert_allclose(residuals[:2], expected / (1 - DISCOUNT), **CLOSE)


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine()
    yield made
    made.backend.close()


def test_sizes_are_on_both_sides_of_what_loops_are_compiled_for() -> None:
    assert SIZES[0] < MIN_COMPILED_FOR < SIZES[-1]


def test_a_measurement_is_that_of_the_bellman_equation(engine: Engine) -> None:
    found = np.array([engine.backend.measure(r, 0.0)[0] for r in engine.residents]).T
    engine.assert_measured(found, engine.plain_residuals())


def test_what_a_batch_of_visits_leaves_is_measured(engine: Engine) -> None:
    many = engine.layout.batch_size
    for _ in range(4):  # full sweeps, sweeps of the policy, packed rows, and these once more
        found = []
        for first in range(0, len(SIZES), many):
            report = engine.backend.relax(engine.residents[first : first + many], SweepLimits(1e-3, 5)).report()
            assert report.residuals is not None
            found.append(report.residuals)
        engine.assert_measured(np.concatenate(found, axis=1), engine.plain_residuals())


def test_a_synchronous_pass_measures_the_values_before_it(engine: Engine) -> None:
    for _ in range(2):
        expected = engine.plain_residuals()
        engine.assert_measured(engine.backend.sweep_synchronously(engine.residents).residuals, expected)
        engine.backend.commit()


def test_sweeps_of_one_partition_report_their_last_change(engine: Engine) -> None:
    expected = engine.plain_residuals()
    before = engine.backend.values().copy()
    report = engine.backend.sweep(engine.residents, SweepLimits(-1.0, 1)).report()
    change = engine.backend.values() - before
    assert report.last_change is not None
    for p in range(len(SIZES)):
        own = change[PTR[p] : PTR[p + 1]]
        np.testing.assert_allclose(report.last_change[:, p], [max(own.max(), 0.0), max(-own.min(), 0.0)], **CLOSE)
    assert np.isfinite(expected).all()


def test_an_improvement_and_an_evaluation_measure_every_partition(engine: Engine) -> None:
    everything = np.arange(len(SIZES))
    engine.backend.open_rows(Coupling(np.arange(len(SIZES) + 1), everything, np.ones(len(SIZES))))
    expected = engine.plain_residuals()
    engine.assert_measured(engine.backend.improve(engine.residents, 0.0).measured, expected)
    evaluation = engine.backend.evaluation(1e-9, 1000)
    while not evaluation.advance(np.inf):
        pass
    found = evaluation.report()
    assert np.isfinite(found.measured).all()
    assert found.measured.max() <= 1e-9 / (1 - DISCOUNT)
