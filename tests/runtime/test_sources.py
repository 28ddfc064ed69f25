"""Compiled code that is kept on disk is that of the sources as they are now, those of other files included."""

from __future__ import annotations

import importlib
import os
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from paths import REPOSITORY

import ooc_mdp
from ooc_mdp.runtime.sources import imported_modules, stamp

FILES = {
    "rates.py": "RATE = 2.0\n",
    "parts.py": """
from ooc_mdp.runtime.compiled import inlined, part
from ooc_mdp.rates import RATE

@inlined
def copied(x):
    return RATE * x

@part
def called(x):
    return x + 1.0
""",
    "loops.py": """
import ooc_mdp.runtime.compiled
from ooc_mdp.runtime.compiled import (
    loop,
)
from ooc_mdp import parts
from ooc_mdp.parts import called

copied = parts.copied

@loop
def calculate(x):
    return copied(called(x))
""",
    "runtime/__init__.py": "",
    "__init__.py": "",
}
SHOW = """
from ooc_mdp.loops import calculate
print(calculate(3.0), sum(calculate.stats.cache_hits.values()))
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package of this name, with compiled functions in two files that use a constant of a third."""
    root = tmp_path / "ooc_mdp"
    (root / "runtime").mkdir(parents=True)
    for name, text in FILES.items():
        (root / name).write_text(text)
    for name in ("compiled.py", "sources.py"):
        (root / "runtime" / name).write_bytes((REPOSITORY / "ooc_mdp/runtime" / name).read_bytes())
    return root


def shown(package: Path, code: str = SHOW, **variables: str) -> str:
    """What a process with this package calculates, and how often it found compiled code on disk."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("NUMBA_", "PYTHON"))} | variables
    environment |= {"PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=package.parent, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_compiled_code_follows_the_files_that_are_part_of_it_and_no_others(package: Path) -> None:
    def edited(name: str, old: str, new: str) -> str:
        text = (package / name).read_text()
        assert old in text
        (package / name).write_text(text.replace(old, new))
        return shown(package)

    assert [shown(package), shown(package)] == ["8.0 0", "8.0 1"]
    assert edited("rates.py", "2.0", "5.0") == "20.0 0"
    assert edited("parts.py", "RATE * x", "RATE - x") == "1.0 0"
    assert edited("loops.py", "copied(called(x))", "called(copied(x))") == "3.0 0"
    (package / "other.py").write_text("from ooc_mdp import loops\n")
    os.utime(package / "loops.py")
    assert shown(package) == "3.0 1"


def test_kept_code_for_arguments_of_a_removed_class_is_ignored(package: Path) -> None:
    """An upgrade may remove a class for whose instances the version before compiled a loop."""
    kinds = "from typing import NamedTuple\n\nclass {name}(NamedTuple):\n    up: float\n"
    given = "from ooc_mdp.runtime.compiled import loop\n\n@loop\ndef raised(rates):\n    return rates[0] + 1.0\n"
    code = "from ooc_mdp.kinds import {name}; from ooc_mdp.given import raised; print(raised({name}(2.0)), {hits})"
    hits = "sum(raised.stats.cache_hits.values())"
    (package / "given.py").write_text(given)
    for name, found in (("Rates", 0), ("Rates", 1), ("Speeds", 0), ("Speeds", 1)):
        (package / "kinds.py").write_text(kinds.format(name=name))
        assert shown(package, code.format(name=name, hits=hits)) == f"3.0 {found}"


def test_functions_are_python_functions_where_numba_is_told_not_to_compile(package: Path) -> None:
    code = "from ooc_mdp.loops import calculate; print(calculate(3.0))"
    assert shown(package, code, NUMBA_DISABLE_JIT="1") == "8.0"


def modules_with_loops() -> list[ModuleType]:
    """Of the package, those that import something of runtime.compiled."""
    found = []
    for info in pkgutil.walk_packages(ooc_mdp.__path__, "ooc_mdp."):
        if "ooc_mdp.runtime.compiled" in imported_modules(info.name):
            found.append(importlib.import_module(info.name))
    return found


def used(function: Any, module: ModuleType) -> set[str]:
    """Modules of the package whose members a compiled function uses, by what these say of themselves."""
    members = [getattr(module, name, None) for name in function.py_func.__code__.co_names]
    names = {getattr(member, "__module__", None) or getattr(member, "__name__", "") for member in members}
    return {name for name in names if isinstance(name, str) and name.startswith("ooc_mdp.")}


def test_all_that_compiled_functions_use_is_among_the_modules_that_theirs_imports() -> None:
    functions = 0
    for module in modules_with_loops():
        imported = imported_modules(module.__name__)
        for function in vars(module).values():
            if hasattr(function, "py_func") and function.__module__ == module.__name__:
                functions += 1
                assert used(function, module) <= imported, (module.__name__, function.__name__)
    assert functions > 100


def test_stamps_are_of_modules_of_this_package() -> None:
    assert imported_modules("numpy") == set()
    assert stamp("numpy") == stamp("numba.core")
    assert stamp("ooc_mdp.backends.cpu.loops") != stamp("ooc_mdp.backends.cpu.views")
    assert {"ooc_mdp.backends.cpu.views", "ooc_mdp.runtime.compiled"} <= imported_modules("ooc_mdp.backends.cpu.loops")
