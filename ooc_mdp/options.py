"""What the user may choose for a solve, checked once, as frozen dataclasses; sizes in bytes inside.

Text such as "256MiB" or "22%" exists at the edge only: :func:`parse_bytes` and :class:`CacheSize` read it.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast, get_args

from ooc_mdp.arguments import MOST, real_number, whole_number
from ooc_mdp.errors import OptionsError
from ooc_mdp.model.criterion import Criterion, criterion_of, option_of
from ooc_mdp.quoting import quote

if TYPE_CHECKING:
    from distributed import Client

__all__ = [
    "DEFAULT_KERNEL",
    "DEFAULT_PLACEMENT",
    "DEFAULT_WORKER_TIMEOUT",
    "NO_DEVICE_MEMORY",
    "CacheSize",
    "ClusterOptions",
    "MethodName",
    "PriorityName",
    "RunOptions",
    "SolveOptions",
    "Stopping",
    "SweepOrder",
    "format_bytes",
    "parse_bytes",
    "real_number",
    "whole_number",
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

DEFAULT_PLACEMENT = "auto"
DEFAULT_WORKER_TIMEOUT = 15.0
"""Seconds."""

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12} | {
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.ASCII | re.IGNORECASE)


_LARGEST_PERCENTAGE = 100


def parse_bytes(text: str | float, name: str = "") -> int:
    """Bytes in "64MiB", "1.5GB", "4096".

    Parameters
    ----------
    name : of the argument, for messages.

    Raises
    ------
    OptionsError : the text is no size, or not positive.
    """
    where = f"{name}: " if name else ""
    if not isinstance(text, str):
        size = whole_number("a size", text, "; write for example 67108864, '64MiB' or '1.5GB'")
    else:
        match = _SIZE.fullmatch(text)
        unit = _UNITS.get(match[2].lower()) if match else None
        if match is None or unit is None:
            raise OptionsError(f"{where}{quote(text)} is no size; write for example 67108864, 64MiB or 1.5GB")
        exact = Decimal(match[1]) * unit
        size = whole_number("a size", int(min(exact, Decimal(MOST + 1))))
    if size <= 0:
        raise OptionsError(f"{where}a size of {size} bytes cannot hold anything; give a positive one")
    return size


def format_bytes(size: int | float) -> str:
    """Bytes for people: "64.0 MiB"."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.2f} TiB"


@dataclass(frozen=True, slots=True)
class CacheSize:
    """Size of a partition cache: bytes (`size`), a number of partitions, or a share of the table."""

    size: int | None = None
    share: float | None = None
    """Fraction of the table, in (0, 1]."""
    partitions: int | None = None
    """Number of partitions, of the curves that `ooc_mdp.report.cache_report` prints."""

    @classmethod
    def parse(cls, text: str | float) -> CacheSize:
        """Read a budget of a solve, "256MiB", "22%" or 0.22 (of the table); raises OptionsError.

        A number without a unit is bytes; in a text one up to 100 is refused, since a percentage is meant.
        """
        if isinstance(text, float) and 0 < text <= 1:
            return cls(share=text)
        if isinstance(text, str) and text.strip().endswith("%"):
            try:
                share = float(text.strip()[:-1]) / 100
            except ValueError:
                raise OptionsError(f"{quote(text)} is no percentage; write for example 22%") from None
            if not 0 < share <= 1:
                raise OptionsError(f"a cache of {quote(text)} of the table: give a percentage above 0 and up to 100")
            return cls(share=share)
        size = parse_bytes(text, "cache")
        if isinstance(text, str) and size <= _LARGEST_PERCENTAGE and (bare := text.strip()).isdecimal():
            raise OptionsError(
                f"a cache of {bare} is {size} bytes, which hold no partition; did you mean {bare}% of the table, or "
                f"{bare}MiB? (for bytes, write {bare}B)"
            )
        return cls(size=size)

    @classmethod
    def parse_partitions(cls, text: str) -> CacheSize:
        """Read a size of a cache curve, "32" or "22%"; raises OptionsError."""
        if text.strip().endswith("%"):
            return cls.parse(text)
        if not re.fullmatch(r"\s*0*[1-9][0-9]{0,14}\s*", text):
            raise OptionsError(
                f"{quote(text)} is no cache size; write a number of partitions, such as 32, or a share, such as 22%"
            )
        return cls(partitions=int(text))

    @property
    def text(self) -> str:
        """The size as it is written: "22%", "67108864", or "32 partitions"."""
        if self.share is not None:
            return f"{100 * self.share:.12g}%"
        return str(self.size) if self.size is not None else f"{self.partitions} partitions"

    def resolve(self, table_bytes: int, largest_partition: int) -> int:
        """Bytes of the budget for a table and a largest partition of the given decoded sizes.

        A share is never less than the largest partition: 22% of a table of three partitions can be solved too.
        """
        if self.size is not None:
            return self.size
        return max(math.ceil((self.share or 1.0) * table_bytes), largest_partition)

    def resolve_partitions(self, n_partitions: int) -> int:
        """Partitions of the cache: a share is rounded down, but to 1 at least; raises OptionsError for too many."""
        if self.partitions is None:
            return max(math.floor(round((self.share or 1.0) * n_partitions, 6)), 1)
        if self.partitions > n_partitions:
            raise OptionsError(
                f"a cache of {self.partitions} partitions is larger than the table, which has {n_partitions}; "
                f"give --sizes as shares, such as 22%"
            )
        return self.partitions


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


