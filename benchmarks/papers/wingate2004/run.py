"""Measure what the figures of chapters 5 and 12 of Wingate's thesis show (2004), beside what it says about them.

    python run.py --figure 12.1 --output FILE.json       one figure (12.1 brings 12.2, 12.12 brings 12.15, ...)
    python run.py --toy                                  all of them at sizes of a few seconds
    python run.py --figure 12.7 --thesis-sizes           12.7 to 12.11 as in their captions, on 16 cores
    python plots.py FILE.json ...                        the plots, from the figures' files

Solves stop at the thesis's rule, discount 0.9 and a plain residual of 1e-4; each has a time limit.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import measuring
from claims import CLAIMS
from domains import CAR, DOUBLE, SINGLE, Case, Domain
from experiments import VARIANTS, cache_curves, compare_methods, finished, never_processed, solve, targets
from hybrid import clusters, extremes, hybrid, show_clusters, show_extremes, show_hybrid

FIGURES = ("5.2", "5.6", "hybrid", "12.1", "12.3", "12.5", "12.7", "12.8", "12.10", "12.12", "12.13", "12.14", "12.18",
           "12.20", "target")  # fmt: skip
PARALLEL = ("12.7", "12.8", "12.10")
_SECOND = {"12.2": "12.1", "12.4": "12.3", "12.6": "12.5", "12.9": "12.8", "12.11": "12.10",
           "12.15": "12.12", "12.16": "12.13", "12.17": "12.14",
           "12.19": "12.18"}  # fmt: skip
"""Figures that show the same runs as another."""
NOT_INCLUDED = (
    "computing the tables, and in figures 12.1 to 12.6 and 12.18 to 12.19 loading them: they lie in RAM beforehand",
    "compiling or loading the kernels",
    "in figures 12.7 to 12.11 starting the workers",
    "the thesis's machine (a 2.8 GHz Pentium 4): its seconds are shown beside ours, ratios of seconds compared",
)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ", ".join((*FIGURES, *_SECOND))
    parser.add_argument("--figure", action="append", metavar="NUMBER", help=f"one of {names}; repeat for more")
    parser.add_argument("--toy", action="store_true", help="small grids, to see that everything runs")
    parser.add_argument("--repeat", type=int, default=3, help="solves of each kind, where seconds or loads vary")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds a solve")
    parser.add_argument(
        "--thesis-sizes", action="store_true", help="12.7 to 12.11 as in their captions, instead of on two cores"
    )
    parser.add_argument(
        "--budget", type=float, default=3600.0, help="12.7 to 12.11: seconds a figure, then no further solve begins"
    )
    measuring.add_common_options(parser)
    options = parser.parse_args(arguments)
    wanted = {_SECOND.get(name, name) for name in options.figure or FIGURES}
    if not wanted <= set(FIGURES):
        parser.error(f"no figure {', '.join(sorted(wanted - set(FIGURES)))}; there are {names}")
    options.figure = [name for name in FIGURES if name in wanted]
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    facts = {"machine": measuring.machine(options.machine_shared), "versions": measuring.versions()}
    for blocks in (1, 2):
        tiny = Case(CAR, 8, blocks).in_memory()
        for variant in VARIANTS:
            solve(tiny, variant, options.time_limit)  # loads the kernels
    figures = {}
    parallel = [name for name in options.figure if name in PARALLEL]
    for name, found in measure_parallel(parallel, options) if parallel else ():
        figures[name] = {"thesis": CLAIMS[name]} | found
        show_parallel(name, figures[name])
    for name in options.figure:
        if name not in PARALLEL:
            figures[name] = {"thesis": CLAIMS.get(name)} | measure(name, options)
            SHOW[name](name, figures[name])
    measuring.write_figures("wingate2004", options, {"figures": figures}, facts, NOT_INCLUDED)


def measure_parallel(names: Sequence[str], options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Figures 12.7 to 12.11, whose tables are computed once for all of them."""
    from parallel import P_EVA, PSVI, Tables, attractors, scaling, sizes

    which = sizes("toy" if options.toy else "thesis" if options.thesis_sizes else "small")
    with tempfile.TemporaryDirectory(prefix="ooc-mdp-benchmark-") as folder:
        tables = Tables(Path(folder))
        shared = tables, options.repeat, options.time_limit
        for name in names:
            tables.allow(options.budget)
            if name == "12.7":
                yield name, attractors(which, *shared)
            elif name == "12.8":
                yield name, scaling(which.p_eva, P_EVA, which, *shared)
            else:
                yield name, scaling(which.psvi, PSVI, which, *shared)


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """The numbers of one figure."""
    toy, repeat, limit = options.toy, options.repeat, options.time_limit
    if name == "5.2":
        return {"tables": extremes(toy, repeat, limit)}
    if name == "5.6":
        return {"tables": clusters(toy, repeat, limit)}
    if name == "hybrid":
        return hybrid(toy, repeat, limit, (22,) if toy else (5, 22))
    if name in ("12.1", "12.3"):
        domain = CAR if name == "12.1" else SINGLE
        sizes = (20, 40) if toy else (100, 160, 200, 260, 300, 360, 400)
        return {"tables": compare_methods([Case(domain, n, n // 20) for n in sizes], tuple(VARIANTS), repeat, limit)}
    if name == "12.5":
        sizes = (6,) if toy else (9, 12, 15, 18)
        return {"tables": compare_methods([Case(DOUBLE, n, n // 3) for n in sizes], tuple(VARIANTS), repeat, limit)}
    if name in ("12.12", "12.13", "12.14"):
        domain = {"12.12": CAR, "12.13": SINGLE, "12.14": DOUBLE}[name]
        caches = (22, 100) if toy else (2, 5, 10, 15, 22, 35, 50, 75, 100)
        return {"tables": [cache_curves(case, caches, limit) for case in cache_cases(domain, toy)]}
    if name == "12.18":
        return {"tables": partition_counts(toy, repeat, limit)}
    if name == "12.20":
        cases = [Case(CAR, 60, 6), Case(CAR, 20, 20)] if toy else [Case(CAR, 300, 30), Case(CAR, 100, 100)]
        cases += [Case(CAR, cases[0].points, cases[0].blocks, time_unit=1.0)]
        return {"tables": [never_processed(case, ("H2, voting", "H1, voting", "joint"), limit) for case in cases]}
    points, blocks = (60, 6) if toy else (300, 30)
    cases = [Case(CAR, points, blocks, time_unit) for time_unit in (0.05, 1.0)]
    return {"solves": targets(cases, ({"residual": 1e-4}, {"epsilon": 1e-3}), (22, 10, 5), repeat, limit)}


def cache_cases(domain: Domain, toy: bool) -> list[Case]:
    """The thesis's 300 x 300 states in 30 x 30 partitions; 30^4 in 10^4 is out of reach here, so 15^4 in 5^4."""
    if domain is DOUBLE:
        return [Case(DOUBLE, 6, 2)] if toy else [Case(DOUBLE, 15, 5)]
    if toy:
        return [Case(domain, 60, 6)]
    return [Case(domain, 300, 30), Case(domain, 300, 30, time_unit=1.0)]


def partition_counts(toy: bool, repeat: int, limit: float) -> list[dict[str, Any]]:
    """From one partition, which is normal value iteration, to one state a partition."""
    flat, deep = ((12, (1, 3, 12)),), (6, (1, 2))
    if not toy:
        flat = ((400, (1, 2, 4, 8, 14, 20, 28, 40)), (100, (1, 2, 5, 10, 20, 50, 100)))
        deep = (12, (1, 2, 3, 4, 6))
    grids = [(domain, *grid) for grid in flat for domain in (CAR, SINGLE)] + [(DOUBLE, *deep)]
    cases = [Case(domain, points, blocks) for domain, points, counts in grids for blocks in counts]
    found = compare_methods([case for case in cases if case.blocks == 1], ("VI",), repeat, limit)
    variants = ("H1", "H1, voting", "H2", "H2, voting", "joint")
    return found + compare_methods([case for case in cases if case.blocks > 1], variants, repeat, limit)


def _cell(solved: dict[str, Any], text: str) -> str:
    return text if finished(solved) else "not finished"


def show_methods(name: str, figure: dict[str, Any]) -> None:
    variants = VARIANTS if name != "12.18" else [v for v in VARIANTS if v != "VI, voting"]
    for title, form in (
        ("processor seconds (least)", lambda s: f"{s['cpu_seconds']['min']:.3f}"),
        ("backups per state", lambda s: f"{s['backups_per_state']:.1f}"),
    ):
        rows = []
        for table in figure["tables"]:
            by = {s["variant"]: _cell(s, form(s)) for s in table["solves"]}
            rows.append(
                (f"{table['label']} {table['states']} in {table['partitions']}", *(by.get(v, "") for v in variants))
            )
        print(f"\nFigure {name}: {title}")
        measuring.print_table(("states in partitions", *variants), rows)


def show_curves(name: str, figure: dict[str, Any]) -> None:
    for table in figure["tables"]:
        at = table["percent"].index(22)
        rows = []
        for method, solved in table["fixed"].items():
            for scope in ("all", "frontier", "after_first_reading"):
                if scope in solved:
                    curve = solved[scope]
                    rates = f"{100 * curve['hit_rate'][at]:.2f}", f"{curve['loads_per_partition'][at]:.2f}"
                    rows.append((f"{method}, {scope.replace('_', ' ')}", *rates))
            if not finished(solved):
                rows.append((method, "not finished", ""))
        rows += [
            (f"joint, cache {s['percent']}%", _cell(s, f"{100 * s['hit_rate']:.2f}"), f"{s['loads_per_partition']:.2f}")
            for s in table["joint"]
        ]
        print(f"\nFigure {name}: {table['label']}, time unit {table['parameters']['time_unit']:g}, cache 22%")
        measuring.print_table(("accesses", "hit rate, %", "loads per partition"), rows)


def show_parallel(name: str, figure: dict[str, Any]) -> None:
    def of(solved: dict[str, Any], key: str, form: str) -> str:
        value = solved.get(key)
        return "" if value is None else format(value["median"] if isinstance(value, dict) else value, form)

    rows = []
    for table in figure["tables"]:
        for s in table["solves"]:
            label = f"{table['label']} {table['states']} in {table['partitions']}, {s['workers']}, {s['placement']}"
            cells = [of(s, key, form) for key, _, form in _PARALLEL_COLUMNS]
            rows.append((label, *(_cell(s, cell) for cell in cells)))
    print(f"\nFigure {name}, on {figure['cores']} cores")
    measuring.print_table(("states in partitions, workers", *(title for _, title, _ in _PARALLEL_COLUMNS)), rows)


_PARALLEL_COLUMNS = (
    ("seconds", "seconds", ".2f"),
    ("efficiency", "efficiency", ".2f"),
    ("backups_per_state", "backups per state", ".1f"),
    ("work_efficiency", "work efficiency", ".2f"),
    ("busy", "busy", ".2f"),
    ("messages", "messages", ".0f"),
    ("bytes_per_state", "bytes per state", ".1f"),
)


def show_never(name: str, figure: dict[str, Any]) -> None:
    rows = []
    for table in figure["tables"]:
        label = f"{table['states']} in {table['partitions']}, time unit {table['parameters']['time_unit']:g}"
        for s in table["solves"]:
            rows.append((f"{label}, {s['variant']}", _cell(s, f"{100 * s['states_never_processed']:.1f}")))
    print(f"\nFigure {name}: states never processed, %")
    measuring.print_table(("", "%"), rows)


def show_targets(name: str, figure: dict[str, Any]) -> None:
    rows = []
    for s in figure["solves"]:
        rule = ", ".join(f"{k} {v:g}" for k, v in s["target"].items())
        loads = s["loads_per_partition"]
        cell = f"{loads['min']:.2f} / {loads['median']:.2f} / {loads['max']:.2f}" if s["finished"] else "not finished"
        label = f"time unit {s['parameters']['time_unit']:g}, {rule}, cache {s['percent']}%"
        rows.append((label, cell, f"{s['backups_per_state']['median']:.1f}", f"{s['seconds']['median']:.1f}"))
    print("\nTarget: loads per partition, least / median / most")
    measuring.print_table(("", "loads", "backups per state", "seconds"), rows)


SHOW = dict.fromkeys(("12.1", "12.3", "12.5", "12.18"), show_methods)
SHOW |= dict.fromkeys(("12.12", "12.13", "12.14"), show_curves)
SHOW |= {"12.20": show_never, "target": show_targets}
SHOW |= {"5.2": show_extremes, "5.6": show_clusters, "hybrid": show_hybrid}

if __name__ == "__main__":
    main()
