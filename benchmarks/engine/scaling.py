"""One table on one GPU and on several, and tables that grow with the GPUs: what do more of them bring?

    python scaling.py --folder /disk --counts 1,2 --output FILE.json
    python scaling.py --cases car,double --counts 1,2,4 --scale 8
    python scaling.py --cases car --epsilon 1e-3 --uncompressed
    python scaling.py --device cpu --counts 1,2,4 --placements blocks,attractors:5

    strong   the same table on N GPUs, each with a cache of `--cache` of it, so that four hold what one must stream
    weak     a table of N times as many states on N GPUs, each with a cache as large as that of one before

    speed-up = seconds of one / seconds of N,   efficiency = speed-up / N        (weak: the speed-up itself)

in seconds of the whole call (`solve_speed_up`: of the solve, without putting its result in the problem's order). One
process drives all GPUs, as one device. With `--device cpu`, N counts workers, as several hosts would have them, and one
more solve is made in this process without any Dask (`plain`); placements of partitions on workers are compared on the
strong tables. Stores are generated to a folder and read once before each solve, so that they come from the page cache.
Every solve follows one of the same store on the same GPUs or workers that is ended after a second, which compiles
and loads kernels. What `--within` leaves no time for is named in the figures.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.util
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import dask
import numpy as np
from common import device_facts, make_warm, measuring, say, store_figures, uncompressed
from distributed import Client

import ooc_mdp
from ooc_mdp.distributed.cluster import local_cluster
from ooc_mdp.store import Store

NOT_INCLUDED = (
    "call seconds, of which speed-ups are: starting the cluster, importing and compiling; they do include allocating, "
    "reading halos, and putting values and policy together in the problem's own order of states",
    "weak: a larger grid of the same problem needs more sweeps a state, which counts as lost here; backups a second "
    "stand beside the seconds",
    "the network of several hosts: all workers are processes of one machine",
)
PLACEMENTS = "auto,attractors:5,attractors:30,metis,random"
_BEFOREHAND = 1.0
"""Seconds of a solve that is not counted."""


@dataclass(frozen=True)
class Case:
    """A problem, how it is cut and how it is solved."""

    problem: str
    points: tuple[int, ...]
    """Along each axis; of a random MDP: its states."""
    toy: tuple[int, ...]
    blocks: tuple[int, ...]
    """Partitions along each axis, or in all."""
    discount: float = 0.9
    parameters: dict[str, Any] = field(default_factory=dict)
    asked: dict[str, Any] = field(default_factory=lambda: {"residual": 1e-4})
    toy_blocks: tuple[int, ...] = ()

    def as_toy(self) -> Case:
        """A tiny one of the same kind, of few partitions."""
        return replace(self, points=self.toy, blocks=self.toy_blocks or tuple(min(2, n) for n in self.blocks))

    def grown(self, times: float) -> tuple[int, ...]:
        """Points of a table of so many times the states, about."""
        return tuple(round(n * times ** (1 / len(self.points))) for n in self.points)

    def generate(self, path: Path, times: float, device: str) -> tuple[Store, float]:
        """The store of a table of so many times the states, and the seconds that it took."""
        points, how = self.grown(times), {"device": device if device == "cpu" else "auto"}
        cut: dict[str, Any] = {"partition_grid": list(self.blocks)}
        named: dict[str, Any] = {"grid": ",".join(map(str, points))}
        if self.problem == "random":
            cut, named = {"partitions": self.blocks[0]}, {"states": points[0]}
        began = time.monotonic()
        store = ooc_mdp.generate(self.problem, path, self.parameters | named, dtype="float32", **cut, **how)
        return store, time.monotonic() - began


CASES = {
    "car": Case("mountain-car", (14_000, 14_000), (30, 30), (20, 20), toy_blocks=(3, 3)),
    "single": Case("single-pendulum", (10_000, 10_000), (20, 20), (20, 20)),
    "double": Case("double-pendulum", (80,) * 4, (5,) * 4, (4,) * 4, parameters={"hold": 0}),
    "triple": Case("triple-pendulum", (18,) * 6, (4,) * 6, (3, 3, 3, 2, 2, 2), parameters={"hold": 0}),
    "cart-pole": Case(
        str(Path(__file__).resolve().parents[2] / "docs/examples/cart_pole.py"),
        (60, 60, 80, 80),
        (6, 6, 8, 8),
        (5, 5, 5, 5),
    ),
    "large car": Case("mountain-car", (28_000, 28_000), (30, 30), (30, 30), toy_blocks=(3, 3)),
    "huge car": Case("mountain-car", (54_800, 54_800), (30, 30), (40, 40), toy_blocks=(3, 3)),
    "random": Case(
        "random",
        (1_000_000,),
        (300,),
        (128,),
        0.99,
        {"actions": 8, "successors": 5, "seed": 1},
        {"epsilon": 1e-3, "method": "policy-iteration"},
        (6,),
    ),
}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES), help="of " + ", ".join(CASES))
    parser.add_argument(
        "--counts", default="1,2", help="numbers of GPUs, or of workers on the CPU, the first of them 1"
    )
    parser.add_argument("--placements", default=PLACEMENTS, help="compared where there are several workers")
    parser.add_argument("--parts", default="strong,weak")
    parser.add_argument("--cache", type=float, default=30.0, help="of each GPU or worker, %% of the strong table")
    parser.add_argument("--scale", type=float, default=1.0, help="times the states of every case")
    parser.add_argument("--epsilon", type=float, help="error to be proved, in place of what each case asks for")
    parser.add_argument("--uncompressed", action="store_true", help="store what is encoded as it is: the most to read")
    parser.add_argument("--repeat", type=int, default=1, help="solves of each kind; the fastest counts")
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds of a solve")
    parser.add_argument("--within", type=float, default=540.0, help="seconds after which nothing more is begun")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--toy", action="store_true", help="tiny tables on workers that are threads of this process")
    parser.add_argument("--folder", type=Path, help="where stores are made; a temporary folder by default")
    measuring.add_common_options(parser)
    options = parser.parse_args(arguments)
    for name in ("cases", "placements", "parts"):
        setattr(options, name, getattr(options, name).split(","))
    options.counts = [int(n) for n in options.counts.split(",")]
    if options.counts[0] != 1 or len(set(options.counts)) < len(options.counts):
        parser.error("--counts begins with 1, and names each number once")
    if options.device == "cuda":
        options.placements = ["auto"]  # there is one process, which has all partitions
    if unknown := set(options.cases) - set(CASES) | set(options.parts) - {"strong", "weak"}:
        parser.error(f"there is no {', '.join(sorted(unknown))}; see --help")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    facts: dict[str, Any] = {"machine": measuring.machine(options.machine_shared), "versions": measuring.versions()}
    facts["machine"] |= device_facts("cpu" if options.device == "cpu" else "cuda:0")
    folder = Path(tempfile.mkdtemp(prefix="ooc-mdp-benchmark-", dir=options.folder))
    options.folder = None  # figures name no place
    scaling = Scaling(options, folder)
    try:
        for _ in scaling.steps():
            measuring.write_figures("scaling", options, scaling.figures(), facts, NOT_INCLUDED)
        measuring.write_figures("scaling", options, scaling.figures(), facts, NOT_INCLUDED)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    scaling.show()


class Scaling:
    """Solves of all cases, and what they have found so far.

    Parameters
    ----------
    folder : where stores are made.
    """

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self._options, self._folder = options, folder
        self._began = time.monotonic()
        self._stores: dict[tuple[str, int], Store] = {}
        """By case, and times the states of the strong one."""
        self._made: dict[str, dict[str, Any]] = {}
        self._values: dict[tuple[str, int], tuple[np.ndarray, float]] = {}
        """Of the first solve of a table that got there, and its error."""
        self.solves: list[dict[str, Any]] = []
        self.left_out: list[str] = []

    def steps(self) -> Iterator[None]:
        """Work, solve by solve."""
        options = self._options
        for name in options.cases:
            if self._late(f"{name}, all of it"):
                continue
            store = self._store(name, 1)
            if options.device == "cpu":
                yield from self._solve(name, store, 1, "plain", 0, {})
        for count in options.counts if self._stores else ():
            with places(options, count, self._folder) as where:
                for name in (case for case in options.cases if (case, 1) in self._stores):
                    if "strong" in options.parts:
                        for placement in options.placements if count > 1 else options.placements[:1]:
                            if placement == "metis" and importlib.util.find_spec("pymetis") is None:
                                self._leave_out(f"{name}, {count}, metis: pymetis is not installed")
                            else:
                                yield from self._solve(
                                    name, self._stores[name, 1], 1, "strong", count, where, placement
                                )
                    if "weak" in options.parts and count > 1 and not self._late(f"{name}, {count}, weak"):
                        store = self._store(name, count)
                        yield from self._solve(name, store, count, "weak", count, where, options.placements[0])
                        shutil.rmtree(self._stores.pop((name, count)).path)

    def _store(self, name: str, times: int) -> Store:
        case = CASES[name].as_toy() if self._options.toy else CASES[name]
        path = self._folder / f"{name}-{times}"
        with uncompressed() if self._options.uncompressed else contextlib.nullcontext():
            store, seconds = case.generate(path, times * self._options.scale, self._options.device)
        say(f"{name}: {store.n_states:,} states in {store.n_partitions} partitions, generated in {seconds:.1f} s")
        self._stores[name, times] = store
        self._made[f"{name} x {times}"] = store_figures(store, seconds)
        return store

    def _solve(
        self,
        name: str,
        store: Store,
        times: int,
        part: str,
        count: int,
        where: dict[str, Any],
        placement: str | None = None,
    ) -> Iterator[None]:
        """Solve, `where` on so many GPUs or workers; on 0 in this process without any."""
        options = self._options
        compared = placement if count > 1 and "workers" in where else None
        what = f"{name}, {part}, {count}" + (f", {compared}" if compared else "")
        case = CASES[name]
        asked: dict[str, Any] = {"discount": case.discount, "cache": f"{options.cache / times}%"} | self._asked(case)
        asked |= {"device": "cpu", "checkpoint_interval": 3600.0} | where
        if "workers" in where:
            asked["placement"] = placement
        if self._late(what):
            return
        warm = make_warm(store.path)
        ooc_mdp.solve(store, **asked, time_limit=_BEFOREHAND)
        for _ in range(options.repeat):
            began = time.perf_counter()
            solution = ooc_mdp.solve(store, **asked, time_limit=options.time_limit)
            seconds = time.perf_counter() - began
            found = {
                "case": name,
                "part": part,
                "count": count,
                "placement": compared,
                "states": store.n_states,
                "page_cache_share": warm["cached_share"],
                "call_seconds": seconds,
                **figures_of(solution),
                "agrees": self._agrees((name, times), solution),
            }
            self.solves.append(found)
            say(
                f"{what}: {found['outcome']} in {seconds:.2f} s, "
                f"{found['loads_per_partition']:.2f} loads per partition, "
                f"hit rate {found['hit_rate']:.1%}, {found['backups_per_state']:.0f} backups per state"
            )
            del solution
            gc.collect()
            yield

    def _asked(self, case: Case) -> dict[str, Any]:
        if self._options.epsilon is None:
            return case.asked
        return {k: v for k, v in case.asked.items() if k != "residual"} | {"epsilon": self._options.epsilon}

    def _agrees(self, table: tuple[str, int], solution: ooc_mdp.Solution) -> bool | None:
        """Whether this and the table's first solution differ by no more than both prove; None of what ended early."""
        if not solution.outcome.proved:
            return None
        values, error = self._values.setdefault(table, (solution.values, solution.error_bound))
        return bool(np.abs(values - solution.values).max() <= error + solution.error_bound)

    def _late(self, what: str) -> bool:
        late = time.monotonic() - self._began > self._options.within
        if late:
            self._leave_out(f"{what}: --within {self._options.within:.0f} s were over")
        return late

    def _leave_out(self, what: str) -> None:
        self.left_out.append(what)
        say(f"left out: {what}")

    # ---------------------------------------------------------------------------------------------------- figures

    def figures(self) -> dict[str, Any]:
        """All so far."""
        return {
            "stores": self._made,
            "solves": self.solves,
            "ratios": self.ratios(),
            "left_out": self.left_out,
            "seconds": time.monotonic() - self._began,
        }

    def ratios(self) -> list[dict[str, Any]]:
        """Speed-ups of solves that got there, over one GPU or worker, and over no workers at all."""
        fastest: dict[tuple[Any, ...], dict[str, Any]] = {}
        for solve in self.solves:
            if solve["agrees"] is not None:
                key = tuple(solve[name] for name in ("case", "part", "count", "placement"))
                if key not in fastest or solve["call_seconds"] < fastest[key]["call_seconds"]:
                    fastest[key] = solve
        found = []
        for (case, part, count, placement), solve in fastest.items():
            if count < 2:
                continue
            ratio: dict[str, Any] = {"case": case, "part": part, "count": count, "placement": placement}
            one, plain = fastest.get((case, "strong", 1, None)), fastest.get((case, "plain", 0, None))
            for over, base in (("one", one), ("plain", plain)):
                if base is not None:
                    up = base["call_seconds"] / solve["call_seconds"]
                    ratio[f"speed_up_over_{over}"] = up
                    ratio[f"efficiency_over_{over}"] = up / count if part == "strong" else up
                    ratio[f"solve_speed_up_over_{over}"] = base["solve_seconds"] / solve["solve_seconds"]
                    ratio[f"backup_rate_over_{over}"] = solve["backups_per_second"] / base["backups_per_second"]
            found.append(ratio)
        return found

    def show(self) -> None:
        """As a table."""
        headers = ("case", "part", "count", "placement", "seconds", "over one", "over plain", "efficiency")
        ratios = {(r["case"], r["part"], r["count"], r["placement"]): r for r in self.ratios()}
        rows = []
        for s in self.solves:
            ratio = ratios.get((s["case"], s["part"], s["count"], s["placement"]), {})
            seconds = f"{s['call_seconds']:.2f}" + ("" if s["agrees"] is not None else f" {s['outcome']}")
            over = (f"{ratio[k]:.2f}" if k in ratio else "" for k in ("speed_up_over_one", "speed_up_over_plain"))
            efficiency = f"{ratio['efficiency_over_one']:.2f}" if "efficiency_over_one" in ratio else ""
            place = s["placement"] or ""
            rows.append((s["case"], s["part"], str(s["count"]), place, seconds, *over, efficiency))
        measuring.print_table(headers, rows)