@dataclass(frozen=True, slots=True)
class SolveOptions:
    """Everything that steers a solve."""

    criterion: Criterion | float
    """What is asked for; a number is the short form of `Discounted`."""
    epsilon: float | None = None
    """Target for ||V - V*|| in the sup norm; None means 1e-4 of the value range. Of an average reward: half the width
    of the interval; None means a width of 1e-4 of the range of the rewards."""
    residual: float | None = None
    """Stop at this plain Bellman residual instead (the papers' rule); the bound it proves is reported."""
    method: MethodName = "auto"
    """vi: streamed full sweeps; p-eva: partitions by priority; policy-iteration: policies evaluated on rows that are
    kept; auto: p-eva or policy iteration, from the table's coupling and what p-eva has cost so far, and in a resumed
    solve the checkpoint's method."""
    priority: PriorityName | None = None
    """None is joint."""
    sweeps_per_visit: int = 1
    """Most sweeps of a visit by vi. With more than one, passes skip partitions whose bounds meet the target."""
    cache: CacheSize | None = None
    """Budget of the partition cache. None is 256 MiB, or what `device_memory` leaves."""
    device_memory: int | None = None
    """Bytes on the CUDA device in all; the cache gets what the rest leaves. None: `cache`, and the rest on top."""
    device: str = "auto"
    """"cpu", "cuda:N", "cuda:N,M" (several devices as one), "cuda": all that reach each other's memory where that is
    expected to be faster, else the first, or "auto": the first where CuPy finds one, else the CPU. Each of several
    workers uses the devices that have these numbers where it runs, of "cuda" the first; no two use the same one."""
    kernel: str = DEFAULT_KERNEL
    """A word of `ooc_mdp.backends.device_kernels`. The default is the device's own engine, tiles on CUDA."""
    stopping: Stopping | None = None
    """When visits of a simple kernel test whether to end; None: after 8, 16, then each 32 passes (CPU: each pass)."""
    sweep_order: SweepOrder = "voted"
    """Order of the states in the CPU's sweeps: as in memory, every second sweep of a visit reversed, or as voted."""

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
        self._take_plain_numbers()
        if self.question.own_method is not None:
            self._check_unsteered(self.question.own_method)
        for name in ("epsilon", "residual"):
            _check_positive(name, getattr(self, name))
        if self.epsilon is not None and self.residual is not None:
            raise OptionsError("give epsilon (a proved error) or residual (the papers' stopping rule), not both")
        for name, kind in (("method", MethodName), ("priority", PriorityName), ("sweep_order", SweepOrder)):
            word, known = getattr(self, name), get_args(kind)
            if word not in known and not (word is None and name == "priority"):
                raise OptionsError(f"unknown {name.replace('_', ' ')} {quote(word)}; there are {', '.join(known)}")
        if self.stopping is not None and self.kernel == DEFAULT_KERNEL:
            raise OptionsError(
                f"--stopping {self.stopping} is a test of simple kernels, and --kernel {self.kernel} is none: it has a "
                f"test of its own; add --kernel plain or another that ooc-mdp kernels lists, or leave --stopping out"
            )
        if self.sweeps_per_visit < 1:
            raise OptionsError(f"sweeps_per_visit is {self.sweeps_per_visit}; give at least 1")
        if self.sweeps_per_visit != 1 and self.method != "vi":
            raise OptionsError("sweeps a visit are those of the method vi; p-eva sweeps until a partition is settled")
        if self.device_memory is not None:
            if self.device_memory <= 0:
                raise OptionsError(
                    f"a device's budget of {self.device_memory} bytes holds nothing; give a positive one"
                )
            if self.cache is not None:
                raise OptionsError("give the cache's size or a device's budget in all (--device-memory), not both")
            if self.device == "cpu":
                raise OptionsError(NO_DEVICE_MEMORY)
        if self.exact_priorities and self.effective_method != "p-eva":
            raise OptionsError("exact priorities belong to the method p-eva; the others recompute none")

    def _take_plain_numbers(self) -> None:
        """Keep Python's own numbers, whatever kind was given; refuse what is none."""
        for name in ("epsilon", "residual"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, real_number(name, value))
        object.__setattr__(self, "sweeps_per_visit", whole_number("sweeps_per_visit", self.sweeps_per_visit))
        if self.device_memory is not None:
            object.__setattr__(self, "device_memory", whole_number("device memory", self.device_memory))

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

    output: Path | None = None
    """Where the result is written, with checkpoints beside it meanwhile; None for a solve that leaves no file."""
    resume: bool = False
    """Continue from the output's checkpoint, or from the output's values; from the beginning where there is neither."""
    overwrite: bool = False
    """Replace an output or trace that exists."""
    trace: Path | None = None
    """CSV file that gets every access."""
    time_limit: float | None = None
    """Seconds, compilation included, after which the solve stops with a checkpoint."""
    checkpoint_interval: float = 60.0
    """Seconds between checkpoints, where an output is named."""

    def __post_init__(self) -> None:
        for name in ("output", "trace"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, Path(value))
        if self.time_limit is not None:
            object.__setattr__(self, "time_limit", real_number("time limit", self.time_limit))
        _check_positive("time limit", self.time_limit)
        interval = real_number("checkpoint interval", self.checkpoint_interval)
        object.__setattr__(self, "checkpoint_interval", interval)
        if not interval >= 0:
            raise OptionsError(f"the checkpoint interval must not be negative, not {interval}")
        if self.resume and self.output is None:
            raise OptionsError("resume needs an output (--output): the checkpoint lies beside it")


