"""How an evaluation of a policy on its rows ends soonest on a device: sweeps, mixed or not, BiCGSTAB, or as chosen.

    python policy_rows.py --output FILE.json
    python policy_rows.py --case double-pendulum:grid=60:0.9 --ways chosen --rounds 3
    python policy_rows.py --case double-pendulum:grid=93:0.9 --ways sweeps,solver --rounds 2 --devices 1,2,4

Each case is one of policy iteration with the whole table in the cache: in every round all partitions are improved, and
the policy is evaluated by each way from the same values, to a share of the residual that the improvement left (but to
no less than --residual). The next round begins where the last way ended. With --repeat, the fastest evaluation counts.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import measuring
import numpy as np
from common import device_facts, say

import ooc_mdp
from ooc_mdp.backends.cuda.device import CudaDevice, Device
from ooc_mdp.backends.cuda.policy.evaluation import EvaluationOptions
from ooc_mdp.backends.cuda.policy.rows import DeviceRows
from ooc_mdp.backends.cuda.tiles.backend import TiledBackend
from ooc_mdp.backends.cuda.tiles.layout import TILE_STATES
from ooc_mdp.backends.layout import Needs, SlotsTooSmall
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.options import format_bytes
from ooc_mdp.store import Store

WAYS = {
    "sweeps": EvaluationOptions(mix_from=math.inf),
    "mixing": EvaluationOptions(mix_from=0, patience=math.inf),
    "solver": EvaluationOptions(mix_from=0, patience=0),
    "chosen": EvaluationOptions(),
}
CASES = (
    "double-pendulum:grid=40:0.9",
    "random:states=500000,actions=8,successors=5:0.99",
    "random:states=500000,actions=8,successors=5:0.999",
)
NOT_INCLUDED = (
    "generating the store, loading it, compiling kernels",
    "improvements' seconds: reading and decoding, for all partitions are resident",
)


@dataclass(frozen=True)
class Case:
    """A problem and a discount."""

    problem: str
    parameters: dict[str, str]
    discount: float

    @classmethod
    def of(cls, text: str) -> Case:
        """From PROBLEM:NAME=VALUE,...:DISCOUNT."""
        problem, parameters, discount = text.split(":")
        return cls(problem, dict(said.split("=", 1) for said in parameters.split(",")), float(discount))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", metavar="PROBLEM:NAME=VALUE,...:DISCOUNT", help=str(CASES))
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--rounds", type=int, default=5, help="improvements at most")
    parser.add_argument("--residual", type=float, default=1e-4, help="at which policy iteration ends")
    parser.add_argument(
        "--share", type=float, default=0.02, help="of the improvement's residual, an evaluation's limit"
    )
    parser.add_argument("--most", type=int, default=20_000, help="sweeps of an evaluation")
    parser.add_argument("--partitions", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--device", type=int, default=0, help="number of the CUDA device, or of the first")
    parser.add_argument("--devices", default="1", help="of a group, numbered from --device on; several: 1,2,4")
    measuring.add_common_options(parser)
    return parser.parse_args(arguments)


def main(
    arguments: Sequence[str] | None = None, devices: Sequence[Device] | None = None, tile_states: int = TILE_STATES
) -> None:
    """Measure; `devices` stand in for CUDA devices."""
    options = parse(arguments)
    options.case = options.case or list(CASES)
    name = f"cuda:{options.device}"
    facts: dict[str, Any] = {"machine": measuring.machine(options.machine_shared), "versions": measuring.versions()}
    facts["machine"] |= device_facts("cpu" if devices is not None else name)
    cases = []
    with tempfile.TemporaryDirectory(prefix="ooc-mdp-benchmark-") as folder:
        stores: dict[str, Store] = {}
        for case in map(Case.of, options.case):
            key = f"{case.problem} {case.parameters}"
            if key not in stores:
                path = Path(folder) / str(len(stores))
                by = "cpu" if devices is not None else "auto"
                stores[key] = ooc_mdp.generate(
                    case.problem, path, case.parameters, partitions=options.partitions, dtype="float32", device=by
                )
            say(f"{key}, discount {case.discount}: {stores[key].n_states:,} states")
            for count in map(int, options.devices.split(",")):
                numbers = range(options.device, options.device + count)
                first, *others = [CudaDevice(number) for number in numbers] if devices is None else devices[:count]
                backend = TiledBackend(first, tile_states, others)
                cases.append(measured(case, stores[key], backend, options))
                backend.close()
    measuring.write_figures("policy_rows", options, {"cases": cases}, facts, NOT_INCLUDED)


def measured(case: Case, store: Store, backend: TiledBackend, options: argparse.Namespace) -> dict[str, Any]:
    """One case: figures of each round's improvement and of every way to evaluate."""
    model = ModelFacts.of(store.facts, case.discount)
    layout = backend.layout(model, Needs())
    while True:
        backend.start(model, layout, None, None, store.loader(backend.name))
        try:
            residents = [backend.admit(backend.fetch(p)[0]) for p in range(store.n_partitions)]
            break
        except SlotsTooSmall:
            layout = backend.enlarged(layout)
    backend.open_rows(store.facts.coupling)
    rows = backend._rows
    assert rows is not None
    per_state = DeviceRows.nbytes(model) / model.n_states
    say(
        f"  {backend.name}: rows {format_bytes(DeviceRows.nbytes(model))}, {per_state:.0f} bytes a state, "
        f"on device: {rows.on_device}"
    )
    rounds = []
    for number in range(options.rounds):
        began = time.perf_counter()
        improvement = backend.improve(residents, 1e-12)
        seconds = time.perf_counter() - began
        residual = float(improvement.measured[2:].max())
        changed = int(improvement.changed.sum())
        say(f"  improvement {number}: {seconds * 1e3:.2f} ms, residual {residual:.3g}, {changed} changed")
        if residual <= options.residual:
            break
        limit = max(options.share * residual, options.residual / 4)
        before = backend.values()
        ways = {way: evaluated(backend, rows, WAYS[way], before, limit, options) for way in options.ways.split(",")}
        for way, figures in ways.items():
            say(
                f"    {way:8} {figures['seconds'] * 1e3:9.2f} ms {figures['backups'] / model.n_states:8.0f} backups a "
                f"state, {figures['seconds_a_backup'] * 1e12:6.1f} ps each, residual {figures['residual']:.3g}"
            )
        rounds.append(
            {"seconds": seconds, "residual": residual, "changed": changed, "limit": limit, "policy_evaluations": ways}
        )
    return {
        "problem": case.problem,
        "parameters": case.parameters,
        "discount": case.discount,
        "states": model.n_states,
        "devices": len(rows.rows),
        "bytes_a_state": per_state,
        "rows_on_device": rows.on_device,
        "rounds": rounds,
        "last_residual": residual,
    }


def evaluated(
    backend: TiledBackend,
    rows: DeviceRows,
    way: EvaluationOptions,
    values: FloatArray,
    limit: float,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Figures of the fastest of some evaluations from the same values."""
    rows.options = way
    taken = []
    for _ in range(options.repeat):
        backend._memory.upload("values", values)
        began = time.perf_counter()
        evaluation = backend.evaluation(limit, options.most)
        while not evaluation.advance(math.inf):
            pass
        found = evaluation.report()
        taken.append((time.perf_counter() - began, found))
    seconds, found = min(taken, key=lambda one: one[0])
    return {
        "seconds": seconds,
        "all_seconds": [s for s, _ in taken],
        "backups": found.backups,
        "seconds_a_backup": seconds / found.backups,
        "residual": float(np.maximum(found.measured[2], found.measured[3]).max()),
    }


if __name__ == "__main__":
    main()
