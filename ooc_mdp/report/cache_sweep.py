"""Cache sweeps: the same table solved with several caches, and what each solve loaded.

A solve that prefers partitions in its cache visits them in another order with another cache, so that no replay of its
accesses shows what it would load: each point here is a solve. Where the order does not depend on the cache (vi, exact
priorities), one of the solves is traced, and the loads of its accesses under LRU and Belady's optimum are kept beside
the points. The file of a sweep is in `ooc_mdp.report.cache_sweep_file`; how one solves is the caller's.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, cast

from ooc_mdp.errors import OptionsError
from ooc_mdp.model.solution import Outcome, Solution
from ooc_mdp.option_fields import one_of
from ooc_mdp.options import CacheSize, MethodName, PriorityName, RunOptions, SolveOptions
from ooc_mdp.report.cache_curve import cache_curve
from ooc_mdp.report.cache_trace import read_trace

__all__ = [
    "CachePoint",
    "CacheSweep",
    "SameAccesses",
    "Schedule",
    "SweepPlan",
    "check_holds_a_partition",
    "facts_of",
    "measure_caches",
    "parse_words",
]


_REACHED = {outcome.value for outcome in Outcome if outcome.proved}


@dataclass(frozen=True, slots=True)
class Schedule:
    """A method, with a priority where it has one."""

    method: MethodName
    priority: PriorityName | None = None

    @property
    def label(self) -> str:
        """The priority where one is given, else the method."""
        return self.priority or self.method


@dataclass(frozen=True, slots=True)
class CachePoint:
    """One solve of a cache sweep, and what it cost."""

    schedule: str
    """Its priority, or its method where it has none."""
    size: str
    """The cache that was asked for: "22%" of the table, or bytes."""
    outcome: str
    """How the solve ended; its figures count towards nothing unless the target was reached."""
    method: str
    """What became of it, as :attr:`Solution.method`."""
    device: str
    error_bound: float | None
    """Proved bound on ||V - V*||; None where nothing is known."""
    n_partitions: int
    table_bytes: int
    """Decoded bytes of all partitions."""
    cache_bytes: int
    """Budget of the partition cache."""
    cache_peak_bytes: int
    """Most bytes that the cache held."""
    accesses: int
    hits: int
    auxiliary_accesses: int
    auxiliary_hits: int
    loads: int
    partitions_unread: int
    bytes_read: int
    bytes_decoded: int
    visits: int
    sweeps: int
    backups: int
    solve_seconds: float
    load_seconds: float
    """Seconds of all threads together in reading and decoding tables."""

    @classmethod
    def of(cls, schedule: Schedule, size: CacheSize, solution: Solution) -> CachePoint:
        """The figures of a solve."""
        figures: dict[str, Any] = solution.summary() | {"schedule": schedule.label, "size": size.text}
        return cls(**{field.name: figures[field.name] for field in fields(cls)})

    @property
    def reached(self) -> bool:
        """Whether the solve reached its target."""
        return self.outcome in _REACHED

    @property
    def fraction(self) -> float:
        """The cache as a fraction of the table."""
        return self.cache_bytes / self.table_bytes

    @property
    def cache_partitions(self) -> int:
        """Partitions of mean size that the cache holds, at most all."""
        return min(int(self.fraction * self.n_partitions), self.n_partitions)

    @property
    def loads_per_partition(self) -> float:
        """Loads divided by the number of partitions."""
        return self.loads / self.n_partitions

    @property
    def hit_rate(self) -> float:
        """Hits divided by accesses, auxiliary ones included."""
        return (self.hits + self.auxiliary_hits) / max(self.accesses + self.auxiliary_accesses, 1)

    def figures(self) -> dict[str, Any]:
        """All figures as plain values."""
        derived = ("fraction", "cache_partitions", "loads_per_partition", "hit_rate")
        return asdict(self) | {name: getattr(self, name) for name in derived}


@dataclass(frozen=True, slots=True)
class SameAccesses:
    """Loads of the accesses of one schedule, whose order does not depend on the cache, by the cache's size."""

    schedule: str
    accesses: int
    """Auxiliary ones included."""
    lru_loads: tuple[int, ...]
    """Of caches of 0 to P partitions that evict the least recently used one, as the solve's own does."""
    belady_loads: tuple[int, ...]
    """Likewise of caches that evict the partition needed again last: no cache has fewer."""

    @classmethod
    def of_trace(cls, schedule: Schedule, trace: Path) -> SameAccesses:
        """Replay a trace."""
        accesses = read_trace(trace)
        lru, belady = (cache_curve(accesses, policy, raw=True) for policy in ("lru", "belady"))
        return cls(schedule.label, lru.n_accesses, tuple(lru.loads.tolist()), tuple(belady.loads.tolist()))