@contextlib.contextmanager
def places(options: argparse.Namespace, count: int, folder: Path) -> Iterator[dict[str, Any]]:
    """Options of a solve on so many GPUs, or workers of this machine; threads put what they write in the folder."""
    if options.device == "cuda":
        yield {"device": f"cuda:{','.join(map(str, range(count)))}"}
    elif options.toy:
        threads: dict[str, Any] = {"processes": False, "n_workers": count, "threads_per_worker": 1}
        with dask.config.set({"temporary-directory": folder}), Client(**threads, dashboard_address=":0") as client:
            yield {"workers": client}
    else:
        with local_cluster(count) as client:
            yield {"workers": client}


def figures_of(solution: ooc_mdp.Solution) -> dict[str, Any]:
    """What a solve cost."""
    summary = solution.summary()
    kept = (
        "outcome",
        "method",
        "error_bound",
        "residual_bound",
        "solve_seconds",
        "loads",
        "loads_per_partition",
        "hit_rate",
    )
    more = ("bytes_read", "backups", "policy_evaluations", "cache_bytes", "cache_peak_bytes", "partitions_unread")
    found = {name: summary[name] for name in (*kept, *more)}
    found["backups_per_state"] = summary["backups"] / summary["n_states"]
    found["backups_per_second"] = summary["backups"] / max(summary["solve_seconds"], 1e-9)
    # Figures name no machine.
    found["each_worker"] = [{k: v for k, v in worker.items() if k != "host"} for worker in summary["workers"]]
    found["messages"] = sum(worker["messages"] for worker in summary["workers"])
    found["bytes_sent"] = sum(worker["bytes_sent"] for worker in summary["workers"])
    return found


if __name__ == "__main__":
    main()