def _check_positive(name: str, value: float | None) -> None:
    """Refuse a number that is given and not above 0, or infinite."""
    if value is not None and not (value > 0 and math.isfinite(value)):
        raise OptionsError(f"{name} must be a positive number, not {value}")


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """How a solve is spread over several workers (`ooc_mdp.distributed`)."""

    workers: int | str | Client | None = None
    """A number of processes on this machine, for the time of the solve; the address of a Dask scheduler, such as
    "tcp://host:8786", whose workers solve; or a client of one, which is not closed. None to solve in this process."""
    placement: str = DEFAULT_PLACEMENT
    """Which worker starts with which partitions: a word of `ooc_mdp.distributed.placement.PLACEMENTS`. "auto" is
    "single" (one worker owns all) where partitions read most of the others, else "blocks"."""
    rebalance: bool = False
    """Whether idle workers take dirty partitions from busy ones during the solve."""
    worker_timeout: float = DEFAULT_WORKER_TIMEOUT
    """Seconds without an answer after which a worker is lost and the others go on with its partitions."""
    threads: int | None = None
    """That sweep on the CPU, a worker; None for its machine's cores, divided among the machine's workers."""
    stage: Path | None = None
    """Directory on each worker's node to which its partitions are copied from the store; loads read the copies."""

    def __post_init__(self) -> None:
        if not (self.workers is None or isinstance(self.workers, str) or hasattr(self.workers, "submit")):
            remedy = "; give a number of processes, the address of a Dask scheduler or a Dask client"
            object.__setattr__(self, "workers", whole_number("workers", self.workers, remedy))
        if self.threads is not None:
            object.__setattr__(self, "threads", whole_number("threads", self.threads))
        object.__setattr__(self, "worker_timeout", real_number("worker_timeout", self.worker_timeout))
        if self.stage is not None:
            object.__setattr__(self, "stage", Path(os.path.abspath(self.stage)))
        if isinstance(self.workers, int) and self.workers < 1:
            raise OptionsError(f"{self.workers} workers do nothing; give at least 1")
        if self.threads is not None and self.threads < 1:
            raise OptionsError(f"{self.threads} threads for each worker; each worker needs at least one thread")
        if not (self.worker_timeout > 0 and math.isfinite(self.worker_timeout)):
            raise OptionsError(
                f"the worker timeout (--worker-timeout) must be a positive number, not {self.worker_timeout} s"
            )