@dataclass(frozen=True, slots=True)
class CacheSweep:
    """What solves of one table with several caches loaded, read and took."""

    facts: dict[str, Any]
    """What all solves have in common: table, discount, target, ..."""
    points: tuple[CachePoint, ...] = ()
    same_accesses: tuple[SameAccesses, ...] = ()
    """One for each schedule whose order of accesses does not depend on the cache."""
    complete: bool = False
    """Whether every solve that was asked for is there and has reached its target."""

    def __repr__(self) -> str:
        return f"CacheSweep({self.facts.get('store')}, {len(self.points)} solves, complete={self.complete})"

    def point(self, schedule: str, size: str) -> CachePoint | None:
        """The solve of a schedule with a cache; None where there is none yet."""
        return next((p for p in self.points if (p.schedule, p.size) == (schedule, size)), None)

    def replayed(self, schedule: str) -> SameAccesses | None:
        """The replay of a schedule; None where there is none."""
        return next((each for each in self.same_accesses if each.schedule == schedule), None)

    def to_dict(self) -> dict[str, Any]:
        """All figures as plain values."""
        return {
            **self.facts,
            "complete": self.complete,
            "points": [point.figures() for point in self.points],
            "same_accesses": [asdict(each) for each in self.same_accesses],
        }


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """Which solves a cache sweep consists of."""

    options: SolveOptions
    """Of every solve, but for method, priority, cache and sweeps_per_visit."""
    schedules: tuple[Schedule, ...]
    sizes: tuple[CacheSize, ...]
    sweeps_per_visit: int = 1
    """Of the method vi."""
    time_limit: float | None = None
    """Seconds of each solve."""

    @classmethod
    def of(
        cls,
        options: SolveOptions,
        methods: Sequence[str],
        priorities: Sequence[str],
        sizes: Sequence[CacheSize],
        sweeps_per_visit: int = 1,
        time_limit: float | None = None,
    ) -> SweepPlan:
        """Every method with every size, p-eva and auto with every priority; raises OptionsError for what cannot be."""
        for words, known, what in ((methods, MethodName, "method"), (priorities, PriorityName, "priority")):
            for word in words:
                one_of(known).read(what, word)
        schedules: dict[Schedule, None] = {}
        for method in methods:
            takes_priority = bool(priorities) and method in ("auto", "p-eva")
            for priority in priorities if takes_priority else (None,):
                # A priority is p-eva's; without one, auto chooses.
                named = cast(MethodName, "p-eva" if takes_priority else method)
                schedules[Schedule(named, cast("PriorityName | None", priority))] = None
        if priorities and not any(schedule.priority for schedule in schedules):
            raise OptionsError(f"--priority is of p-eva, and --method {','.join(methods)} has none; leave one out")
        if not schedules or not sizes:
            raise OptionsError("a cache sweep needs a method and a cache size at least; give --method and --sizes")
        if sweeps_per_visit != 1 and Schedule("vi") not in schedules:
            raise OptionsError("--sweeps-per-visit is of the method vi; add --method vi, or leave it out")
        plan = cls(options, tuple(schedules), tuple(dict.fromkeys(sizes)), sweeps_per_visit, time_limit)
        for schedule, size in plan.solves():
            plan.solve_options(schedule, size)
        RunOptions(time_limit=time_limit)
        return plan

    def solves(self) -> Iterator[tuple[Schedule, CacheSize]]:
        """In the order in which they are done: by schedule, the sizes as they were given."""
        return ((schedule, size) for schedule in self.schedules for size in self.sizes)

    def order_is_fixed(self, schedule: Schedule) -> bool:
        """Whether accesses come in the same order with any cache: vi that sweeps all, and exact priorities."""
        return schedule.label.startswith("exact-") or (schedule.method == "vi" and self.sweeps_per_visit == 1)

    def solve_options(self, schedule: Schedule, size: CacheSize) -> SolveOptions:
        """The options of one solve; raises OptionsError."""
        sweeps = self.sweeps_per_visit if schedule.method == "vi" else 1
        return replace(
            self.options, method=schedule.method, priority=schedule.priority, cache=size, sweeps_per_visit=sweeps
        )


