"""What the user may choose for a solve, checked once, as frozen dataclasses; sizes in bytes inside.

Each option is one field (`ooc_mdp.option_fields`), of which the command line and the keywords of `ooc_mdp.solve` are
made.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypedDict, cast

from ooc_mdp.arguments import CACHE, TEXT, whole_number
from ooc_mdp.errors import OptionsError
from ooc_mdp.model.criterion import Criterion, criterion_of, option_of
from ooc_mdp.option_fields import (
    COUNT,
    FLAG,
    NOT_NEGATIVE,
    PATH,
    POSITIVE,
    SIZE,
    WORD,
    OptionType,
    one_of,
    option,
    options_in,
    read_options,
)
from ooc_mdp.sizes import CacheSize, format_bytes, parse_bytes

if TYPE_CHECKING:
    from distributed import Client

__all__ = [
    "DEFAULT_KERNEL",
    "NO_DEVICE_MEMORY",
    "CacheSize",
    "ClusterOptions",
    "MethodName",
    "PriorityName",
    "RunOptions",
    "SolveKeywords",
    "SolveOptions",
    "Stopping",
    "SweepOrder",
    "format_bytes",
    "parse_bytes",
    "requested_cluster",
    "solve_options",
]

MethodName = Literal["auto", "vi", "p-eva", "policy-iteration"]
"""What a user can ask for; `ooc_mdp.solver.local.METHODS` has what does it."""
PriorityName = Literal["joint", "h1", "h2", "hybrid", "exact-h1", "exact-h2", "exact-hybrid"]
"""How p-eva ranks partitions: `ooc_mdp.scheduling.priority`; exact-: by their tables after each visit (Wingate)."""
SweepOrder = Literal["forward", "alternating", "voted"]

NO_DEVICE_MEMORY = (
    "--device-memory is a CUDA device's budget, and this solve runs on the CPU; give --cache, the RAM for partitions"
)
"""Why a solve on the CPU refuses a device's budget."""

DEFAULT_KERNEL = "tiles"
"""The first of `ooc_mdp.backends.device_kernels`: the engine that a device has of its own."""

_TARGET, _MEMORY = "What is proved", "Memory and device"


@dataclass(frozen=True, slots=True)
class Stopping:
    """Convergence test of a simple kernel: Inamoto et al.'s techniques, states:1, states:K, blocks:1, blocks:K."""

    copied: Literal["states", "blocks"]
    """To the host: the last change of every state, or the largest of each block of threads."""
    every: int
    """Passes between two looks."""

    @classmethod
    def parse(cls, text: str) -> Stopping:
        """Read "states:1" or "blocks:16"; raises OptionsError."""
        copied, _, every = text.partition(":")
        if copied not in ("states", "blocks") or not re.fullmatch(r"0*[1-9]\d{0,8}", every, re.ASCII):
            raise OptionsError(
                f"--stopping {text} is no test of convergence; write states:K or blocks:K with a whole number K from 1 "
                f"to 999999999, the passes between two looks at the changes: states:1 or blocks:16, for example"
            )
        return cls(cast(Literal["states", "blocks"], copied), int(every))

    def __str__(self) -> str:
        return f"{self.copied}:{self.every}"


def _read_cache(name: str, value: Any) -> CacheSize:
    return value if isinstance(value, CacheSize) else CacheSize.parse(CACHE.check(name, value))


def _read_stopping(name: str, value: Any) -> Stopping:
    return value if isinstance(value, Stopping) else Stopping.parse(TEXT.check(name, value))


def _read_workers(name: str, value: Any) -> Any:
    if isinstance(value, str) or hasattr(value, "submit"):
        return value
    number = whole_number(name, value, "; give a number of processes, the address of a Dask scheduler or a Dask client")
    if number < 1:
        raise OptionsError(f"{number} workers do nothing; give at least 1")
    return number


_CACHE = OptionType(str, _read_cache)
_STOPPING = OptionType(str, _read_stopping)
_WORKERS = OptionType(int, _read_workers)
_DIRECTORY = OptionType(Path, lambda name, value: Path(os.path.abspath(PATH.read(name, value))))


