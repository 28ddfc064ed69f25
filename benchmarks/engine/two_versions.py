"""Two versions of this program in turns on one device: a streamed pass and whole solves, from the page cache.

    git worktree add ../before COMMIT
    python two_versions.py --before ../before --grid 12000,12000 --device-memory 3GiB --passes 12 --solves 12

Each version runs in a process of its own, which stays, so that compiling and opening are left out and the two take
turns solve by solve. Each generates two stores of the same table: what differs between the two stores of one version is
no difference between versions. Ratios are of the version here to the one before, geometric means over pairs with the
interval of 95% of resamplings (bootstrap); solves by priority vary in their loads, so seconds per load are given too.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[2]
NOT_INCLUDED = (
    "generating and opening stores, compiling and loading kernels (each process solves a tiny problem first)",
    "files are in the page cache; what a disk adds is the same for both versions",
)
_RESAMPLINGS = 4000


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    from common import add_table_options, measuring

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_table_options(parser, "mountain-car", "4000,4000")
    parser.add_argument("--before", type=Path, required=True, help="repository of the version to compare with")
    parser.add_argument("--device", default="cuda:0", help="cpu or cuda:0")
    parser.add_argument("--device-memory", help="budget on the device in all")
    parser.add_argument("--cache", default="22%", help="the cache's budget, where no --device-memory is given")
    parser.add_argument("--method", default="p-eva", help="method of the solves")
    parser.add_argument("--sweeps", type=int, help="sweeps of a visit by vi")
    parser.add_argument("--passes", type=int, default=12, help="pairs of passes for each pair of stores")
    parser.add_argument("--solves", type=int, default=12, help="pairs of solves likewise")
    parser.add_argument("--max-seconds", type=float, default=86_400.0, help="for passes, and again for solves")
    measuring.add_common_options(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    from common import device_facts, measuring

    options = parse(arguments)
    facts: dict[str, Any] = {"machine": measuring.machine(options.machine_shared), "versions": measuring.versions()}
    facts["machine"] |= device_facts(options.device)
    roots = {"before": options.before.resolve(), "after": HERE}
    with tempfile.TemporaryDirectory(prefix="ooc-mdp-benchmark-") as folder:
        versions = {name: Version(name, root, options, Path(folder)) for name, root in roots.items()}
        figures = {
            what: compare(versions, what, n, options.max_seconds)
            for what, n in (("pass", options.passes), ("solve", options.solves))
            if n
        }
        for version in versions.values():
            version.close()
    options.store = options.before = None  # figures name no place
    for what, found in figures.items():
        print(what, *(f"{name} {value}" for name, value in found["ratios"].items()), sep="   ")
    measuring.write_figures("two_versions", options, figures, facts, NOT_INCLUDED)


class Version:
    """The process of one version."""

    def __init__(self, name: str, root: Path, options: argparse.Namespace, folder: Path) -> None:
        budget = ["--device-memory", options.device_memory] if options.device_memory else ["--cache", options.cache]
        table = ["--problem", options.problem, "--grid", options.grid, "--device", options.device, *budget]
        table += [f"--parameter={parameter}" for parameter in options.parameter]
        table += ["--partition-shape", options.partition_shape] if options.partition_shape else []
        self._errors = (folder / f"{name}.err").open("w+")
        self._process = subprocess.Popen(
            [
                sys.executable,
                str(Path(__file__).resolve()),
                "--serve",
                str(root),
                str(folder / name),
                options.method,
                str(options.sweeps or 0),
                *table,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])},
        )
        self._answer()

    def ask(self, what: str, store: int) -> dict[str, float]:
        """Seconds and loads per partition of a pass or solve of one of its two stores."""
        assert self._process.stdin is not None
        print(what, store, file=self._process.stdin, flush=True)
        return self._answer()

    def close(self) -> None:
        """End the process."""
        self._process.communicate()
        self._errors.close()

    def _answer(self) -> dict[str, float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            raise SystemExit(f"a version ended: {self._errors.read()[-2000:]}")
        answer: dict[str, float] = json.loads(line)
        return answer


def compare(versions: dict[str, Version], what: str, pairs: int, max_seconds: float) -> dict[str, Any]:
    """Pairs of runs, the version that goes first changing from pair to pair; the first pair is not counted."""
    end = time.monotonic() + max_seconds
    found: dict[str, list[list[dict[str, float]]]] = {name: [[], []] for name in versions}
    for n in range(pairs + 1):
        if n > 1 and time.monotonic() > end:
            break
        for name in list(versions) if n % 2 else reversed(list(versions)):
            for store in (0, 1):
                run = versions[name].ask(what, store)
                print(f"{what} {n}, {name}, store {store}: {run['seconds']:.3f} s, {run['loads']:.2f} loads")
                if n:
                    found[name][store].append(run)
    both = [(b, a) for s in (0, 1) for b, a in zip(found["before"][s], found["after"][s], strict=True)]
    seconds = [after["seconds"] / before["seconds"] for before, after in both]
    per_load = [r * before["loads"] / after["loads"] for r, (before, after) in zip(seconds, both, strict=True)]
    return {"runs": found, "ratios": {"seconds": interval(seconds), "seconds per load": interval(per_load)}}


def interval(ratios: list[float]) -> dict[str, float]:
    """Geometric mean, and the interval of 95% of its resamplings."""
    rng = random.Random(1)
    means = sorted(statistics.geometric_mean(rng.choices(ratios, k=len(ratios))) for _ in range(_RESAMPLINGS))
    low, high = means[_RESAMPLINGS // 40], means[-_RESAMPLINGS // 40]
    return {"ratio": round(statistics.geometric_mean(ratios), 4), "low": round(low, 4), "high": round(high, 4)}


def serve(root: str, place: str, method: str, sweeps: str, arguments: Sequence[str]) -> None:
    """Answer requests on stdin with the benchmarks and the package of one version."""
    sys.path[:0] = [root, f"{root}/benchmarks/engine", f"{root}/benchmarks"]
    out, sys.stdout = sys.stdout, sys.stderr
    import common
    import streaming

    import ooc_mdp

    options = streaming.parse([*arguments, "--states", "warm", "--no-timeline"])
    folder = Path(place)
    folder.mkdir()
    stores = [common.open_or_generate(options, folder / str(i), options.device)[0] for i in (0, 1)]
    common.solve_warm_up(options, folder, discount=0.9, method="vi", cache="100%", device=options.device)
    budget = {"device_memory": options.device_memory} if options.device_memory else {"cache": options.cache}
    named = inspect.signature(ooc_mdp.solve).parameters
    keyword = "sweeps_per_visit" if "sweeps_per_visit" in named else "sweeps"  # of earlier versions
    print("{}", file=out, flush=True)
    for line in sys.stdin:
        what, store = line.split()[0], stores[int(line.split()[1])]
        if what == "pass":
            answer = {"seconds": streaming.one_pass(options, store, "warm")[0]["seconds"], "loads": 1.0}
        else:
            common.make_warm(store.path)
            asked = budget | ({keyword: int(sweeps)} if int(sweeps) else {})
            cost = ooc_mdp.solve(store, 0.9, residual=1e-4, method=method, device=options.device, **asked).statistics
            seconds = cost.solve_seconds if hasattr(cost, "solve_seconds") else cost.seconds  # of earlier versions
            answer = {"seconds": seconds, "loads": cost.loads_per_partition}
        print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(*sys.argv[2:6], sys.argv[6:])
    else:
        main()
