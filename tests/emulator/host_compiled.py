"""CUDA C++ compiled as C++ of the host: what a GPU would compute, but for its own sin, exp and the like."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np
from emulated_cuda import EXPORT, compile_kernels, compile_library

from ooc_mdp.backends.cuda.control import rows
from ooc_mdp.backends.cuda.control.rows import kernel_source
from ooc_mdp.model.mdp import IntArray, Rows
from ooc_mdp.problems.control import DiscretisedProblem
from ooc_mdp.problems.control.cuda.builtins import Kind, mangled
from ooc_mdp.problems.control.cuda.source import setup
from ooc_mdp.problems.control.cuda.translate import Program

_THREADS = 128
_TEMPLATE = Path(rows.__file__).with_name("rows.cu")


def rows_of_kernel(discretised: DiscretisedProblem, states: IntArray) -> Rows:
    """Rows by the kernel's template with the problem in it."""
    module = compile_kernels(kernel_source(discretised), ["control_rows<i64>"])
    n, a, k = states.size, discretised.n_actions, len(discretised.points) + 1
    arrays = [np.empty(n * a * k, np.int64), np.empty(n * a * k), np.empty(n * a), np.empty(n * a)]
    given = np.ascontiguousarray(states, np.int64)
    arguments = [given, np.int64(n), setup(discretised), *arrays]
    module.launch("control_rows<i64>", -(-n * a // _THREADS), _THREADS, arguments)
    return Rows(np.arange(n + 1) * a, np.arange(n * a + 1) * k, *arrays[:3], durations=arrays[3])


class Translated:
    """Functions of one module, translated and compiled together."""

    def __init__(self, functions: Mapping[str, FunctionType], kinds: Sequence[Kind], fields: Sequence[str]) -> None:
        program = Program(fields)
        made = {name: program.function(function, tuple(kinds), AssertionError) for name, function in functions.items()}
        self._results = {name: value.kind for name, value in made.items()}
        prelude = _TEMPLATE.read_text().split("\n@problem@\n")[0]
        members = " ".join(f"double {mangled('p_', name)};" for name in fields)
        inputs = ", ".join(f"*(const {kind.c}*)in[{i}]" for i, kind in enumerate(kinds))
        calls = [
            f"{EXPORT} void call_{name}(const void** in, double* out) {{ auto result = {value.c}({inputs}); "
            + (
                f"for (int i = 0; i < {value.kind.size}; ++i) out[i] = result.at[i]; }}"
                if value.kind.size is not None
                else "out[0] = result; }"
            )
            for name, value in made.items()
        ]
        self._library = compile_library(
            "\n".join([prelude, f"struct Parameters {{ {members} }};", *program.texts, *calls])
        )

    def __call__(self, name: str, *arguments: Sequence[float]) -> float | tuple[float, ...]:
        arrays = [np.array(argument, np.float64) for argument in arguments]
        pointers = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
        size = self._results[name].size
        out = np.empty(size or 1)
        self._library[f"call_{name}"](pointers, ctypes.c_void_p(out.ctypes.data))
        return float(out[0]) if size is None else tuple(out.tolist())


def written(folder: Path, text: str, name: str = "written.py") -> SimpleNamespace:
    """A module's names, from its text in a file."""
    file = folder / name
    file.write_text(text)
    names: dict[str, Any] = {"__name__": file.stem}
    exec(compile(text, str(file), "exec"), names)
    return SimpleNamespace(**names)
