"""Average rewards out of core: loads and seconds until the gain of every state lies in a narrow interval.

    random        a random MDP, whose partitions read each other everywhere: mixes within a few steps
    queueing      three queues under control, on a grid: mixes slowly
    inventory     two perishable products, 14,641 states with 121 actions, from arrays

Each model is solved from a cache that is a share of its table to an interval of 1e-4 of the range of its rewards, or
narrower, and verified by one more pass. Not included in the seconds: generating the store, compiling loops, verifying.
The policy's rows lie beside the cache, and the memory plan's bytes are recorded. With --folder a store that is there is
solved again.

    python benchmarks/engine/average_reward.py --machine-shared --output benchmarks/results/average_reward.json
    python benchmarks/engine/average_reward.py --models queueing --states 10000000 --partitions 512 --device cuda:0
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import measuring
from common import device_facts
from measuring import ProgressLine, say

import ooc_mdp
from ooc_mdp.store import Store

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"


def random_model(folder: Path, states: int, partitions: int) -> Store:
    """4 actions a state, 8 successors a row."""
    parameters: dict[str, str | int | float] = {"states": states, "actions": 4, "successors": 8}
    return ooc_mdp.generate("random", folder / "random.store", parameters=parameters, partitions=partitions)


def queueing_network(folder: Path, states: int, partitions: int) -> Store:
    """The largest network of no more states."""
    capacity = max(1, int(states ** (1 / 3) + 1e-9) - 1)
    parameters: dict[str, str | int | float] = {"capacity": capacity}
    return ooc_mdp.generate("queueing-network", folder / "queueing.store", parameters=parameters, partitions=partitions)


def inventory(folder: Path, states: int, partitions: int) -> Store:
    """Stocks up to 10 of each age, or fewer where there may be no more states."""
    sys.path.insert(0, str(EXAMPLES))
    from perishable_inventory import arrays

    largest = min(10, max(1, int(states ** (1 / 4) + 1e-9) - 1))
    P, R, s, a = arrays(largest)
    return ooc_mdp.from_arrays(
        P, R, s_indices=s, a_indices=a, path=folder / "inventory.store", partitions=min(partitions, (largest + 1) ** 4)
    )


MODELS: dict[str, Callable[[Path, int, int], Store]] = {
    "random": random_model,
    "queueing": queueing_network,
    "inventory": inventory,
}


def prepared(name: str, folder: Path, options: argparse.Namespace) -> tuple[Store, float]:
    """The store of a model, and the seconds of its generation; one that is there already is opened."""
    kept = folder / f"{name}.store"
    if kept.exists():
        return ooc_mdp.open_store(kept), 0.0
    began = time.monotonic()
    store = MODELS[name](folder, options.states, options.partitions)
    return store, time.monotonic() - began


def solve(store: Store, options: argparse.Namespace) -> dict[str, Any]:
    """Figures of one solve and of its verification."""
    solution = ooc_mdp.solve(
        store,
        ooc_mdp.AverageReward(),
        epsilon=options.epsilon,
        cache=options.cache,
        device=options.device,
        time_limit=options.time_limit,
        progress=ProgressLine(),
        note=say,
    )
    statistics, claims = solution.statistics, solution.certificate
    low, high = float(store.facts.reward_range[:, 0].min()), float(store.facts.reward_range[:, 1].max())
    began = time.monotonic()
    found = ooc_mdp.verify(store, solution)
    verifying = time.monotonic() - began
    say(f"{solution!r}: {statistics.loads_per_partition:.2f} loads per partition, {statistics.solve_seconds:.1f} s")
    return {
        "states": store.n_states,
        "partitions": store.n_partitions,
        "table_bytes": statistics.table_bytes,
        "cache_bytes": statistics.cache_bytes,
        "device": solution.device,
        "planned_bytes": sum(solution.memory_plan["host"].values()),
        "planned_device_bytes": sum(solution.memory_plan["device"].values()),
        "outcome": solution.outcome.value,
        "gain_lower": claims.lower,
        "gain_upper": claims.upper,
        "width_of_reward_range": (claims.upper - claims.lower) / (high - low),
        "loads_per_partition": statistics.loads_per_partition,
        "policy_evaluations": statistics.policy_evaluations,
        "backups_per_state": statistics.backups / store.n_states,
        "seconds": statistics.solve_seconds,
        "load_seconds_of_all_threads": statistics.load_seconds,
        "verified": found.holds,
        "verify_seconds": verifying,
    }


def main() -> None:
    """Measure the models that were named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    measuring.add_common_options(parser)
    parser.add_argument("--models", default="random,queueing,inventory", help="of these, with commas")
    parser.add_argument("--states", type=int, default=1_000_000, help="of each model, about, at most")
    parser.add_argument("--partitions", type=int, default=128)
    parser.add_argument("--cache", default="20%")
    parser.add_argument("--epsilon", type=float, help="half the width of the interval; by default 5e-5 of the range")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda:0")
    parser.add_argument("--time-limit", type=float, help="seconds after which a solve ends with what is proved by then")
    parser.add_argument("--folder", type=Path, help="keeps the stores, for the next run; by default a temporary one")
    options = parser.parse_args()
    facts = {"machine": measuring.machine(options.machine_shared), "versions": measuring.versions()}
    facts["machine"] |= device_facts(options.device)
    models: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name in options.models.split(","):
            store, seconds = prepared(name, folder, options)
            models[name] = solve(store, options) | {"generate_seconds": seconds}
    options.folder = None  # figures hold no paths
    not_included = ("generating the stores", "compiling loops", "verifying", "writing results")
    measuring.write_figures("average_reward", options, {"models": models}, facts, not_included)


if __name__ == "__main__":
    main()
