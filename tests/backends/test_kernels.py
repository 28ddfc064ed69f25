"""Kernels equal the equations written out: Gauss-Seidel sweeps of the CPU's own engine, else Jacobi sweeps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from accounting import figures
from emulated_device import EmulatedDevice
from model_facts import facts_with
from plain_kernel import FIRST, N_OWN, N_STATES, ROW_SUM, TABLES, Plain, pointer, random_table

from ooc_mdp import reference
from ooc_mdp.backends.base import Backend, SweepLimits, VisitReport
from ooc_mdp.backends.cpu.backend import CpuBackend
from ooc_mdp.backends.cpu.discounts import discounts_in_place
from ooc_mdp.backends.cuda.simple.backend import SimpleBackend
from ooc_mdp.backends.cuda.simple.literature.catalogue import PLAIN
from ooc_mdp.backends.layout import Needs
from ooc_mdp.backends.select import select_backend
from ooc_mdp.errors import MissingExtraError, OptionsError
from ooc_mdp.model.mdp import Rows
from ooc_mdp.model.partition import PartitionTable

TYPES = [(i, r) for i in ("u1", "u2", "u4") for r in ("f4", "f8")]
BACKENDS = ["cpu", "schedule", "emulated", pytest.param("cuda:0", marks=pytest.mark.gpu)]
"""The CPU's own engine, and one Jacobi sweep a pass: in NumPy, on the emulator of CUDA, on a GPU."""


def backend_of(device: str) -> Backend:
    if device == "cpu":
        return CpuBackend()
    if device == "emulated":
        return SimpleBackend(EmulatedDevice(1 << 24), PLAIN)
    return select_backend("cpu" if device == "schedule" else device, kernel=PLAIN.word)


class Bench:
    """One backend and the plain equations at the same values."""

    def __init__(self, device: str, table: PartitionTable, discount: float = 0.9, sign: float = 1.0) -> None:
        rng = np.random.default_rng(99)
        self.values = rng.normal(size=N_STATES) * 100
        self.policy = np.full(N_STATES, -1, np.int32)
        self.jacobi = device != "cpu"
        self.plain = Plain(table, discount, sign, np.power if self.jacobi else discounts_in_place)
        self.backend = backend_of(device)
        own, row_sums = [FIRST, FIRST + N_OWN], np.array([ROW_SUM])
        model = facts_with(own, discount, row_sums, n_states=N_STATES, partition_halo=np.array([20]), sign=sign)
        layout = self.backend.layout(model, Needs())
        self.backend.start(model, layout, self.values.copy(), self.policy.copy())
        self.resident = self.backend.admit(self.backend.prepare(table))

    def assert_same_state(self) -> None:
        np.testing.assert_array_equal(self.backend.values(), self.values)
        np.testing.assert_array_equal(self.backend.policy(), self.policy)

    def assert_same_visit(self, limits: SweepLimits) -> VisitReport:
        if self.resident.has_durations:  # else they are swept until a measurement says that it is enough
            limits = replace(limits, most=min(limits.most, 20), residual=np.inf)
        report = self.backend.sweep([self.resident], limits).report()
        # A device looks at changes between batches only: it may sweep more often than needed, never beyond `most`.
        done = int(report.sweeps[0])
        expected = self.plain.visit(
            self.values, self.policy, SweepLimits(-1.0, done) if self.jacobi else limits, self.jacobi
        )
        assert figures(replace(report, residuals=None)) == figures(expected)
        assert report.last_change is not None
        assert done == limits.most or report.last_change.max() <= float(limits.change)
        self.assert_same_state()
        return report

    def assert_same_measure(self, significant: float) -> None:
        measured, largest = self.backend.measure(self.resident, significant)
        expected, expected_largest = self.plain.measure(self.values, self.policy, significant)
        assert measured.tolist() == pytest.approx(list(expected), rel=1e-13, abs=0)
        assert largest == expected_largest
        self.assert_same_state()


@pytest.fixture(params=BACKENDS)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("shape", TABLES)
@pytest.mark.parametrize(("index", "real"), TYPES)
def test_a_visit_equals_the_plain_equations(device: str, index: str, real: str, shape: str, sign: float) -> None:
    bench = Bench(device, random_table(1, index, real, **TABLES[shape]), sign=sign)
    for limits in (SweepLimits(-1.0, 1), SweepLimits(-1.0, 4), SweepLimits(1e-6, 500), SweepLimits(1e9, 3)):
        bench.assert_same_visit(limits)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("shape", TABLES)
@pytest.mark.parametrize(("index", "real"), TYPES)
def test_a_measurement_equals_the_plain_equations(device: str, index: str, real: str, shape: str, sign: float) -> None:
    bench = Bench(device, random_table(2, index, real, **TABLES[shape]), sign=sign)
    bench.assert_same_measure(0.0)
    bench.assert_same_measure(50.0)
    bench.assert_same_measure(np.inf)
    bench.assert_same_visit(SweepLimits(-1.0, 3))
    bench.assert_same_measure(1e-3)


