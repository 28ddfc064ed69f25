"""Three small tasks in ooc-mdp, QuantEcon, pymdptoolbox and Storm: lines typed, seconds cold and warm, digits.

    python benchmarks/beside/run.py --consensus model.umb --peers PYTHON [--compile] [--json FILE]

arrays      a random MDP of 200 states and 10 actions in NumPy arrays, discount 0.95
goal        the least probability that the coins of a consensus protocol (QVBS, consensus.2, K=4) agree on 1: 1793/4096
function    the shop of the README: 100,001 states whose rows a function computes, discount 0.9

Each program beside this file runs twice in a process of its own, that of ooc-mdp in this Python, those of its peers in
`--peers`, an environment with quantecon, pymdptoolbox and stormpy. "first" contains imports and compilation that is not
cached on disk, "again" neither; with `--compile` ooc-mdp also runs with an empty compilation cache. Digits are -log10
of the largest error, divided by the largest value. Lines are those of the program, without blank ones. Not included:
starting Python.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

_HERE = Path(__file__).resolve().parent
_OURS = "ooc_mdp"
TASKS = {
    "arrays": (_OURS, "quantecon", "pymdptoolbox"),
    "goal": (_OURS, "storm", "storm_sound"),
    "function": (_OURS, "quantecon"),
}
_EXACT_GOAL = Fraction(1793, 4096)
_CHILD = """
import json, sys, time
import numpy as np
code, seconds = compile(open(sys.argv[1]).read(), sys.argv[1], "exec"), []
for _ in range(2):
    names = {"__name__": "__main__"}
    wall, cpu = time.perf_counter(), time.process_time()
    exec(code, names)
    seconds.append((time.perf_counter() - wall, time.process_time() - cpu))
np.save("answer.npy", np.atleast_1d(np.asarray(names["answer"], float)).ravel())
print(json.dumps(seconds))
"""


def write_arrays(path: Path, states: int, actions: int, discount: float) -> FloatArray:
    """Write a random model, and return its values by policy iteration with direct solves."""
    rng = np.random.default_rng(1)
    P = rng.dirichlet(np.full(states, 0.1), (actions, states))
    R = rng.normal(size=(states, actions))
    np.savez(path, P=P, R=R)
    policy = np.zeros(states, np.int64)
    while True:
        here = np.arange(states)
        values: FloatArray = np.linalg.solve(np.eye(states) - discount * P[policy, here], R[here, policy])
        better = (R + discount * np.einsum("asz,z->sa", P, values)).argmax(axis=1)
        if np.array_equal(better, policy):
            return values
        policy = better


def shop_values(capacity: int = 100_000, discount: float = 0.9) -> FloatArray:
    """Values of the shop by 300 sweeps, of which 0.9 to that power is left."""
    supply = np.minimum(np.arange(capacity + 1)[:, None] + np.arange(5), capacity)
    chances, values = np.array([0.1, 0.2, 0.3, 0.4]), np.zeros(capacity + 1)
    sold = np.minimum(supply[:, :, None], np.arange(4))
    paid = (3.0 * sold) @ chances - np.arange(5) - 0.01 * supply
    for _ in range(300):
        values = (paid + discount * values[supply[:, :, None] - sold] @ chances).max(axis=1)
    return values


def measure(python: str, program: Path, folder: Path, cache: Path | None = None) -> tuple[Any, FloatArray]:
    """Wall and processor seconds of the first and the second run of a program, and its answer."""
    environment = {**os.environ, **({} if cache is None else {"NUMBA_CACHE_DIR": str(cache)})}
    done = subprocess.run(
        [python, "-W", "ignore", "-c", _CHILD, str(program)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"{program.name} failed: {done.stderr[-800:]}")
    return json.loads(done.stdout.splitlines()[-1]), np.load(folder / "answer.npy")


def digits(answer: FloatArray, exact: FloatArray) -> float:
    """-log10 of the largest error, relative to the largest value, of at most 16."""
    error = float(np.abs(answer - exact).max() / np.abs(exact).max())
    return round(min(16.0, -math.log10(error)) if error > 0 else 16.0, 1)


def main() -> None:
    """Run all programs and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--consensus", type=Path, help="UMB file of QVBS consensus.2 with K=4; without it no goal")
    parser.add_argument("--peers", help="Python that has the peers; without it ooc-mdp alone")
    parser.add_argument("--compile", action="store_true", help="also run ooc-mdp with an empty compilation cache")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()
    figures = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        exact = {"arrays": write_arrays(folder / "arrays.npz", 200, 10, 0.95)}
        exact |= {"goal": np.array([float(_EXACT_GOAL)]), "function": shop_values()}
        if options.consensus is not None:
            shutil.copy(options.consensus, folder / "consensus.umb")
        for task, tools in TASKS.items():
            for tool in tools if options.peers else tools[:1]:
                if task == "goal" and options.consensus is None:
                    continue
                program = _HERE / f"{task}_{tool}.py"
                lines = sum(bool(line.strip()) for line in program.read_text().splitlines())
                python = sys.executable if tool == _OURS else options.peers
                (first, again), answer = measure(python, program, folder)
                found = {"task": task, "tool": tool, "lines": lines, "first": first, "again": again}
                if tool == _OURS and options.compile:
                    found["compiling"] = measure(python, program, folder, folder / f"cache-{task}")[0][0]
                figures.append({**found, "digits": digits(answer, exact[task])})
                print_row(figures[-1])
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


def print_row(found: dict[str, Any]) -> None:
    """One line of the table: wall seconds, and processor seconds in parentheses."""
    seconds = [found.get("compiling"), found["first"], found["again"]]
    times = ["-" if each is None else "{:.2f} ({:.2f})".format(*each) for each in seconds]
    cells = (found["task"], found["tool"], found["lines"], *times, found["digits"])
    print("|", " | ".join(map(str, cells)), "|", flush=True)


if __name__ == "__main__":
    main()
