"""Where things lie around the tests: the only place that counts folders upwards."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

__all__ = ["BENCHMARKS", "CASES", "DOCS", "HELPERS", "PUBLIC", "REPOSITORY", "place_in_memory", "python_path"]

REPOSITORY = Path(__file__).parents[2]
BENCHMARKS = REPOSITORY / "benchmarks"
DOCS = REPOSITORY / "docs"
HELPERS = (Path(__file__).parent, REPOSITORY / "tests" / "emulator")
"""The folders of pytest's ``pythonpath``."""
CASES = REPOSITORY.parent / "shared" / "cases"
"""Models with certified reference values, beside the checkout; they may be absent."""
PUBLIC = CASES / "public"


def place_in_memory() -> Path | None:
    """A folder of a file system in memory, if there is one with room for what tests write (a GiB is plenty)."""
    place = Path("/dev/shm")
    return place if place.is_dir() and shutil.disk_usage(place).free >= 4 << 30 else None


def python_path() -> str:
    """PYTHONPATH of a process of its own that imports the package, the tests' helpers and what this one can."""
    inherited = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join(filter(None, (*map(str, (REPOSITORY, *HELPERS)), inherited)))
