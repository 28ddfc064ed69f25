"""Where things lie around the tests: the only place that counts folders upwards."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["BENCHMARKS", "CASES", "DOCS", "HELPERS", "PUBLIC", "REPOSITORY", "python_path"]

REPOSITORY = Path(__file__).parents[2]
BENCHMARKS = REPOSITORY / "benchmarks"
DOCS = REPOSITORY / "docs"
HELPERS = (Path(__file__).parent, REPOSITORY / "tests" / "emulator")
"""The folders of pytest's ``pythonpath``."""
CASES = REPOSITORY.parent / "shared" / "cases"
"""Models with certified reference values, beside the checkout; they may be absent."""
PUBLIC = CASES / "public"


def python_path() -> str:
    """PYTHONPATH of a process of its own that imports the package, the tests' helpers and what this one can."""
    inherited = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join(filter(None, (*map(str, (REPOSITORY, *HELPERS)), inherited)))