def parse_words(text: str) -> list[str]:
    """Read "joint,h1, h2"."""
    return [word.strip() for word in text.split(",") if word.strip()]


def measure_caches(
    plan: SweepPlan,
    solve: Callable[[SolveOptions, RunOptions], Solution],
    sweep: CacheSweep,
    keep: Callable[[CacheSweep], None],
    note: Callable[[str], None],
) -> CacheSweep:
    """Do the solves of a plan that a sweep lacks, or that were stopped by a limit in it.

    A solve that is interrupted is not kept: continued later it would load an emptied cache again, and count that.

    Parameters
    ----------
    sweep : what is there already.
    keep : called with the sweep after each solve.
    note : called with a sentence about each solve.
    """
    solves = list(plan.solves())
    for number, (schedule, size) in enumerate(solves, 1):
        point = sweep.point(schedule.label, size.text)
        if point is not None and point.outcome != Outcome.TIME_LIMIT.value:
            continue
        wants_trace = plan.order_is_fixed(schedule) and sweep.replayed(schedule.label) is None
        solution, replayed = _solve_one(plan, schedule, size, solve, wants_trace)
        if solution.outcome is Outcome.INTERRUPTED:
            return sweep
        point = CachePoint.of(schedule, size, solution)
        others = tuple(p for p in sweep.points if (p.schedule, p.size) != (point.schedule, point.size))
        same_accesses = sweep.same_accesses if replayed is None else (*sweep.same_accesses, replayed)
        sweep = replace(sweep, points=(*others, point), same_accesses=same_accesses)
        sweep = replace(sweep, complete=_is_complete(plan, sweep))
        keep(sweep)
        ended = "" if point.reached else f" until it ended with {point.outcome}"
        note(
            f"{schedule.label} at {size.text} ({number} of {len(solves)}): {point.loads_per_partition:.2f} loads per "
            f"partition, hit rate {point.hit_rate:.1%}, {point.solve_seconds:.1f} s{ended}"
        )
    return replace(sweep, complete=_is_complete(plan, sweep))


def _solve_one(
    plan: SweepPlan,
    schedule: Schedule,
    size: CacheSize,
    solve: Callable[[SolveOptions, RunOptions], Solution],
    wants_trace: bool,
) -> tuple[Solution, SameAccesses | None]:
    """A solution, and the replay of its accesses where that is wanted and the target was reached."""
    options = plan.solve_options(schedule, size)
    if not wants_trace:
        return solve(options, RunOptions(time_limit=plan.time_limit)), None
    with tempfile.TemporaryDirectory(prefix="ooc-mdp-cache-sweep-") as folder:
        trace = Path(folder) / "trace.csv"
        solution = solve(options, RunOptions(time_limit=plan.time_limit, trace=trace))
        replayed = SameAccesses.of_trace(schedule, trace) if solution.outcome.proved else None
    return solution, replayed


def _is_complete(plan: SweepPlan, sweep: CacheSweep) -> bool:
    points = [sweep.point(schedule.label, size.text) for schedule, size in plan.solves()]
    return all(point is not None and point.reached for point in points)


def facts_of(name: str, fingerprint: str, plan: SweepPlan) -> dict[str, Any]:
    """What all solves of a sweep have in common; solves of other facts are not compared with them."""
    options = plan.options
    return {
        "store": name,
        "fingerprint": fingerprint,
        "discount": options.discount,
        "epsilon": options.epsilon,
        "residual": options.residual,
        "sweeps_per_visit": plan.sweeps_per_visit,
        "sweep_order": options.sweep_order,
        "device": options.device,
    }


def check_holds_a_partition(sizes: Sequence[CacheSize], largest_partition: int) -> None:
    """Refuse, before the first solve, a cache in bytes that holds no partition; raises OptionsError."""
    for size in sizes:
        if size.size is not None and size.size < largest_partition:
            raise OptionsError(
                f"a cache of {size.text} holds no partition: the largest takes {largest_partition} bytes; give larger "
                f"--sizes, or shares such as 22%"
            )
