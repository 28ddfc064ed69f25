"""Reading access traces back: the sequence of partitions that a cache simulation replays.

    # ooc-mdp trace 3          version, then facts, one a line
    access,partition,...       column names
    # remark after ...         between accesses: what the solver decided, for people
    0,17,frontier,...          accesses, in order
    # sha256: ...              of all bytes before; a killed process leaves none, and perhaps half a line

What a trace must hold is checked line by line; what is wrong is refused with its line, and so are bytes that are not
those that were written. Nothing is simulated here.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import InputError, raise_system_failure
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.store.trace import TRACE_COLUMNS, TRACE_DIGEST, TRACE_REMARK, TRACE_TITLE, TRACE_VERSION

__all__ = ["AccessTrace", "order_is_fixed", "read_trace"]

_NATURAL = r"\d{1,15}"
_REAL = r"-?(?:\d+(?:\.\d*)?(?:e[+-]?\d+)?|inf)"
_VALUES = {
    "access": _NATURAL,
    "partition": _NATURAL,
    "kind": "frontier|auxiliary",
    "visit": _NATURAL,
    "hit": "[01]",
    "sweeps": _NATURAL,
    "bound": f"{_REAL}|nan",
    "priority": _REAL,
    "seconds": _REAL,
}
_LINE = re.compile(",".join(f"({_VALUES[name]})" for name in TRACE_COLUMNS), re.ASCII)
_DIGEST_LINE = re.compile(f"{TRACE_DIGEST}([0-9a-f]{{64}})\n?")
_MAX_LINE_BYTES = 1 << 16
"""A longer line is no trace's; of a file without line ends no more is read."""
_FACT = re.compile(r"# ([a-z_ ]+): (.*)")
_FIXED_ORDER = re.compile(r"(vi|p-eva exact-\w+)(, [\w-]+ kernel)?")
"""Methods that do not look at the cache; by which kernel partitions are swept is no matter."""


@dataclass(frozen=True, slots=True, eq=False)
class AccessTrace:
    """The accesses of one solve, in order."""

    path: Path
    facts: dict[str, str]
    """What the lines that start with # say: fingerprint, sense, discount, method, partitions."""
    n_partitions: int
    partition: IntArray
    """int64 [n]; which partition was taken up."""
    auxiliary: npt.NDArray[np.bool_]
    """bool [n]; read only to recompute a priority."""
    hit: npt.NDArray[np.bool_]
    """bool [n]; was resident and had been used since its load, in the cache that the solve ran with."""
    priority: FloatArray
    """float64 [n]; the scheduler's rank of the partition afterwards, -inf where it was not dirty."""
    bound: FloatArray
    """float64 [n]; the bound on the partition's residual afterwards."""
    seconds: FloatArray
    """float64 [n]; since the trace began."""
    cut_off: bool
    """There is no digest at the end: the solve was killed, or is still at work. Half a last line was left out."""

    @property
    def method(self) -> str:
        """What solved, such as "p-eva exact-h2"; "unknown" where the trace does not say."""
        return self.facts.get("method", "unknown")

    @property
    def order_is_fixed(self) -> bool:
        """Whether the order of accesses would have been the same with any other cache."""
        return order_is_fixed(self.method)


def order_is_fixed(method: str) -> bool:
    """Whether a method makes the same accesses in the same order with any cache."""
    return _FIXED_ORDER.fullmatch(method) is not None


