"""Compare what `ooc-mdp plan` says before a solve with what the solve then takes.

Stores of several kinds, caches of several sizes. Of each, the command line plans twice and then solves, in processes of
their own: the first plan leaves compiled loops on disk, and does not count. Compared are the peak of memory, the bytes
of a pass (bytes read / loads x partitions), the seconds of a pass (to load the table once, and to back every state up
once), and whether passes, backups and seconds of the solve are within what the plan expects.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import measuring

COMMAND_LINE = (sys.executable, "-c", "from ooc_mdp.cli import main; main()")
AIMS = {"memory": 1.1, "bytes": 1.05, "seconds": 2.0}
"""Ratios, above and below, within which a plan should be."""
NOT_INCLUDED = (
    "compiling loops for the first time: they are loaded from disk here",
    "reading from a cold disk: files are in the system's page cache, for the plan as for the solve",
    "an accelerator: these solves are on the CPU",
)
RANGES = ("passes", "backups_per_state", "seconds")
"""What a plan expects of the solve: at least, as a rule and at most."""
KINDS = {
    "car": ("mountain-car", "--grid", "{0},{0}"),
    "pendulum": ("double-pendulum", "--grid", "{0},{0},{0},{0}"),
    "cart-pole": (str(measuring.REPOSITORY / "docs/examples/cart_pole.py"), "--grid", "{0},{0},{0},{0}"),
    "dubins": (str(measuring.REPOSITORY / "docs/examples/dubins_car.py"), "--grid", "{0},{0},{0}"),
    "random": ("random", "--states", "{0}", "--actions", "4", "--successors", "4", "--seed", "1"),
    "gridworld": ("GW-{0}x4", "--seed", "1"),
    "single-pendulum": ("single-pendulum", "--grid", "{0},{0}"),
}
SIZES = "car:400,pendulum:16,cart-pole:16,dubins:40,random:40000,gridworld:300,converted:150"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stores", default=SIZES, help="kind:size of each store")
    parser.add_argument("--caches", default="10%,22%,50%,100%", help="cache sizes")
    parser.add_argument("--discounts", default="0.9,0.99")
    parser.add_argument("--partitions", default="100", help="of each store")
    measuring.add_common_options(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    facts = {"machine": measuring.machine(options.machine_shared), "versions": measuring.versions()}
    solves = []
    with tempfile.TemporaryDirectory(prefix="ooc-mdp-benchmark-") as name:
        for kind, size in (text.split(":") for text in options.stores.split(",")):
            store = Path(name) / f"{kind}-{size}"
            make(kind, int(size), store, options.partitions)
            for discount in options.discounts.split(","):
                for cache in options.caches.split(","):
                    solves.append(compare(kind, store, cache, discount))
                    show(solves[-1:])
    print()
    show(solves)
    ratios = {name: [s["ratios"][name] for s in solves if s["ratios"][name] is not None] for name in AIMS}
    figures = {
        "aims": AIMS,
        "missed": {name: sum(not 1 / AIMS[name] <= r <= AIMS[name] for r in found) for name, found in ratios.items()},
        "outside": {
            name: sorted(s["outside"][name] for s in solves if s["outside"][name] is not None)[::-1] for name in RANGES
        },
        "largest_ratio": {name: max(max(r, 1 / r) for r in found) for name, found in ratios.items()},
        "solves": solves,
    }
    print(f"outside of the aims {AIMS}, of {len(solves)}: {figures['missed']}")
    measuring.write_figures("plan", options, figures, facts, NOT_INCLUDED)


def make(kind: str, size: int, store: Path, partitions: str) -> None:
    """Generate a store, or convert one from a file."""
    if kind == "converted":
        model = store.with_suffix(".tra")
        write_model(size, model)
        words = ["convert", str(model), str(store), "--rewards", str(model.with_suffix(".srew"))]
    else:
        problem, *parameters = (word.format(size) for word in KINDS[kind])
        words = ["generate", problem, str(store), *parameters]
    measuring.run([*COMMAND_LINE, *words, "--partitions", partitions])


def write_model(side: int, file: Path) -> None:
    """A grid of rooms as PRISM writes it: four moves, one step in ten goes astray; one cell in 50 pays.

    Written state by state: what this process holds would count as the peak of those that it starts.
    """
    n = side * side
    n_transitions = sum(len(mass) for s in range(n) for mass in _moves(side, s))
    with file.open("w") as lines:
        lines.write(f"{n} {4 * n} {n_transitions}\n")
        for s in range(n):
            for a, mass in enumerate(_moves(side, s)):
                lines.writelines(f"{s} {a} {t} {p!r}\n" for t, p in sorted(mass.items()))
    paying = range(n // 7, n, 50)
    file.with_suffix(".srew").write_text(f"{n} {len(paying)}\n" + "".join(f"{s} {1 + s % 3}\n" for s in paying))


def _moves(side: int, s: int) -> Iterator[dict[int, float]]:
    """Where each of the four moves leads from cell s, and with which probability."""
    row, column = divmod(s, side)
    near = [(min(row + 1, side - 1), column), (max(row - 1, 0), column)]
    near += [(row, min(column + 1, side - 1)), (row, max(column - 1, 0))]
    for a in range(4):
        mass: dict[int, float] = {}
        for turn, share in ((0, 0.9), (1, 0.05), (2, 0.05)):
            r, c = near[(a + turn) % 4]
            mass[r * side + c] = mass.get(r * side + c, 0.0) + share
        yield mass


def compare(kind: str, store: Path, cache: str, discount: str) -> dict[str, Any]:
    """Plan, solve, and set one beside the other."""
    asked = ["--discount", discount, "--device", "cpu", "--json", "--cache"]
    command = [*COMMAND_LINE, "plan", str(store), *asked, cache]
    measuring.run(command)
    plan = json.loads(measuring.run(command).output)
    output = store.with_name(f"{store.name}-{discount}-{cache}.result")
    finished = measuring.run([*COMMAND_LINE, "solve", str(store), *asked, cache, "--output", str(output)])
    solve = json.loads(finished.output)
    loads, partitions, states = solve["loads"], solve["n_partitions"], solve["n_states"]
    loading = solve["load_seconds"] / (os.cpu_count() or 1)
    measured = {
        "peak_rss_bytes": finished.peak_bytes,
        "bytes_per_pass": solve["bytes_read"] / loads * partitions,
        "seconds_per_pass": loading / loads * partitions
        + (solve["solve_seconds"] - loading) / solve["backups"] * states,
        "passes": loads / partitions,
        "backups_per_state": solve["backups"] / states,
        "seconds": solve["solve_seconds"],
    }
    return {
        "kind": kind,
        "cache": cache,
        "discount": discount,
        "method": solve["method"],
        "partitions_read": plan["partitions_read"],
        "n_states": solve["n_states"],
        "table_bytes": solve["table_bytes"],
        "planned": {
            name: plan[name]
            for name in ("memory_bytes", "bytes_per_pass", "load_seconds", "sweep_seconds", "seconds_per_pass", *RANGES)
        },
        "measured": measured,
        "ratios": {
            "memory": finished.peak_bytes / plan["memory_bytes"],
            "bytes": measured["bytes_per_pass"] / plan["bytes_per_pass"],
            "seconds": None
            if plan["seconds_per_pass"] is None  # the trial did not last long enough to tell
            else measured["seconds_per_pass"] / plan["seconds_per_pass"],
        },
        "outside": {name: outside(measured[name], plan[name]) for name in RANGES},
    }


def outside(number: float, planned: Sequence[float] | None) -> float | None:
    """The factor by which a number is above the most, or below the least, that was planned; 1 within."""
    if planned is None:
        return None
    least, _, most = planned
    return max(1.0, number / most, least / number)


def show(solves: list[dict[str, Any]]) -> None:
    headers = ("store", "states", "discount", "cache", "method", *AIMS, *RANGES)
    rows = [
        (
            s["kind"],
            f"{s['n_states']:,}",
            s["discount"],
            s["cache"],
            s["method"],
            *("?" if s["ratios"][name] is None else f"{s['ratios'][name]:.2f}" for name in AIMS),
            *(beside(s["measured"][name], s["planned"][name]) for name in RANGES),
        )
        for s in solves
    ]
    measuring.print_table(headers, rows)
    sys.stdout.flush()


def beside(number: float, planned: Sequence[float] | None) -> str:
    """What was measured, and in brackets what was planned as a rule, at least and at most."""
    return (
        f"{number:.3g} (?)"
        if planned is None
        else f"{number:.3g} ({planned[1]:.3g}, {planned[0]:.3g} to {planned[2]:.3g})"
    )


if __name__ == "__main__":
    main()