@pytest.mark.parametrize("discount", [0.0, 0.5, 0.9999])
def test_any_discount_will_do(device: str, discount: float) -> None:
    for durations in (False, True):
        bench = Bench(device, random_table(3, durations=durations), discount)
        bench.assert_same_measure(0.0)
        bench.assert_same_visit(SweepLimits(-1.0, 5))


def test_one_sweep_agrees_with_the_reference(device: str) -> None:
    """The reference backs up all states of a model at once; here it is the partition and its halo, held still."""
    table = random_table(4, "u2", "f8")
    bench = Bench(device, table)
    local = bench.plain.gather(bench.values)
    rows = Rows(
        action_ptr=np.append(table.action_ptr.astype(np.int64), [table.n_rows] * table.halo.size),
        successor_ptr=table.successor_ptr.astype(np.int64),
        successors=table.successors.astype(np.int64),
        probabilities=table.probabilities.astype(np.float64),
        rewards=table.rewards.astype(np.float64),
        terminal_rewards=np.append(table.terminal_rewards, np.zeros(table.halo.size)),
    )
    expected = reference.backup(rows, local, 0.9)
    if bench.jacobi:
        bench.backend.sweep([bench.resident], SweepLimits(-1.0, 1)).report()
        np.testing.assert_allclose(
            bench.backend.values()[FIRST : FIRST + N_OWN], expected.values[:N_OWN], rtol=1e-13, atol=1e-12
        )
        np.testing.assert_array_equal(bench.backend.policy()[FIRST : FIRST + N_OWN], expected.policy[:N_OWN])
    else:
        measured, _ = bench.backend.measure(bench.resident, 0.0)
        residual = expected.values[:N_OWN] - local[:N_OWN]
        acting = expected.policy[:N_OWN] >= 0
        expected_rise = np.where(acting, residual, table.terminal_rewards - local[:N_OWN]).max()
        assert measured[2] == pytest.approx(max(expected_rise, 0.0), rel=1e-13)
        np.testing.assert_array_equal(
            bench.backend.policy()[FIRST : FIRST + N_OWN][acting], expected.policy[:N_OWN][acting]
        )


def test_ties_go_to_the_lowest_action(device: str) -> None:
    table = random_table(5)
    same = replace(
        table,
        rewards=np.full_like(table.rewards, 2.0),
        probabilities=np.ones(table.n_rows),
        successors=np.full(table.n_rows, N_OWN, np.uint8),
        successor_ptr=pointer(np.ones(table.n_rows, np.int64)),
    )
    bench = Bench(device, same)
    bench.assert_same_measure(0.0)
    bench.assert_same_visit(SweepLimits(-1.0, 2))
    counts = np.diff(same.action_ptr.astype(np.int64))
    own = bench.backend.policy()[FIRST : FIRST + N_OWN]
    np.testing.assert_array_equal(own[counts > 0], 0)
    np.testing.assert_array_equal(own[counts == 0], -1)


def test_no_value_outside_the_partition_changes(device: str) -> None:
    bench = Bench(device, random_table(6))
    outside = np.setdiff1d(np.arange(N_STATES), np.arange(FIRST, FIRST + N_OWN))
    before = bench.values[outside].copy()
    bench.assert_same_visit(SweepLimits(-1.0, 3))
    np.testing.assert_array_equal(bench.backend.values()[outside], before)
    assert (bench.backend.policy()[outside] == -1).all()


def test_a_visit_without_boundary_reports_no_boundary_change(device: str) -> None:
    table = replace(random_table(7), boundary=np.zeros(N_OWN, np.bool_))
    report = Bench(device, table).assert_same_visit(SweepLimits(-1.0, 2))
    assert (report.boundary_rise[0], report.boundary_fall[0], report.boundary_value[0]) == (0.0, 0.0, -np.inf)


def test_a_visit_that_changes_nothing_reports_nothing(device: str) -> None:
    table = replace(random_table(8, terminal=False), action_ptr=np.zeros(N_OWN + 1, np.uint32))
    bench = Bench(device, table)
    bench.assert_same_visit(SweepLimits(-1.0, 1))
    report = bench.assert_same_visit(SweepLimits(0.0, 9))
    assert report.last_change is not None
    assert not report.last_change.any()
    assert (report.boundary_rise[0], report.boundary_fall[0], report.boundary_value[0]) == (0.0, 0.0, -np.inf)
    assert (report.largest_value[0], report.smallest_value[0]) == (0.0, 0.0)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", TABLES)
def test_a_measurement_on_the_device_is_bit_for_bit_the_cpu_s(shape: str) -> None:
    cpu, gpu = (Bench(device, random_table(9, **TABLES[shape])) for device in ("cpu", "cuda:0"))
    (ours, largest), (theirs, largest_there) = (b.backend.measure(b.resident, 1.0) for b in (cpu, gpu))
    assert (ours.tolist(), largest) == (theirs.tolist(), largest_there)


def test_the_device_is_chosen_by_its_word() -> None:
    assert isinstance(select_backend("cpu"), CpuBackend)
    assert select_backend("auto").name in ("cpu", "cuda:0")
    with pytest.raises(OptionsError, match=r"unknown device 'gpu'; there are cpu, cuda:0"):
        select_backend("gpu")
    with pytest.raises((MissingExtraError, OptionsError), match=r"cuda:99"):
        select_backend("cuda:99")
