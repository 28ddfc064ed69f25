"""Real MDPs with certified reference values: each method, priority and cache size proves what the reference shows."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from kernel_words import skip_where_refused
from paths import PUBLIC
from small_mdps import rows_of

import ooc_mdp
from ooc_mdp.backends.cuda.simple.literature.catalogue import SIMPLE_KERNELS
from ooc_mdp.backends.device_kernels import DEVICE_KERNELS
from ooc_mdp.backends.layout import Needs
from ooc_mdp.backends.select import select_backend
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.options import DEFAULT_KERNEL
from ooc_mdp.reference import policy_iteration
from ooc_mdp.store import Store

NAMES = sorted(p.name for p in PUBLIC.glob("*") if (p / "case.json").exists()) if PUBLIC.exists() else []
METHODS = [
    ("vi", None),
    ("p-eva", "joint"),
    ("p-eva", "h1"),
    ("p-eva", "h2"),
    ("p-eva", "hybrid"),
    ("p-eva", "exact-h1"),
    ("p-eva", "exact-h2"),
    ("p-eva", "exact-hybrid"),
    ("policy-iteration", None),
    ("auto", None),
]
SIMPLE = range(2)
"""Of the methods: those by which simple kernels solve each case."""
SPIRALS = {"gym-frozenlake-4x4", "qvbs-consensus-2-2", "sutton-barto-car-rental"}
"""Strongly coupled: exact H2 converges one partition at a time, thousands of times over (no result differs)."""

pytestmark = pytest.mark.skipif(not NAMES, reason="the shared cases are not here")


def problems(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((PUBLIC / name / "case.json").read_text())["problems"]
    return found


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Store]:
    """One store for each case and sense, made when it is first asked for."""

    class Stores(dict[tuple[str, str], Store]):
        def __missing__(self, key: tuple[str, str]) -> Store:
            name, sense = key
            place = tmp_path_factory.mktemp("stores") / f"{name}-{sense}.zarr"
            n = np.load(PUBLIC / name / "model.npz")["state_ptr"].size - 1
            self[key] = ooc_mdp.convert(PUBLIC / name / "model.npz", place, sense=sense, partitions=min(n, 5))
            return self[key]

    return Stores()


CACHES = ["all", "22%", "two"]
"""All of the table; 22% of it, or what the largest partition needs; the smallest that holds two partitions."""


def cache_sizes(store: Store, device: str, kernel: str) -> dict[str, int]:
    """The sizes of `CACHES` in bytes."""
    backend = select_backend(device, kernel=kernel)
    sizes = np.sort(backend.layout(ModelFacts.of(store.facts, 0.5), Needs()).entries)
    table = int(sizes.sum())
    return dict(zip(CACHES, (table, max(int(0.22 * table), int(sizes[-1])), int(sizes[-2:].sum())), strict=True))


def check(name: str, problem: dict[str, Any], store: Store, solution: ooc_mdp.Solution) -> None:
    reference = np.load(PUBLIC / name / "reference.npz")
    expected = reference["V_" + problem["key"]]
    error = float(np.abs(solution.values - expected).max())
    assert solution.outcome.proved
    assert solution.error_bound <= 1e-6 * max(1.0, float(np.abs(expected).max()))
    assert error <= solution.error_bound
    model = np.load(PUBLIC / name / "model.npz")
    actions = np.diff(model["state_ptr"])
    optimal = np.unpackbits(reference["opt_" + problem["key"]])[: int(model["state_ptr"][-1])].astype(bool)
    clear = reference["gap_" + problem["key"]] > solution.error_bound
    for s in range(actions.size):
        choice = int(solution.policy[s])
        if actions[s] == 0:
            assert choice == -1
        else:
            assert 0 <= choice < actions[s]
            assert optimal[model["state_ptr"][s] + choice] or not clear[s]
    s = solution.statistics
    assert s.cache_peak_bytes <= s.cache_bytes
    assert s.hits + s.misses == s.accesses


def solve_all(
    name: str,
    stores: dict[tuple[str, str], Store],
    device: str,
    kernel: str = DEFAULT_KERNEL,
    taken: Callable[[int, int], bool] = lambda method, cache: True,
) -> None:
    """Solve each problem of a case by the pairs of a method and a cache that are taken, by their numbers.

    Simple kernels only change values: orders of visits and small caches are the default kernel's to show.
    """
    simple = kernel != DEFAULT_KERNEL
    for problem in problems(name):
        store = stores[name, problem["objective"]]
        skip_where_refused(kernel, store, problem["discount"])
        scale = max(1.0, *(abs(v) for v in problem["value_range"]))
        for number, (method, priority) in enumerate(METHODS):
            if priority == "exact-h2" and name in SPIRALS:
                continue
            for size, cache in enumerate(cache_sizes(store, device, kernel).values()):
                if not taken(number, size) or (simple and (number not in SIMPLE or CACHES[size] == "two")):
                    continue
                solution = ooc_mdp.solve(
                    store,
                    problem["discount"],
                    epsilon=1e-6 * scale,
                    method=method,
                    priority=priority,
                    cache=cache,
                    device=device,
                    kernel=kernel,
                )
                check(name, problem, store, solution)


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["pairs", "all"])
@pytest.mark.parametrize("name", NAMES)
def test_each_method_and_cache_proves_the_reference_values_on_the_cpu(
    name: str, every: bool, stores: dict[tuple[str, str], Store]
) -> None:
    """In the quick test cases and methods take turns with the caches, so that every two of the three meet.

    Exact priorities meet the strongly coupled cases in the slow one only.
    """
    turn = NAMES.index(name)

    def taken(method: int, cache: int) -> bool:
        exact = (METHODS[method][1] or "").startswith("exact-") and name in SPIRALS
        return every or ((turn + method + cache) % len(CACHES) == 0 and not exact)

    solve_all(name, stores, "cpu", taken=taken)


def test_methods_cases_and_caches_meet_in_pairs() -> None:
    met = {(method, -(turn + method) % len(CACHES)) for turn in range(len(NAMES)) for method in range(len(METHODS))}
    assert len(met) == len(METHODS) * len(CACHES)
    for turn in range(len(NAMES)):
        assert {-(turn + method) % len(CACHES) for method in range(len(METHODS))} == set(range(len(CACHES)))


@pytest.mark.parametrize("method", ["policy-iteration", "auto"])
@pytest.mark.parametrize("cache", ["22%", *(pytest.param(c, marks=pytest.mark.slow) for c in ("all", "two"))])
@pytest.mark.parametrize("name", NAMES)
def test_cases_near_discount_1_have_the_values_of_exact_policy_iteration(
    name: str, cache: str, method: str, stores: dict[tuple[str, str], Store]
) -> None:
    """At 0.999, where few cases have reference values of their own."""
    for sense in sorted({problem["objective"] for problem in problems(name)}):
        store = stores[name, sense]
        best = policy_iteration(rows_of(store), 0.999, sense).values
        size = max(1.0, float(np.abs(best).max()))
        held = cache_sizes(store, "cpu", DEFAULT_KERNEL)[cache]
        solution = ooc_mdp.solve(store, 0.999, epsilon=1e-6 * size, method=method, cache=held, device="cpu")
        assert solution.outcome.proved
        assert solution.error_bound <= 1e-6 * size
        assert float(np.abs(solution.values - best).max()) <= solution.error_bound + 1e-10 * size


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["100%", "22%"])
@pytest.mark.parametrize("kernel", [kernel.word for kernel in SIMPLE_KERNELS])
@pytest.mark.parametrize("name", NAMES)
def test_each_schedule_proves_the_reference_values_on_the_cpu(
    name: str, kernel: str, cache: str, stores: dict[tuple[str, str], Store]
) -> None:
    for problem in problems(name):
        store = stores[name, problem["objective"]]
        skip_where_refused(kernel, store, problem["discount"])
        epsilon = 1e-6 * max(1.0, *(abs(v) for v in problem["value_range"]))
        how: dict[str, Any] = {"method": "vi", "cache": cache, "device": "cpu", "kernel": kernel}
        check(name, problem, store, ooc_mdp.solve(store, problem["discount"], epsilon=epsilon, **how))


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", DEVICE_KERNELS)
@pytest.mark.parametrize("name", NAMES)
def test_each_method_and_cache_proves_the_reference_values_on_the_gpu(
    name: str, kernel: str, stores: dict[tuple[str, str], Store]
) -> None:
    solve_all(name, stores, "cuda:0", kernel)
