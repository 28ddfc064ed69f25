"""Which method a solve begins with, row by row of the table of `choose_method`."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ooc_mdp
from ooc_mdp.backends.cpu.backend import CpuBackend
from ooc_mdp.backends.cpu.policy_rows import PolicyRows
from ooc_mdp.backends.layout import ROWS, TRIANGLE
from ooc_mdp.errors import OptionsError
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.options import SolveOptions
from ooc_mdp.solver.plan import MethodChoice, choose_method, plan_solve

DENSE, STRONG, WEAK = (True, True), (False, True), (False, False)
"""Whether everything reads everything, and whether a partition reads 12 or more."""
P_EVA_LATER = ("p-eva", "policy-iteration")


def choice(
    options: SolveOptions,
    coupling: tuple[bool, bool],
    *,
    cached: bool = False,
    rows: bool = True,
    fit: bool = True,
    synchronous: bool = True,
    device: bool = False,
    partitions: int = 31,
) -> MethodChoice:
    """The choice for a backend and a model of which nothing else is asked."""
    dense, strong = coupling
    backend: Any = SimpleNamespace(
        features=SimpleNamespace(overlaps_loads=device),
        policy_rows=object() if rows else None,
        synchronous=object() if synchronous else None,
    )
    model: Any = SimpleNamespace(
        mean_partitions_read=7.25, n_partitions=partitions, densely_coupled=dense, strongly_coupled=strong
    )
    return choose_method(options, backend, model, cached, fit)


def asked(method: str, **options: Any) -> SolveOptions:
    return SolveOptions(0.9, method=method, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("method", "cached", "of_dense", "of_strong", "of_weak"),
    [
        ("vi", False, ("synchronous vi", None), ("vi", None), ("vi", None)),
        ("p-eva", False, ("synchronous vi", None), ("p-eva", None), ("p-eva", None)),
        ("auto", True, ("synchronous vi", "policy-iteration"), ("policy-iteration", None), P_EVA_LATER),
        ("auto", False, ("policy-iteration", None), ("policy-iteration", None), P_EVA_LATER),
        ("policy-iteration", False, *[("policy-iteration", None)] * 3),
    ],
)
def test_the_table(method: str, cached: bool, of_dense: Any, of_strong: Any, of_weak: Any) -> None:
    for coupling, expected in ((DENSE, of_dense), (STRONG, of_strong), (WEAK, of_weak)):
        found = choice(asked(method), coupling, cached=cached)
        assert (found.first, found.then) == expected


def test_without_synchronous_sweeps_a_dense_model_is_solved_as_others() -> None:
    for method, expected in (("vi", "vi"), ("p-eva", "p-eva"), ("auto", "policy-iteration")):
        assert choice(asked(method), DENSE, cached=True, synchronous=False).first == expected
    assert choice(asked("vi", sweeps_per_visit=7), DENSE).first == "vi", "several sweeps are not synchronous"


def test_without_a_policys_rows_p_eva_stays() -> None:
    for lacking in ({"rows": False}, {"fit": False}):
        assert choice(asked("auto"), STRONG, **lacking).first == "p-eva"
    assert choice(asked("auto"), WEAK, rows=False).then is None
    with pytest.raises(OptionsError, match="needs kernels that keep"):
        choice(asked("policy-iteration"), WEAK, rows=False)


def test_within_a_devices_budget_no_method_follows_that_needs_more_room() -> None:
    assert choice(asked("auto", device_memory=1 << 30), WEAK, device=True).then is None


def test_a_backend_that_loads_while_it_sweeps_has_p_eva_of_its_own() -> None:
    found = choice(asked("auto"), WEAK, device=True)
    assert (found.first, found.shared) == ("p-eva on device", "p-eva on device")


@pytest.mark.parametrize(
    ("method", "shared"),
    [("vi", "vi"), ("p-eva", "p-eva"), ("auto", "p-eva"), ("policy-iteration", "policy-iteration")],
)
def test_while_others_have_partitions_the_method_is_p_eva_or_what_was_asked_for(method: str, shared: str) -> None:
    for coupling in (DENSE, STRONG, WEAK):
        assert choice(asked(method), coupling).shared == shared


def test_exact_priorities_have_a_method_of_their_own() -> None:
    found = choice(asked("p-eva", priority="exact-h2"), DENSE)
    assert (found.first, found.then, found.shared) == ("exact p-eva", None, "exact p-eva")
    assert "asked for" in found.reason


def test_the_reason_has_the_numbers() -> None:
    assert choice(asked("auto"), WEAK).reason == "a partition reads 7.2 of the 30 others on average"
    assert choice(asked("auto"), WEAK, partitions=1).reason == "there is one partition"


@pytest.mark.parametrize(
    ("method", "epsilon", "names"),
    [
        ("p-eva", 1e-6, []),
        ("p-eva", 1e-15, ["refinement beyond float64"]),
        ("auto", 1e-6, ["a change to policy iteration"]),
        ("auto", 1e-15, ["a change to policy iteration", "refinement beyond float64"]),
    ],
)
def test_a_plan_names_what_may_come_later(method: str, epsilon: float, names: list[str], tmp_path: Path) -> None:
    store = ooc_mdp.generate("GW-32x4", tmp_path / "s", partitions=4)
    options, facts = SolveOptions(0.9, epsilon=epsilon, method=method), ModelFacts.of(store.facts, 0.9)  # type: ignore[arg-type]
    with closing(CpuBackend()) as backend:
        memory = plan_solve(store, options, backend, facts, writes=False).memory
    assert list(memory.later) == names
    assert all(size > 50 * store.n_states for size in memory.later.values())
    assert ("if the solve comes to it" in memory.describe()) == bool(names)


def test_triangular_solves_may_come_later_where_partitions_read_everything(tmp_path: Path) -> None:
    """Elsewhere evaluations come to them as a rule, and the plan counts them from the beginning."""
    later = {}
    for name, parameters in (("random", {"states": 400, "seed": 1}), ("mountain-car", {"grid": "40,40"})):
        store = ooc_mdp.generate(name, tmp_path / name, parameters, partitions=16)
        options, facts = SolveOptions(0.9, method="policy-iteration"), ModelFacts.of(store.facts, 0.9)
        with closing(CpuBackend()) as backend:
            memory = plan_solve(store, options, backend, facts, writes=False).memory
        later[facts.densely_coupled] = memory.later
        assert memory.host[ROWS] + memory.later.get(TRIANGLE, 0) == PolicyRows.nbytes(facts)
    assert TRIANGLE in later[True]
    assert TRIANGLE not in later[False]


def test_sweeps_come_later_where_policy_iteration_begins(tmp_path: Path) -> None:
    """What they take in all is the same as where they begin."""
    store = ooc_mdp.generate("GW-64x4", tmp_path / "s", partitions=16)
    plans = {}
    for method in ("p-eva", "policy-iteration"):
        options, facts = SolveOptions(0.9, method=method), ModelFacts.of(store.facts, 0.9)  # type: ignore[arg-type]
        with closing(CpuBackend()) as backend:
            plans[method] = plan_solve(store, options, backend, facts, writes=False).memory
    sweeps = [plan.host["sweep workspace"] + plan.host.get("policy rows", 0) for plan in plans.values()]
    later = plans["policy-iteration"].later["sweeps where policy iteration stalls"]
    assert later > 0
    assert sweeps[0] == sweeps[1] + later
