"""The catalogue of simple kernels: each is its schedule, proves what it is asked for, and refuses what it cannot sweep.

Kernels run on the emulator of CUDA, with threads and blocks in several orders, and on a GPU where there is one.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulated_device import EmulatedDevice
from kernel_words import skip_where_refused
from model_facts import facts_with
from small_mdps import Case, make_store, rows_of
from store_models import random_model
from tiled_engine import ShuffledDevice, emulated

import ooc_mdp
from ooc_mdp.backends.base import Loops, SweepLimits
from ooc_mdp.backends.cpu.scheduled import ScheduledBackend
from ooc_mdp.backends.cuda.device import CudaDevice, Device
from ooc_mdp.backends.cuda.layout import aligned
from ooc_mdp.backends.cuda.simple.backend import SimpleBackend
from ooc_mdp.backends.cuda.simple.literature.catalogue import BDI_BUFFERED, PLAIN, RDI, SIMPLE_KERNELS, SimpleKernel
from ooc_mdp.backends.layout import Needs
from ooc_mdp.errors import MemoryBudgetError, OptionsError
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.options import CacheSize, SolveOptions
from ooc_mdp.reference import policy_iteration, schedules
from ooc_mdp.solver import local
from ooc_mdp.store import Store

MODELS: dict[str, Case] = {
    "ragged": Case(random_model(1, 400, terminal=0.3, durations=True), "min", "float32", 2),
    "ragged without durations": Case(random_model(2, 300, terminal=0.1), "max", "float64", 1),
    "uniform with durations": Case(random_model(3, 280, uniform=True, durations=True), "min", "float64", 1),
}
"""Partitions of more states than a block has, the last block of each not full."""
STORES = [*MODELS, "car"]
DEVICES: dict[str, Callable[[], Device]] = {
    "in order": emulated,
    "shuffled": lambda: ShuffledDevice(1),
    "cuda": lambda: CudaDevice(0),
}
_MARKS = {"in order": [pytest.mark.slow], "shuffled": [], "cuda": [pytest.mark.gpu]}
ON = [pytest.param(name, marks=_MARKS[name]) for name in DEVICES]
DISCOUNT, EPSILON = 0.5, 1e-4


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Store]:
    """Stores by name, made when they are first asked for."""
    made: dict[str, Store] = {}

    def get(name: str) -> Store:
        if name not in made:
            path = tmp_path_factory.mktemp("stores") / "s"
            made[name] = (
                make_store(MODELS[name], path)
                if name in MODELS
                else ooc_mdp.generate("mountain-car", path, {"grid": "29,31"}, partition_grid=[2, 3], dtype="float32")
            )
        return made[name]

    return get


def kernels(test: Callable[..., None]) -> Callable[..., None]:
    """Over the whole catalogue."""
    marked: Callable[..., None] = pytest.mark.parametrize("kernel", SIMPLE_KERNELS, ids=lambda k: k.word)(test)
    return marked


# ------------------------------------------------------------------------------------------------ kernel, schedule


@pytest.mark.parametrize("on", ON)
@pytest.mark.parametrize("name", STORES)
@kernels
def test_each_pass_gives_the_values_of_its_schedule(
    kernel: SimpleKernel, name: str, on: str, large: Callable[[str], Store]
) -> None:
    store = large(name)
    facts = ModelFacts.of(store.facts, 0.9)
    skip_where_refused(kernel.word, store, 0.9)
    there, here = SimpleBackend(DEVICES[on](), kernel), ScheduledBackend(kernel)
    table, tolerance = store.read(0)[0], 0.0 if kernel.exact else 1e-12
    n, values = table.n_states, np.random.default_rng(5).normal(size=store.n_states) * 100
    for backend in (there, here):
        backend.load_code(facts, Loops.BATCHES)
        backend.start(facts, backend.layout(facts, Needs()), values.copy(), None)
    ours, theirs = (backend.admit(backend.prepare(table)) for backend in (here, there))
    local_values, backup = np.concatenate([values[:n], values[table.halo]]), here._rows(table).backup
    for _ in range(5):
        local_values, expected_change = kernel.schedule(backup, n, local_values)
        expected = here.sweep([ours], SweepLimits(-1.0, 1)).report()
        found = there.sweep([theirs], SweepLimits(-1.0, 1)).report()
        change = np.empty(n)
        there._download("change", 0, change)
        np.testing.assert_allclose(there.values(), here.values(), rtol=tolerance, atol=0)
        np.testing.assert_allclose(there.values()[:n], local_values[:n], rtol=tolerance, atol=0)
        np.testing.assert_allclose(change, expected_change, rtol=0, atol=100 * tolerance)
        if kernel.exact:
            np.testing.assert_array_equal(there.policy(), here.policy())
        assert found.sweeps.tolist() == expected.sweeps.tolist() == [1]
        assert found.backups.tolist() == expected.backups.tolist() == [kernel.backups * n]
        for report in (found, expected):
            assert (report.last_change is not None) == kernel.bounds_by_changes
            assert report.residuals is not None or kernel.bounds_by_changes
        if found.residuals is not None and expected.residuals is not None:
            np.testing.assert_allclose(found.residuals, expected.residuals, rtol=1e-12, atol=100 * tolerance)
    there.close()


@pytest.mark.parametrize(("weight", "exact", "bounds"), [(1.0, True, True), (1.0, False, False), (0.75, True, False)])
def test_changes_bound_the_residual_only_where_a_pass_is_a_jacobi_sweep(
    weight: float, exact: bool, bounds: bool, large: Callable[[str], Store]
) -> None:
    """A relaxed pass changes values by less than their residuals."""

    def relaxed(backup: schedules.Backup, n: int, values: FloatArray) -> tuple[FloatArray, FloatArray]:
        new, change = schedules.jacobi(backup, n, values)
        new[:n] = values[:n] + weight * change
        return new, new[:n] - values[:n]

    schedule = schedules.jacobi if weight == 1.0 else relaxed
    store, backend = large("car"), ScheduledBackend(replace(PLAIN, schedule=schedule, exact=exact))
    facts = ModelFacts.of(store.facts, 0.9)
    backend.start(facts, backend.layout(facts, Needs()), None, None)
    resident = backend.admit(backend.prepare(replace(store.read(0)[0], durations=np.empty(0))))
    report = backend.sweep([resident], SweepLimits(-1.0, 1)).report()
    assert (report.last_change is not None) == bounds
    assert (report.residuals is None) == bounds


@kernels
def test_a_pass_leaves_the_halo_and_the_fixed_point_as_they_are(
    kernel: SimpleKernel, large: Callable[[str], Store]
) -> None:
    store = large("car")
    table = store.read(0)[0]
    rows = schedules.LocalRows(table, 0.9, 1.0)
    values = np.random.default_rng(1).normal(size=table.n_states + table.halo.size)
    halo = values[table.n_states :].copy()
    for _ in range(400):
        values, _ = kernel.schedule(rows.backup, table.n_states, values)
    np.testing.assert_array_equal(values[table.n_states :], halo)
    after, change = kernel.schedule(rows.backup, table.n_states, values)
    np.testing.assert_allclose(after, values, rtol=1e-13, atol=1e-13)
    assert np.abs(change).max() <= 1e-12


def plus_one(values_seen: list[IntArray]) -> schedules.Backup:
    """The largest of a state's and its neighbour's values, and 1: what has been seen where can be counted."""

    def backup(states: IntArray, values: FloatArray) -> FloatArray:
        values_seen.append(states)
        return np.maximum(values[states], values[np.minimum(states + 1, values.size - 1)]) + 1.0

    return backup


def test_one_iteration_of_bdi_is_a_jacobi_sweep(large: Callable[[str], Store]) -> None:
    table = large("ragged").read(0)[0]
    rows = schedules.LocalRows(table, 0.9, 1.0)
    values = np.random.default_rng(0).normal(size=table.n_states + table.halo.size)
    ours = schedules.bdi(rows.backup, table.n_states, values, block=8, iterations=1)
    theirs = schedules.jacobi(rows.backup, table.n_states, values)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)


def test_bdi_iterates_within_blocks_and_sees_old_values_outside() -> None:
    seen: list[IntArray] = []
    new, change = schedules.bdi(plus_one(seen), 5, np.array([0.0, 0, 10, 0, 0, 50]), block=2, iterations=3)
    # By hand: state 1 reads state 2 of another block, which stays 10; state 4 reads the halo, 50.
    assert new.tolist() == [13.0, 13.0, 13.0, 3.0, 53.0, 50.0]
    assert change.tolist() == [1.0, 1.0, 1.0, 1.0, 1.0]
    assert [s.tolist() for s in seen] == [[0, 1]] * 3 + [[2, 3]] * 3 + [[4]] * 3


def test_bdi_priority_backs_up_every_state_once_and_then_what_changed_most() -> None:
    seen: list[IntArray] = []
    how: dict[str, Any] = {"block": 2, "states": 2, "backups": 2, "update_constant": 1.0}
    new, change = schedules.bdi_priority(plus_one(seen), 5, np.array([0.0, 0, 10, 0, 0, 50]), **how)
    # Threads own (0, 2), (1, 3) and, in the second block, (4). By hand: all once, of which 1 changes by 11, others 1;
    # 0 ties with 2 and is lower, 1 changed more than 3; then 0 changed by 11, and 3 was updated less than 1.
    assert [s.tolist() for s in seen] == [[0, 1], [2, 3], [0, 1], [0, 3], [4], [4]]
    assert new.tolist() == [13.0, 12.0, 11.0, 2.0, 52.0, 50.0]
    assert change.tolist() == [1.0, 1.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("constant", [0.0, 1.0, 1e9])
def test_bdi_priority_makes_as_many_backups_as_it_reports(constant: float) -> None:
    """Also in a last block whose threads own fewer states than others."""
    seen: list[IntArray] = []
    how: dict[str, Any] = {"block": 4, "states": 3, "backups": 2, "update_constant": constant}
    schedules.bdi_priority(plus_one(seen), 29, np.random.default_rng(0).normal(size=31), **how)
    counts = np.bincount(np.concatenate(seen), minlength=29)
    assert counts.sum() == 2 * 29
    assert counts.min() >= 1
    assert (counts.max() == 2) == (constant == 1e9), "a large constant makes them take turns"


# ---------------------------------------------------------------------------------------------------- whole solves


@pytest.fixture(scope="module")
def optimal(large: Callable[[str], Store]) -> Callable[[str], FloatArray]:
    """The optimal values of each store, in the source's order."""
    return functools.cache(lambda name: policy_iteration(rows_of(large(name)), DISCOUNT, large(name).sense).values)


