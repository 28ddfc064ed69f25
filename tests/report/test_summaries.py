"""The summary of a solve names what to try next."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_mdps import Case, make_store
from store_models import random_model

import ooc_mdp
from ooc_mdp.report import solve_summary
from ooc_mdp.report.solve_summary import print_solution
from ooc_mdp.report.summaries import print_inspection, print_verification
from ooc_mdp.store.inspect import inspect_store


@pytest.mark.parametrize("target", ["epsilon", "residual"])
def test_a_target_that_is_too_small_is_answered_with_the_least_that_is_possible(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str
) -> None:
    store = make_store(Case(random_model(3, 20)), tmp_path / "s")
    solution = ooc_mdp.solve(store, 0.9, device="cpu", **{target: 1e-30})  # type: ignore[arg-type]
    print_solution(solution.summary(), solution.outcome, None)
    said = capsys.readouterr().out
    assert (
        "precision_limit: the target is below what can be proved of float64 values; the least that is possible is "
        f"--{target} {solution.least_target:g}"
    ) in said


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        (0.12345678901249, 0.12345678901241, "[0.123456789012, 0.123456789013]"),
        (-0.12345678901241, 2.000000000001e-7, "[-0.123456789013, 2.00000000001e-07]"),
        (1e-320, 1.0, "[9.99988867182e-321, 1]"),
        (-np.inf, np.inf, "[-inf, inf]"),
        ("-inf", 0, "[-inf, 0]"),
    ],
)
def test_ends_of_an_interval_are_rounded_outward(low: float | str, high: float | str, shown: str) -> None:
    assert solve_summary._interval(low, high) == shown
    assert float(shown[1:].split(",")[0]) <= float(low)
    assert float(shown[:-1].split(", ")[1]) >= float(high)


@pytest.fixture
def shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., list[tuple[str, str]]]:
    """Names and texts of the rows of a solve's summary."""
    store = make_store(Case(random_model(3, 20)), tmp_path / "s")

    def rows(output: Path | None = None, verbose: bool = False, **options: Any) -> list[tuple[str, str]]:
        solution = ooc_mdp.solve(store, 0.9, device="cpu", output=output, **options)
        print_solution(solution.summary(), solution.outcome, output, "a b.store", verbose)
        lines = capsys.readouterr().out.splitlines()
        return [(line.split()[0], line.partition(" ")[2].strip()) for line in lines]

    return rows


def test_the_summary_begins_with_what_is_proved_and_the_values(shown: Callable[..., Any]) -> None:
    rows = shown(epsilon=1e-3)
    assert rows[0][0] == "PROVED"
    assert rows[0][1].startswith("|V - V*| ≤ ")
    assert rows[0][1].endswith("in every state (target: 1.0e-03)")
    assert [name for name, _ in rows] == ["PROVED", "values", "policy", "method", "table", "loads", "time", "result"]
    assert dict(rows)["values"].startswith("min ")


@pytest.mark.parametrize(
    ("method", "reader"),
    [("vi", "; ooc-mdp cache-curve t.csv"), ("p-eva", "; its accesses depend on the size of the cache")],
)
def test_of_a_trace_the_summary_names_what_reads_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, method: Any, reader: str
) -> None:
    store = make_store(Case(random_model(3, 20)), tmp_path / "s")
    solution = ooc_mdp.solve(store, 0.9, method=method, device="cpu")
    print_solution(solution.summary(), solution.outcome, None, trace=Path("t.csv"))
    (row,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("trace")]
    assert f"t.csv{reader}" in row


def test_a_policy_that_can_be_simulated_is_offered_for_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    store = ooc_mdp.generate("mountain-car", tmp_path / "s", {"grid": "8,8"}, device="cpu")
    solution = ooc_mdp.solve(store, 0.9, device="cpu")
    ways = ([], "; ooc-mdp simulate r\n"), (["--trust"], "; ooc-mdp simulate r --trust\n"), (None, "s r\n")
    for options, command in ways:
        print_solution(solution.summary(), solution.outcome, Path("r"), "s", simulate=options)
        assert capsys.readouterr().out.endswith(command)


def test_what_a_residual_proves_is_a_share_of_the_value_range(shown: Callable[..., Any]) -> None:
    rows = dict(shown(residual=0.5, method="vi"))  # which ends as soon as it may
    assert rows["STOPPED"].partition(", ")[2].startswith(("more than the value range", *(f"{n}%" for n in range(100))))
    assert rows["STOPPED"].endswith("(target: plain residual 5.0e-01)")
    assert rows["outcome"].startswith("residual_reached: ")


def test_a_solve_that_was_stopped_at_once_has_proved_nothing(shown: Callable[..., Any]) -> None:
    rows = dict(shown(time_limit=1e-9))
    assert "outcome" in rows
    assert rows["outcome"].startswith("time_limit: ")


def test_the_summary_ends_with_the_next_commands(shown: Callable[..., Any], tmp_path: Path) -> None:
    rows = shown(output=tmp_path / "r")
    assert rows[-1] == (
        "next",
        f"ooc-mdp report {tmp_path / 'r'}; ooc-mdp verify 'a b.store' {tmp_path / 'r'}",
    )


def test_counters_and_the_memory_plan_are_shown_on_request(shown: Callable[..., Any]) -> None:
    rows = dict(shown(verbose=True))
    assert {"residual", "cache", "bytes", "work", "memory"} <= set(rows)
    assert "process " in rows["memory"]


@pytest.mark.parametrize(
    ("invalid", "row"), [(0, "an available action in every state"), (3, "no available action in 3 states")]
)
def test_a_verification_states_whether_the_policy_is_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], invalid: int, row: str
) -> None:
    store = make_store(Case(random_model(3, 20)), tmp_path / "s")
    checked = ooc_mdp.verify(store, ooc_mdp.solve(store, 0.9, device="cpu", epsilon=1e-3))
    print_verification({**checked.summary(), "invalid_policy_states": invalid})
    assert f"policy   {row}\n" in capsys.readouterr().out


def test_an_inspection_gives_the_options_of_a_problem_as_they_are_typed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ooc_mdp.generate("mountain-car", tmp_path / "s", {"grid": 10, "thrust": 5.0}, device="cpu")
    print_inspection(inspect_store(store))
    (options,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("  options"))
    assert "thrust=5.0" in options
    assert "{" not in options
