"""Solves on several workers: right whatever the method, placement and number; what they cannot do is refused."""

from __future__ import annotations

import asyncio
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import PUBLIC
from small_mdps import Case, cases, distance, make_store, optimum, rows_of, stored
from store_models import random_model
from worker_clusters import Clusters, check, check_counts, placed, solve

import ooc_mdp
from ooc_mdp.distributed import cluster
from ooc_mdp.distributed import solve as solve_module
from ooc_mdp.errors import ClusterError, OptionsError
from ooc_mdp.model.criterion import TotalReward
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.solution import Outcome
from ooc_mdp.options import CacheSize, ClusterOptions, SolveOptions, requested_cluster
from ooc_mdp.reference import policy_iteration
from ooc_mdp.solver.plan import choose_shared_method
from ooc_mdp.store import Store

NAMES = sorted(p.name for p in PUBLIC.glob("*") if (p / "case.json").exists()) if PUBLIC.exists() else []
METIS = "metis" if find_spec("pymetis") is not None else "attractors:2"
METHODS: list[tuple[str, str | None]] = [
    ("p-eva", "joint"),
    ("p-eva", "h1"),
    ("p-eva", "h2"),
    ("vi", None),
    ("policy-iteration", None),
]
PLACEMENTS = ["blocks", "random", "attractors", METIS, "blocks, rebalanced", "random, rebalanced"]


