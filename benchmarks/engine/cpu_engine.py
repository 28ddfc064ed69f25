"""The CPU's sweeps alone, on a resident partition: nanoseconds a state and a transition, for each kind of sweep.

Full sweeps back up every action, policy sweeps the greedy one, a measurement every action without changing a value.
Seconds are those of the processor, of one thread, the least of some repeats; a partition that fits the second-level
cache is what the engine is made for, and partitions are named by their decoded bytes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import measuring
import numpy as np

import ooc_mdp
from ooc_mdp.backends.base import Resident, SweepLimits
from ooc_mdp.backends.cpu.backend import CpuBackend
from ooc_mdp.backends.cpu.calls import call_of
from ooc_mdp.backends.cpu.rounds import RoundPlan, run_rounds
from ooc_mdp.backends.cpu.sweep_order import Votes
from ooc_mdp.backends.layout import Needs
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.options import format_bytes

NOT_INCLUDED = (
    "loading and decoding",
    "choosing partitions, votes on the sweep order",
    "waiting for memory by threads",
)
_ROUNDS = 20
"""Sweeps between two looks at the clock."""


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", default="GW-512x4", help="problem that ooc-mdp can generate")
    parser.add_argument("--partitions", type=int, default=64)
    parser.add_argument("--discount", type=float, default=0.95)
    parser.add_argument("--repeat", type=int, default=9)
    measuring.add_common_options(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    facts: dict[str, Any] = {"machine": measuring.machine(options.machine_shared), "versions": measuring.versions()}
    with tempfile.TemporaryDirectory(prefix="ooc-mdp-benchmark-") as folder:
        store = ooc_mdp.generate(options.problem, Path(folder) / "store", partitions=options.partitions)
        table = store.read(store.n_partitions // 2)[0]
        backend = CpuBackend("voted", threads=1)
        model = ModelFacts.of(store.facts, options.discount)
        backend.start(model, backend.layout(model, Needs()), None, None)
        resident = backend.admit(backend.prepare(table))
        backend.relax([resident], SweepLimits(1e-9, 1)).report()  # compiles, and finds a policy
        each = {
            "full sweep": least(lambda: full(backend, resident), options.repeat) / _ROUNDS,
            "policy sweep": least(lambda: policy(backend, resident), options.repeat) / _ROUNDS,
            "measurement": least(lambda: backend.measure(resident, 0.0), options.repeat),
        }
        backend.close()
    rows, transitions = table.n_rows, table.successors.size
    touched = {
        "full sweep": transitions,
        "policy sweep": transitions * table.n_states / rows,
        "measurement": transitions,
    }
    figures = {
        "partition": {
            "states": table.n_states,
            "rows": rows,
            "transitions": transitions,
            "decoded_bytes": table.nbytes,
        },
        "sweeps": [
            {"kind": k, "ns_a_state": 1e9 * s / table.n_states, "ns_a_transition": 1e9 * s / touched[k]}
            for k, s in each.items()
        ],
    }
    print(f"{options.problem}, {table.n_states} states in {format_bytes(table.nbytes)}, one thread")
    measuring.print_table(
        ("", "ns a state", "ns a transition"),
        [(s["kind"], f"{s['ns_a_state']:.2f}", f"{s['ns_a_transition']:.2f}") for s in figures["sweeps"]],
    )
    measuring.write_figures("cpu_engine", options, figures, facts, NOT_INCLUDED)


def least(work: Callable[[], Any], repeat: int) -> float:
    """Least processor seconds of this thread for a piece of work, after a first time, which may compile."""
    work()
    seconds = []
    for _ in range(repeat):
        began = time.thread_time()
        work()
        seconds.append(time.thread_time() - began)
    return min(seconds)


def full(backend: CpuBackend, resident: Resident) -> None:
    """Full sweeps that nothing ends."""
    backend.sweep([resident], SweepLimits(-1.0, _ROUNDS)).report()


def policy(backend: CpuBackend, resident: Resident) -> None:
    """Policy sweeps that nothing ends and nothing extrapolates."""
    shared = backend._shared()
    batch, findings, orders = backend._batch_of(1), backend._findings(), backend._orders
    ((group,), _) = batch.take_places([resident], set(), SweepLimits(-1.0, 1))
    findings.unstable[:] = False
    votes = Votes(np.zeros(1, np.bool_), orders.shapes, orders.traversals)
    batch.progress.rounds[0], batch.progress.drop[0] = 1, -1.0
    plan = RoundPlan(sweeps=_ROUNDS, acceptance_threshold=0.0, alternate=False)
    arrays = shared.model, shared.values, shared.policy, batch.members, batch.progress, findings, votes
    of_all = group.section, *arrays, plan, shared.workspace, shared.starts
    backend._team.finish(backend._team.begin([call_of(run_rounds, resident.arrays[0].spec, *of_all)], (), 1))


if __name__ == "__main__":
    main()