@dataclass(frozen=True, slots=True)
class SolveOptions:
    """What is proved, by which method, in how much memory."""

    heading: ClassVar[str] = "Method"

    criterion: Criterion | float
    """What is asked for; a number is the short form of `Discounted`."""
    epsilon: float | None = option(
        None,
        POSITIVE,
        "Prove |V - V*| to be at most this; of an average reward, half the width of the interval.  [default: 1e-4 of "
        "the value range; an interval of 1e-4 of the reward range]",
        heading=_TARGET,
    )
    residual: float | None = option(
        None,
        POSITIVE,
        "Stop at this plain Bellman residual instead; the bound that it proves is reported.",
        heading=_TARGET,
    )
    method: MethodName = option(
        "auto",
        one_of(MethodName),
        "vi: streamed value iteration; p-eva: partitions by priority; policy-iteration: policies evaluated on rows "
        "that are kept; auto: p-eva or policy-iteration, by how partitions depend on each other; in a resumed solve, "
        "the checkpoint's method.",
    )
    priority: PriorityName | None = option(
        None,
        one_of(PriorityName),
        "Which partition is loaded next; hybrid: h2 between boxes of partitions, h1 within them; exact-: recomputed "
        "from the tables after each visit, as in the thesis.  [default: joint]",
    )
    sweeps_per_visit: int = option(
        1,
        COUNT,
        "Most sweeps of a visit by vi; with more than 1, which may save loads, passes skip partitions whose bounds "
        "meet the target.",
    )
    sweep_order: SweepOrder = option(
        "voted",
        one_of(SweepOrder),
        "Order of the states in a sweep on the CPU; forward: as in memory; alternating: every second sweep of a visit "
        "reversed; voted: by where transitions lead.",
    )
    cache: CacheSize | None = option(
        None,
        _CACHE,
        "Budget of the partition cache: 1GiB, or 22% of the table.  [default: 256MiB]",
        heading=_MEMORY,
        metavar="SIZE|SHARE%",
    )
    device_memory: int | None = option(
        None,
        SIZE,
        "Total budget on a CUDA device, such as 8GiB; the cache gets what other buffers leave.",
        heading=_MEMORY,
        metavar="SIZE",
    )
    device: str = option(
        "auto",
        WORD,
        "cpu, cuda:0, cuda:0,1 (several as one), cuda (all, where that is faster), or auto: the first GPU, else the "
        "CPU.",
        heading=_MEMORY,
    )
    kernel: str = option(
        DEFAULT_KERNEL,
        WORD,
        "The kernel that sweeps: the device's own engine (the default), or one listed by ooc-mdp kernels.",
        heading=_MEMORY,
    )
    stopping: Stopping | None = option(
        None,
        _STOPPING,
        "Every K passes of a simple kernel, copy the changes of all states, or each block's largest, to the host, and "
        "end the visit where they are small.  [default: after 8, 16, then every 32 passes; on the CPU after each]",
        heading=_MEMORY,
        metavar="states:K|blocks:K",
    )

    @property
    def question(self) -> Criterion:
        """The criterion, whichever form it was given in."""
        return cast(Criterion, self.criterion)

    @property
    def discount(self) -> float:
        """What a value one unit of time later counts now."""
        return self.question.discount

    @property
    def cache_size(self) -> CacheSize:
        """The cache's budget where it does not follow from a device's."""
        return self.cache or CacheSize(size=256 << 20)

    @property
    def effective_method(self) -> MethodName:
        """The method, with auto where nothing that belongs to p-eva alone is asked for."""
        return "p-eva" if self.method == "auto" and self.priority is not None else self.method

    @property
    def effective_priority(self) -> Literal["joint", "h1", "h2", "hybrid"]:
        """The rank in force, exact or not."""
        return cast(Literal["joint", "h1", "h2", "hybrid"], (self.priority or "joint").removeprefix("exact-"))

    @property
    def exact_priorities(self) -> bool:
        """Whether the priorities of dependents are recomputed from their tables."""
        return (self.priority or "").startswith("exact-")

    def __post_init__(self) -> None:
        object.__setattr__(self, "criterion", criterion_of(self.criterion))
        read_options(self)
        if self.question.own_method is not None:
            self._check_unsteered(self.question.own_method)
        if self.epsilon is not None and self.residual is not None:
            raise OptionsError("give epsilon (a proved error) or residual (the papers' stopping rule), not both")
        if self.stopping is not None and self.kernel == DEFAULT_KERNEL:
            raise OptionsError(
                f"--stopping {self.stopping} is a test of simple kernels, and --kernel {self.kernel} is none: it has a "
                f"test of its own; add --kernel plain or another that ooc-mdp kernels lists, or leave --stopping out"
            )
        if self.sweeps_per_visit != 1 and self.method != "vi":
            raise OptionsError("sweeps a visit are those of the method vi; p-eva sweeps until a partition is settled")
        if self.device_memory is not None and self.cache is not None:
            raise OptionsError("give the cache's size or a device's budget in all (--device-memory), not both")
        if self.device_memory is not None and self.device == "cpu":
            raise OptionsError(NO_DEVICE_MEMORY)
        if self.exact_priorities and self.effective_method != "p-eva":
            raise OptionsError("exact priorities belong to the method p-eva; the others recompute none")
        if self.method == "vi" and self.priority is not None:
            raise OptionsError("--priority is of p-eva, and --method vi visits all partitions in turn; leave one out")

    def _check_unsteered(self, method: str) -> None:
        """Refuse what steers other methods than the one that the criterion has."""
        option = option_of(self.question)
        if not self.question.on_devices and (self.device not in ("auto", "cpu") or self.device_memory is not None):
            raise OptionsError(f"{option} is solved on the CPU only; give --device cpu, or a discount below 1")
        steered = self.effective_method != "auto" or self.sweeps_per_visit != 1
        if steered or self.sweep_order != "voted" or self.kernel != DEFAULT_KERNEL:
            raise OptionsError(
                f"{option} has a method of its own, {method}; leave out --method, --priority, --sweeps-per-visit, "
                "--sweep-order and --kernel"
            )


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What surrounds a solve and changes nothing in what it proves: where its result goes, what ends it early."""

    heading: ClassVar[str] = "Output and limits"

    output: Path | None = option(None, PATH, "Directory of the result, and of checkpoints next to it.")
    resume: bool = option(
        False, FLAG, "Continue from the output's checkpoint, or from its values; begin where neither is there."
    )
    overwrite: bool = option(False, FLAG, "Replace an existing output by the complete new one.")
    trace: Path | None = option(None, PATH, "CSV file for every access to a partition.")
    time_limit: float | None = option(
        None, POSITIVE, "Seconds until the solve stops, with a checkpoint if it has values yet, compilation included."
    )
    checkpoint_interval: float = option(60.0, NOT_NEGATIVE, "Seconds between checkpoints, from the first values on.")

    def __post_init__(self) -> None:
        read_options(self)
        if self.resume and self.output is None:
            raise OptionsError("resume needs an output (--output): the checkpoint lies beside it")


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """How a solve is spread over several workers (`ooc_mdp.distributed`)."""

    heading: ClassVar[str] = "Several workers"

    workers: int | str | Client | None = option(
        None,
        _WORKERS,
        "Number of workers on this machine, processes that share its cores; several use no GPU.  [default: solve in "
        "this process]",
    )
    placement: str = option(
        "auto",
        WORD,
        "Which worker starts with which partitions; single: one worker owns all; auto: single where partitions read "
        "most of the others, else blocks.",
    )
    rebalance: bool = option(False, FLAG, "Move dirty partitions to idle workers during the solve.")
    worker_timeout: float = option(15.0, POSITIVE, "Seconds without an answer after which a worker counts as lost.")
    threads: int | None = None
    """That sweep on the CPU, a worker; None for its machine's cores, divided among the machine's workers."""
    stage: Path | None = option(
        None,
        _DIRECTORY,
        "Copy each worker's partitions to this directory of its node, a local disk, and load them from there.",
        metavar="DIR",
    )

    def __post_init__(self) -> None:
        read_options(self)
        if self.threads is not None:
            object.__setattr__(self, "threads", COUNT.read("threads", self.threads))


class SolveKeywords(TypedDict, total=False):
    """The options as keywords of `ooc_mdp.solve`, with what may be given for each, which editors and checkers read."""

    epsilon: float | None
    residual: float | None
    method: MethodName
    priority: PriorityName | None
    sweeps_per_visit: int
    sweep_order: SweepOrder
    cache: CacheSize | str | float | None
    device_memory: str | int | None
    device: str
    kernel: str
    stopping: Stopping | str | None
    output: str | PathLike[str] | None
    resume: bool
    overwrite: bool
    trace: str | PathLike[str] | None
    time_limit: float | None
    checkpoint_interval: float
    workers: int | str | Client | None
    placement: str
    rebalance: bool
    worker_timeout: float
    stage: str | PathLike[str] | None


def solve_options(
    criterion: Criterion, given: Mapping[str, Any]
) -> tuple[SolveOptions, RunOptions, ClusterOptions | None]:
    """The options that keywords ask for; no ClusterOptions for a solve in this process. Raises OptionsError."""

    def of(options: Any) -> dict[str, Any]:
        return {each.name: given[each.name] for each in options_in(options) if each.name in given}

    cluster = ClusterOptions(**of(ClusterOptions))
    return SolveOptions(criterion, **of(SolveOptions)), RunOptions(**of(RunOptions)), requested_cluster(cluster)


def requested_cluster(asked: ClusterOptions) -> ClusterOptions | None:
    """How to solve on several workers; None, where none are asked for, to solve in this process."""
    if asked.workers is not None:
        return asked
    if asked != ClusterOptions():
        raise OptionsError(
            "placement, rebalance, worker_timeout and stage (--placement, --rebalance, --worker-timeout, --stage) "
            "apply to solves on several workers; leave them out, or give workers (--workers, --scheduler)"
        )
    return None