@pytest.mark.skipif(not NAMES, reason="the shared cases are not here")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "workers", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(4, marks=pytest.mark.slow)]
)
def test_public_cases_on_several_workers_have_the_reference_values(
    workers: int, name: str, clusters: Clusters, tmp_path: Path
) -> None:
    """Methods and placements take turns over the cases; each result is written, and verified against the store."""
    problems = json.loads((PUBLIC / name / "case.json").read_text())["problems"]
    n = np.load(PUBLIC / name / "model.npz")["state_ptr"].size - 1
    stores = {
        sense: ooc_mdp.convert(
            PUBLIC / name / "model.npz", tmp_path / f"{sense}.store", sense=sense, partitions=min(n, 5), threads=1
        )
        for sense in {problem["objective"] for problem in problems}
    }
    turn = NAMES.index(name) + workers // 2
    for problem in problems:
        store = stores[problem["objective"]]
        expected = np.load(PUBLIC / name / "reference.npz")["V_" + problem["key"]]
        scale = max(1.0, float(np.abs(expected).max()))
        method, priority = METHODS[(turn + workers // 2) % len(METHODS)]
        output = tmp_path / problem["key"]
        solution = solve(
            store,
            problem["discount"],
            clusters[workers],
            method=method,
            priority=priority,
            **placed(PLACEMENTS[turn % len(PLACEMENTS)]),
            epsilon=1e-6 * scale,
            output=output,
        )
        assert solution.outcome.proved
        assert solution.error_bound <= 1e-6 * scale
        assert float(np.abs(solution.values - expected).max()) <= solution.error_bound
        check_counts(store, solution)
        assert ooc_mdp.verify(store, output).holds


@pytest.mark.parametrize(
    ("method", "priority", "placement"),
    [(*way, "random") for way in METHODS]
    + [("p-eva", "joint", placement) for placement in ("blocks", "blocks, rebalanced")]
    + [pytest.param(*way, "blocks, rebalanced", marks=pytest.mark.slow) for way in METHODS if way != ("p-eva", "joint")]
    + [
        pytest.param("p-eva", "joint", placement, marks=pytest.mark.slow)
        for placement in PLACEMENTS
        if placement not in ("random", "blocks", "blocks, rebalanced")
    ],
)
def test_each_method_and_placement_proves_the_values_of_a_ragged_table(
    method: str, priority: str | None, placement: str, ragged: Store, clusters: Clusters
) -> None:
    solution = solve(
        ragged, 0.9, clusters[4], method=method, priority=priority, epsilon=1e-4, **placed(placement), cache="30%"
    )
    check(ragged, 0.9, solution, size=100.0)
    assert f"4 workers, {placement}" in solution.method


@pytest.mark.parametrize("partitions", [1, 3])
def test_workers_without_a_partition_do_no_harm(partitions: int, clusters: Clusters, tmp_path: Path) -> None:
    store = make_store(Case(random_model(2, 12), partitions=partitions), tmp_path / "s")
    solution = solve(store, 0.9, clusters[4], epsilon=1e-8)
    check(store, 0.9, solution, size=100.0)
    assert sorted(w.partitions for w in solution.statistics.workers) == [0] * (4 - partitions) + [1] * partitions


@pytest.mark.parametrize(
    ("cache", "asked", "taken"),
    [
        ("49%", "auto", "policy-iteration"),
        ("51%", "auto", "p-eva joint"),
        ("49%", "p-eva", "p-eva joint"),
        ("51%", "policy-iteration", "policy-iteration"),
    ],
)
def test_loads_are_saved_by_policy_iteration_only_where_the_caches_of_all_workers_do_not_hold_the_table(
    cache: str, asked: str, taken: str, coupled: Store, clusters: Clusters
) -> None:
    """A double pendulum, whose partitions read 14 others each; nothing is left to do at its first values."""
    how = {"epsilon": 1e9, "cache": cache, "method": asked, "device": "cpu", "worker_timeout": 300.0}
    solution = ooc_mdp.solve(coupled, 0.9, workers=clusters[2], **how)
    assert solution.method == f"{taken}, 2 workers, blocks"


@pytest.mark.parametrize(("device", "taken"), [("cuda:0,1", "p-eva"), ("cuda:0", "policy-iteration")])
def test_each_gpu_of_a_worker_adds_its_cache(device: str, taken: str, coupled: Store) -> None:
    """Four caches of 26% hold the table, two do not."""
    options = SolveOptions(0.9, device=device, cache=CacheSize(share=0.26))
    assert choose_shared_method(ModelFacts.of(coupled.facts, 0.9), options, workers=2) == taken


@pytest.fixture(scope="module")
def everywhere(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A random MDP, whose partitions read all others and mostly these."""
    path = tmp_path_factory.mktemp("everywhere") / "s"
    return ooc_mdp.generate("random", path, {"states": 600, "actions": 3, "successors": 5, "seed": 1}, partitions=8)


@pytest.mark.parametrize(("cache", "sweeps"), [("100%", 200), ("30%", 60)])
def test_where_partitions_read_all_others_one_worker_does_what_one_process_does(
    cache: str, sweeps: int, everywhere: Store, clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All values are shifted together: at discount 0.9999 sweeps alone would take more than 100,000.

    Halos, which are long, need not be looked through for others' states.
    """
    monkeypatch.setattr("ooc_mdp.distributed.shard.split_halo", None)
    how = {"epsilon": 1e-6, "cache": cache, "placement": "auto", "method": "p-eva"}
    solution = solve(everywhere, 0.9999, clusters[4], **how)
    check(everywhere, 0.9999, solution, size=1e4)
    assert solution.method == "p-eva joint, 4 workers, single"
    workers = solution.statistics.workers
    assert sorted(w.partitions for w in workers) == [0, 0, 0, 8]
    assert [w.backups > 0 for w in workers] == [w.partitions > 0 for w in workers]
    assert sum(w.messages for w in workers) == 0
    assert solution.statistics.backups <= sweeps * everywhere.n_states


def test_several_workers_share_what_reads_everywhere_if_asked(everywhere: Store, clusters: Clusters) -> None:
    solution = solve(everywhere, 0.9, clusters[2], epsilon=1e-3)
    check(everywhere, 0.9, solution)
    assert solution.method == "p-eva joint, 2 workers, blocks"
    assert sorted(w.partitions for w in solution.statistics.workers) == [4, 4]


def test_a_plain_residual_is_proved_too(ragged: Store, clusters: Clusters) -> None:
    solution = solve(ragged, 0.9, clusters[2], residual=1e-5)
    best = policy_iteration(rows_of(ragged), 0.9, "min").values
    assert solution.outcome is Outcome.RESIDUAL_REACHED
    assert solution.certificate.residual_bound <= 1e-5
    assert float(np.abs(solution.values - best).max()) <= solution.error_bound


@settings(max_examples=8)
@given(
    case=cases(max_states=10, shortest=0.3),
    way=st.sampled_from(METHODS),
    placement=st.sampled_from(["random", "blocks, rebalanced", "blocks"]),
    workers=st.sampled_from([2, 4]),
)
def test_the_certified_error_holds_against_exact_policy_iteration(
    case: Case, way: tuple[str, str | None], placement: str, workers: int, clusters: Clusters
) -> None:
    with stored(case) as store:
        best = optimum(rows_of(store), 0.9, case.sense)
        first = [state.initial_value for state in case.model.states]  # rounding goes by the largest value so far
        scale = max(1.0, *(abs(float(v)) for v in (*best, *first)))
        solution = solve(
            store,
            0.9,
            clusters[workers],
            method=way[0],
            priority=way[1],
            **placed(placement),
            epsilon=1e-5 * scale,
            cache="100%",
        )
        assert solution.outcome.proved
        assert max(abs(d) for d in distance(solution.values, best)) <= solution.error_bound


def test_workers_of_another_version_are_refused_before_anything_starts(
    ragged: Store, clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe = cluster.describe

    def older(packages: tuple[str, ...], dask_worker: Any = None) -> dict[str, Any]:
        facts = describe(packages, dask_worker)
        if dask_worker is None:
            facts["versions"]["numba"] = "0.1.2"
        return facts

    monkeypatch.setattr(cluster, "describe", older)
    monkeypatch.setattr(solve_module, "DaskTransport", None)
    with pytest.raises(ClusterError, match=r"versions differ: inproc://.* has numba .*, here is 0\.1\.2.*and 1 more"):
        solve(ragged, 0.9, clusters[4])


def test_a_cluster_without_workers_is_refused(ragged: Store, clusters: Clusters) -> None:
    with pytest.raises(ClusterError, match="no workers; start some"):
        solve(ragged, 0.9, clusters[0])


def test_an_asynchronous_client_is_refused(ragged: Store, clusters: Clusters) -> None:
    async def ask() -> None:
        async with Client(clusters[2].scheduler.address, asynchronous=True, set_as_default=False) as client:
            with pytest.raises(OptionsError, match="not asynchronous"):
                solve(ragged, 0.9, client)

    asyncio.run(ask())


def test_a_closed_client_is_refused(ragged: Store, clusters: Clusters) -> None:
    client = Client(clusters[2].scheduler.address, set_as_default=False)
    client.close()
    with pytest.raises(ClusterError, match="the client is closed; give one that is connected"):
        solve(ragged, 0.9, client)


def test_a_machine_with_several_gpus_solves_in_one_process_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ooc_mdp.backends.cuda.device.device_count", lambda: 4)
    assert requested_cluster(ClusterOptions()) is None
    assert requested_cluster(ClusterOptions(workers=4)) == ClusterOptions(workers=4)


@pytest.mark.parametrize("how", [{"placement": "random"}, {"worker_timeout": 3.0}, {"stage": "s"}])
def test_what_only_several_workers_have_is_refused_without_them(how: dict[str, Any], ragged: Store) -> None:
    with pytest.raises(OptionsError, match=r"worker_timeout and stage .* apply to solves on several workers"):
        ooc_mdp.solve(ragged, 0.9, device="cpu", **how)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"placement": "nearby"}, 'placement "nearby"'),
        ({"trace": "t.csv"}, "a trace is of one process"),
        ({"priority": "exact-h2"}, "on one machine only"),
        ({"worker_timeout": 0.0}, "worker timeout"),
    ],
)
def test_what_several_workers_cannot_do_is_refused(
    options: dict[str, Any], said: str, ragged: Store, clusters: Clusters
) -> None:
    with pytest.raises(OptionsError, match=said):
        solve(ragged, 0.9, clusters[2], **options)


def test_undiscounted_totals_are_left_to_one_machine(ragged: Store, clusters: Clusters) -> None:
    with pytest.raises(OptionsError, match="--total is solved on one machine only"):
        solve(ragged, TotalReward(), clusters[2])