def assert_proved(solution: ooc_mdp.Solution, best: FloatArray, kernel: SimpleKernel) -> None:
    assert solution.outcome.proved
    assert solution.error_bound <= EPSILON
    assert np.abs(solution.values - best).max() <= solution.error_bound
    assert f"{kernel.word} kernel" in solution.method
    s = solution.statistics
    assert s.cache_peak_bytes <= s.cache_bytes


@pytest.mark.parametrize(
    ("name", "method", "cache"),
    [
        ("ragged", "vi", "100%"),
        ("ragged", "p-eva", "22%"),
        ("car", "vi", "22%"),
        ("car", "p-eva", "100%"),
        ("car", "p-eva", "22%"),
        ("car", "auto", "22%"),
    ],
)
@kernels
def test_each_proves_its_target_on_the_cpu(
    kernel: SimpleKernel,
    name: str,
    method: Any,
    cache: str,
    large: Callable[[str], Store],
    optimal: Callable[[str], FloatArray],
) -> None:
    skip_where_refused(kernel.word, large(name), DISCOUNT)
    options: dict[str, Any] = {"device": "cpu", "kernel": kernel.word, "method": method, "cache": cache}
    solution = ooc_mdp.solve(large(name), DISCOUNT, epsilon=EPSILON, **options)
    assert_proved(solution, optimal(name), kernel)
    assert solution.device == "cpu"


