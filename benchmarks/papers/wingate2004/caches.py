"""Figures 12.12 to 12.17 of Wingate's thesis (2004) by `ooc_mdp.cache_sweep`: a solve with each cache, from disk.

    python caches.py --domain MCAR --output FILE.json    one of MCAR, SAP and DAP, as in figures 12.12, 12.13, 12.14
    python caches.py --toy                               all three at sizes of a few seconds

`run.py` computes the curves of H1, H2 and VI from one trace each; here every point is a solve, next to the replay.
Solves stop at the thesis's rule, a plain residual of 1e-4 at discount 0.9, and sweep in the stored order.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import measuring
from claims import CLAIMS
from domains import CAR, DISCOUNT, DOUBLE, RESIDUAL, SINGLE, Case

import ooc_mdp

FIGURES = {"MCAR": "12.12", "SAP": "12.13", "DAP": "12.14"}
LABELS = {"H1": "exact-h1", "H2": "exact-h2"}
"""The thesis's algorithms, as schedules of a cache sweep."""
NOT_INCLUDED = ("computing and storing the tables", "compiling or loading the kernels")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--domain", action="append", choices=tuple(FIGURES), help="repeat for more; all by default")
    parser.add_argument("--toy", action="store_true", help="small grids, to see that everything runs")
    parser.add_argument("--sizes", default="2%,5%,10%,22%,50%", help="caches, as shares of the table")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds a solve")
    measuring.add_common_options(parser)
    options = parser.parse_args(arguments)
    options.domain = options.domain or list(FIGURES)
    return options


def case_of(domain: str, toy: bool) -> Case:
    """The thesis's 300 x 300 states in 30 x 30 partitions; of the double pendulum what a solve of a minute allows."""
    if domain == "DAP":
        return Case(DOUBLE, 6, 2) if toy else Case(DOUBLE, 15, 5)
    return Case({"MCAR": CAR, "SAP": SINGLE}[domain], *((60, 6) if toy else (300, 30)))


def measure(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """The sweep of one problem."""
    with tempfile.TemporaryDirectory(prefix="ooc-mdp-benchmark-") as folder:
        sweep = ooc_mdp.cache_sweep(
            case.store(Path(folder) / "store"),
            DISCOUNT,
            options.sizes,
            methods="p-eva,vi",
            priorities=["joint", *LABELS.values()],
            residual=RESIDUAL,
            sweep_order="forward",
            device="cpu",
            time_limit=options.time_limit,
            note=lambda text: None if text.startswith("memory plan") else measuring.say(f"{case.domain.label}: {text}"),
        )
    figures = sweep.to_dict()
    del figures["store"]  # a temporary path
    return case.describe() | {"sweep": figures}


def show(domain: str, found: dict[str, Any]) -> None:
    """Every solve, and at the thesis's cache what it states."""
    claims = CLAIMS[FIGURES[domain]]
    print(f"{domain}: {found['states']:,} states in {found['partitions']:,} partitions (figure {FIGURES[domain]})")
    rows = []
    for point in found["sweep"]["points"]:
        said = {LABELS[name]: claim for name, claim in claims["all"].items()}.get(point["schedule"], {})
        at_this_cache = said if point["size"] == f"{claims['share']}%" else {}
        rows.append(
            (
                point["schedule"],
                point["size"],
                f"{point['loads_per_partition']:.2f}",
                f"{at_this_cache['loads']:.2f}" if "loads" in at_this_cache else "",
                f"{point['hit_rate']:.2%}",
                f"{at_this_cache['hit_rate']:.2%}" if "hit_rate" in at_this_cache else "",
                f"{point['solve_seconds']:.1f}",
                point["outcome"],
            )
        )
    measuring.print_table(
        ("schedule", "cache", "loads per partition", "thesis", "hit rate", "thesis", "seconds", "outcome"), rows
    )


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    facts = {"machine": measuring.machine(options.machine_shared), "versions": measuring.versions()}
    figures = {}
    for domain in options.domain:
        figures[domain] = {"thesis": CLAIMS[FIGURES[domain]]} | measure(case_of(domain, options.toy), options)
        show(domain, figures[domain])
    measuring.write_figures("wingate2004-caches", options, {"figures": figures}, facts, NOT_INCLUDED)


if __name__ == "__main__":
    main()