def read_trace(path: str | Path) -> AccessTrace:
    """Read what `ooc-mdp solve --trace` wrote.

    Raises
    ------
    InputError : the file cannot be read, is no trace of this version, or a line is malformed.
    """
    path = Path(path)
    try:
        with _regular(path) as file:
            return _Reader(path).read(file)
    except OSError as error:
        raise_system_failure(error, path)
        raise InputError(path, f"cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise InputError(path, "is no text, so no trace of ooc-mdp solve --trace") from None


def _regular(path: Path) -> BinaryIO:
    """Open a regular file; OSError for a directory, a pipe or a device, without waiting for it."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "Is a directory" if stat.S_ISDIR(mode) else "it is not a regular file")
    return open(fd, "rb")


class _Reader:
    """Goes through the lines once; remembers where it is for messages."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._line = 0
        self._cut_off = True

    def read(self, file: BinaryIO) -> AccessTrace:
        whole = self._whole(file)
        self._check_title(next(whole, ""))
        facts, header = self._facts(whole)
        if header != ",".join(TRACE_COLUMNS):
            raise self._wrong(f"the columns must be {','.join(TRACE_COLUMNS)}; solve again with --trace")
        n_partitions = self._partitions(facts)
        return self._accesses(whole, facts, n_partitions)

    def _whole(self, file: BinaryIO) -> Iterator[str]:
        """Lines without their ends, up to the digest; one that has no end is half of what was to be written."""
        digest = hashlib.sha256()
        while raw := file.readline(_MAX_LINE_BYTES):
            self._line += 1
            if len(raw) == _MAX_LINE_BYTES:
                raise self._wrong(
                    f"has more than {_MAX_LINE_BYTES} bytes; give a file that ooc-mdp solve --trace wrote"
                )
            line = raw.decode()
            if line.startswith(TRACE_DIGEST) and (line.endswith("\n") or len(line) >= len(TRACE_DIGEST) + 64):
                self._check_digest(line, digest.hexdigest(), file)
                self._cut_off = False
                return
            digest.update(raw)
            if line.endswith("\n"):
                yield line[:-1]

    def _check_digest(self, line: str, due: str, file: BinaryIO) -> None:
        said = _DIGEST_LINE.fullmatch(line)
        if said is None:
            raise self._wrong(f"{line[:80]!r} is no line with a SHA-256; solve again with --trace")
        if said[1] != due:
            raise self._wrong(
                f"the bytes before have the SHA-256 {due} and were written with {said[1]}: they have changed since; "
                f"solve again with --trace"
            )
        if file.read(1):
            self._line += 1
            raise self._wrong("something follows the line that ends a trace; solve again with --trace")

    def _check_title(self, line: str) -> None:
        if not line.startswith(TRACE_TITLE):
            raise self._wrong(f"does not begin with {TRACE_TITLE!r}; give a file that ooc-mdp solve --trace wrote")
        version = line[len(TRACE_TITLE) :].strip()
        if version != str(TRACE_VERSION):
            raise self._wrong(
                f"a trace of version {version or '?'}, this release reads {TRACE_VERSION}; solve again with --trace"
            )

    def _facts(self, lines: Iterator[str]) -> tuple[dict[str, str], str]:
        """Facts, and the first line after them."""
        facts: dict[str, str] = {}
        for line in lines:
            if not line.startswith("#"):
                return facts, line
            fact = _FACT.fullmatch(line)
            if fact is None:
                raise self._wrong(f"{line[:40]!r} is no fact; a line before the accesses reads '# name: value'")
            facts[fact[1]] = fact[2]
        raise self._wrong("ends before the accesses begin; nothing was flushed yet, or the solve was killed early")

    def _partitions(self, facts: dict[str, str]) -> int:
        text = facts.get("partitions", "")
        if not re.fullmatch(r"0*[1-9]\d{0,8}", text, re.ASCII):
            raise InputError(
                self._path, f"'# partitions: {text}' says no number of partitions; solve again with --trace"
            )
        return int(text)

    def _accesses(self, lines: Iterator[str], facts: dict[str, str], n_partitions: int) -> AccessTrace:
        partition, auxiliary, hit = array("q"), array("b"), array("b")
        priority, bound, seconds = array("d"), array("d"), array("d")
        visits: dict[int, int] = {}
        accesses = (line for line in lines if not line.startswith(TRACE_REMARK))
        for n, line in enumerate(accesses):
            columns = _LINE.fullmatch(line)
            if columns is None:
                raise self._malformed(line)
            access, p, is_auxiliary = int(columns[1]), int(columns[2]), columns[3] == "auxiliary"
            if access != n:
                raise self._wrong(f"access {access} follows {n - 1}: lines are missing or twice there; solve again")
            if p >= n_partitions:
                raise self._wrong(f"partition {p} of {n_partitions}: they are numbered from 0")
            visit = visits.get(p, 0) + (not is_auxiliary)
            if int(columns[4]) != visit:
                raise self._wrong(f"visit {columns[4]} of partition {p} must be {visit}, by the lines before")
            visits[p] = visit
            partition.append(p)
            auxiliary.append(is_auxiliary)
            hit.append(columns[5] == "1")
            bound.append(float(columns[7]))
            priority.append(float(columns[8]))
            seconds.append(float(columns[9]))
        if not partition:
            raise InputError(self._path, "holds no access: there is nothing to simulate")
        return AccessTrace(
            path=self._path,
            facts=facts,
            n_partitions=n_partitions,
            partition=np.array(partition, np.int64),
            auxiliary=np.array(auxiliary, np.bool_),
            hit=np.array(hit, np.bool_),
            priority=np.array(priority, np.float64),
            bound=np.array(bound, np.float64),
            seconds=np.array(seconds, np.float64),
            cut_off=self._cut_off,
        )

    def _malformed(self, line: str) -> InputError:
        values = line.split(",")
        if len(values) != len(TRACE_COLUMNS):
            return self._wrong(f"{len(values)} columns instead of {len(TRACE_COLUMNS)}")
        for name, value in zip(TRACE_COLUMNS, values, strict=True):
            if not re.fullmatch(_VALUES[name], value, re.ASCII):
                return self._wrong(f"{value[:40]!r} is no {name}")
        raise AssertionError(line)  # columns that all match make a line that does

    def _wrong(self, message: str) -> InputError:
        return InputError(self._path, message, max(self._line, 1))
