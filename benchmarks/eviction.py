"""Count the loads a partition of p-eva with each order of eviction, against the size of the cache.

Nothing is timed. Three orders: least recently used; clean partitions before dirty ones, and of those the lowest
priority first (`--eviction priority`); and the same with the clean ones in the order of their bounds, which the solver
does not offer, because of what is counted here. Tables lie in RAM, decoded; loads do not depend on that.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent / "papers" / "wingate2004"))

import measuring
from domains import InMemory

import ooc_mdp
from ooc_mdp.scheduling.priority import Priority
from ooc_mdp.scheduling.target import Target
from ooc_mdp.solver import start

ORDERS = ("lru", "priority", "bounds")
NOT_INCLUDED = (
    "time: loads are counted; the seconds are single runs in one process",
    "bytes: partitions are of about one size",
    "the spread: p-eva reads ahead on a thread, so that its counts differ a little from run to run",
)


@dataclass(frozen=True, slots=True)
class Case:
    """A problem, cut into partitions, and the rule by which it is solved."""

    problem: str
    parameters: dict[str, Any]
    blocks: list[int]
    rule: dict[str, float]

    def table(self) -> InMemory:
        """Computed, and kept in RAM."""
        return InMemory(ooc_mdp.open_problem(self.problem, self.parameters, blocks=self.blocks, device="cpu"))


def cases(toy: bool) -> dict[str, Case]:
    n, b, side, cut = (60, 6, 32, 4) if toy else (300, 30, 256, 16)
    papers = {"discount": 0.9, "residual": 1e-4}
    control = {"grid": f"{n},{n}", "time_unit": 1.0}
    return {
        "mountain-car": Case("mountain-car", control, [b, b], papers),
        "single-pendulum": Case("single-pendulum", control | {"hold": 0.0}, [b, b], papers),
        "gridworld": Case(f"GW-{side}x4", {"seed": 1}, [cut, cut], {"discount": 0.95, "epsilon": 1e-4}),
    }


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(cases(True)), help="separated by commas")
    parser.add_argument("--cache", default="22%,10%,5%", help="cache sizes, separated by commas")
    parser.add_argument("--priorities", default="joint,h1,h2,h1 exact,h2 exact", help="separated by commas")
    parser.add_argument("--toy", action="store_true", help="small grids, to see that everything runs")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds a solve")
    measuring.add_common_options(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    facts = {"machine": measuring.machine(options.machine_shared), "versions": measuring.versions()}
    solves = []
    for name in options.cases.split(","):
        case = cases(options.toy)[name]
        table = case.table()
        for priority in options.priorities.split(","):
            for cache in options.cache.split(","):
                for order in ORDERS:
                    solves.append({"case": name, **measure(case, table, priority, cache, order, options.time_limit)})
        show(name, [s for s in solves if s["case"] == name], options)
    measuring.write_figures("eviction", options, {"solves": solves}, facts, NOT_INCLUDED)


def measure(case: Case, table: InMemory, priority: str, cache: str, order: str, limit: float) -> dict[str, Any]:
    """The counts of one solve."""
    metric, _, exact = priority.partition(" ")
    with bounds_first() if order == "bounds" else nullcontext():
        solution = ooc_mdp.solve(
            table,
            **case.rule,
            cache=cache,
            device="cpu",
            priority=metric,  # type: ignore[arg-type]
            exact_priorities=bool(exact),
            eviction="lru" if order == "lru" else "priority",
            time_limit=limit,
        )
    if solution.outcome is ooc_mdp.Outcome.INTERRUPTED:
        raise SystemExit(solution.outcome.message.partition(";")[0])
    s = solution.statistics
    return {
        "priority": priority,
        "cache": cache,
        "order": order,
        "outcome": solution.outcome.word,
        "error_bound": solution.error_bound if np.isfinite(solution.error_bound) else None,
        "loads_per_partition": s.loads_per_partition,
        "backups_per_state": s.backups / s.n_states,
        "seconds": s.seconds,
    }


@contextmanager
def bounds_first() -> Iterator[None]:
    """Have the solver order clean partitions by their bounds, too."""

    def ranked(target: Target, priority: Priority) -> Callable[[Any], Any]:
        def rank(partitions: Any) -> Any:
            levels, dirty = target.levels(), target.dirty()[partitions]
            key = np.where(dirty, priority.rank(levels)[partitions], levels[partitions])
            place = np.empty(partitions.size)
            place[np.lexsort((key, dirty))] = np.arange(partitions.size)
            return place

        return rank

    with mock.patch.object(start, "eviction_rank", ranked):
        yield


def show(name: str, solves: list[dict[str, Any]], options: argparse.Namespace) -> None:
    caches = options.cache.split(",")
    rows = []
    for priority in options.priorities.split(","):
        cells = []
        for cache in caches:
            found = {s["order"]: s for s in solves if (s["priority"], s["cache"]) == (priority, cache)}
            texts = (
                f"{found[o]['loads_per_partition']:.2f}" if found[o]["outcome"] != "time-limit" else "-" for o in ORDERS
            )
            cells.append(" / ".join(texts))
        rows.append((priority, *cells))
    print(f"\n{name}: loads a partition, {' / '.join(ORDERS)}")
    measuring.print_table(("priority", *(f"cache {cache}" for cache in caches)), rows)


if __name__ == "__main__":
    main()