@pytest.mark.parametrize("on", [ON[0], ON[-1]])
@pytest.mark.parametrize(("method", "share"), [("vi", 0.22), ("p-eva", 1.0), ("p-eva", 0.22)])
@kernels
def test_each_proves_its_target_on_a_device(
    kernel: SimpleKernel,
    method: Any,
    share: float,
    on: str,
    large: Callable[[str], Store],
    optimal: Callable[[str], FloatArray],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = DEVICES[on]()
    backend = SimpleBackend(device, kernel)
    monkeypatch.setattr(local, "select_backend", lambda *_: backend)
    options: dict[str, Any] = {"method": method, "cache": CacheSize(share=share), "kernel": kernel.word}
    solution = local.solve(large("car"), SolveOptions(DISCOUNT, epsilon=EPSILON, device="cuda:0", **options))
    assert_proved(solution, optimal("car"), kernel)
    assert {"local values", "changes"} <= set(solution.memory_plan["device"])
    assert len(backend._compiled) == 1  # what was loaded before the solve began
    if isinstance(device, EmulatedDevice):
        assert device.memory_free() == EmulatedDevice(1 << 26).memory_free()  # all is freed in the end


@kernels
def test_a_solve_goes_on_from_its_checkpoint(
    kernel: SimpleKernel, large: Callable[[str], Store], optimal: Callable[[str], FloatArray], tmp_path: Path
) -> None:
    options: dict[str, Any] = {"kernel": kernel.word, "device": "cpu", "method": "vi", "output": tmp_path / "r"}
    stopped = ooc_mdp.solve(large("car"), DISCOUNT, epsilon=EPSILON, time_limit=1e-9, **options)
    assert not stopped.outcome.proved
    solution = ooc_mdp.solve(large("car"), DISCOUNT, epsilon=EPSILON, resume=True, **options)
    assert_proved(solution, optimal("car"), kernel)


@kernels
def test_policy_iteration_is_refused_since_no_rows_are_kept(
    kernel: SimpleKernel, large: Callable[[str], Store]
) -> None:
    with pytest.raises(OptionsError, match=f"--kernel {kernel.word} has none"):
        ooc_mdp.solve(large("car"), 0.9, kernel=kernel.word, method="policy-iteration", device="cpu")


# -------------------------------------------------------------------------------------------------------- refusals


def test_every_refusal_has_numbers_and_names_another_kernel(large: Callable[[str], Store]) -> None:
    wide = facts_with([0, 9], actions_per_state=7, successors_per_action=7)
    everything = [ModelFacts.of(large(name).facts, 0.9) for name in STORES] + [wide]
    refusals = [(k, reason) for k in SIMPLE_KERNELS for facts in everything if (reason := k.refuses(facts))]
    assert refusals
    for kernel, reason in refusals:
        others = [k.word for k in SIMPLE_KERNELS if k is not kernel]
        assert re.search(r"\d", reason)
        assert any(re.search(rf"--kernel {word}$", reason) for word in others)


def test_bdi_buffered_refuses_rows_that_differ_and_rows_that_are_too_many(large: Callable[[str], Store]) -> None:
    with pytest.raises(OptionsError, match=r"rows of this store differ: up to \d+ successors; take --kernel bdi"):
        ooc_mdp.solve(large("ragged"), 0.9, kernel=BDI_BUFFERED.word, device="cpu")
    with pytest.raises(OptionsError, match=r"^made up: bdi-buffered needs 51200 bytes .* for 7 actions of 7"):
        BDI_BUFFERED.check(facts_with([0, 9], actions_per_state=7, successors_per_action=7))
    assert BDI_BUFFERED.refuses(facts_with([0, 9], actions_per_state=47, successors_per_action=1)) is None


def test_a_device_without_memory_for_values_is_refused_in_bytes(large: Callable[[str], Store]) -> None:
    facts, small = ModelFacts.of(large("car").facts, DISCOUNT), SimpleBackend(EmulatedDevice(100), PLAIN)
    layout = small.layout(facts, Needs())
    with pytest.raises(MemoryBudgetError, match=r"899 states need .* which has 100 B free"):
        small.start(facts, layout, None, None)


def test_a_workspace_is_in_the_plan_and_allocated(large: Callable[[str], Store]) -> None:
    device, facts = EmulatedDevice(1 << 20), ModelFacts.of(large("car").facts, DISCOUNT)
    without = SimpleBackend(device, PLAIN)
    backend = SimpleBackend(device, replace(PLAIN, workspace=lambda facts: 8 * facts.max_rows))
    planned, less = (each.layout(facts, Needs()).device for each in (backend, without))
    assert "workspace" not in less
    more = sum(planned.values()) - sum(less.values())
    assert planned["workspace"] == more == aligned(8 * facts.largest_partition * 3)
    left = []
    for each in (without, backend):
        each.start(facts, each.layout(facts, Needs()), None, None)
        left.append(device.memory_free())
        each.close()
    assert left[0] - left[1] == more


@pytest.mark.parametrize("name", STORES)
def test_no_partition_has_more_rows_than_are_planned_for(name: str, large: Callable[[str], Store]) -> None:
    store = large(name)
    facts = ModelFacts.of(store.facts, DISCOUNT)
    rows = max(store.read(p)[0].n_rows for p in range(store.n_partitions))
    assert rows == facts.max_rows if facts.actions_per_state else rows <= facts.max_rows <= 8 * rows


@pytest.mark.parametrize("name", STORES)
def test_no_partition_has_more_transitions_than_are_planned_for(name: str, large: Callable[[str], Store]) -> None:
    store = large(name)
    facts = ModelFacts.of(store.facts, DISCOUNT)
    most = max(store.read(p)[0].successors.size for p in range(store.n_partitions))
    uniform = facts.actions_per_state and facts.successors_per_action
    assert most == facts.most_transitions if uniform else most <= facts.most_transitions <= 4 * most


def test_rdi_refuses_a_budget_without_room_for_its_results(large: Callable[[str], Store]) -> None:
    facts = ModelFacts.of(large("uniform with durations").facts, DISCOUNT)
    needed = 8 * (facts.most_transitions + facts.max_rows)
    backend = SimpleBackend(emulated(), RDI)
    assert backend.layout(facts, Needs()).device["workspace"] == aligned(needed)
    with pytest.raises(MemoryBudgetError, match=r"--kernel rdi needs a workspace of .*smaller partitions"):
        backend.layout(facts, Needs(device_memory=needed))


# -------------------------------------------------------------------------------------------------------- catalogue


def test_words_are_unique_and_every_entry_is_complete() -> None:
    words = [k.word for k in SIMPLE_KERNELS]
    assert len(set(words)) == len(words)
    for kernel in SIMPLE_KERNELS:
        assert all([kernel.summary, kernel.paper, kernel.assumptions, kernel.advice, kernel.launches])
        assert kernel.backups >= 1
