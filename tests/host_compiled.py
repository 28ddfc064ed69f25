"""CUDA C++ compiled as C++ of the host: what a GPU would compute, but for its own sin, exp and the like."""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ooc_mdp.kernels.control_rows import kernel_source
from ooc_mdp.mdp import IntArray, Rows
from ooc_mdp.problems.control import Discretised
from ooc_mdp.problems.control.cuda_source import setup
from ooc_mdp.problems.control.device_functions import Kind, mangled
from ooc_mdp.problems.control.translate import Program

_SHIM = """
#include <math.h>
#include <string.h>
#define __device__
#define __global__
#define __forceinline__ inline
struct Place { unsigned x; };
static Place blockIdx, threadIdx, blockDim;
inline double __longlong_as_double(long long bits) { double x; memcpy(&x, &bits, sizeof x); return x; }
"""
_ROWS = """
extern "C" void compute(const i64* states, i64 n, const void* setup, i64* successors, double* probabilities,
                        double* rewards, double* durations) {
    blockDim.x = 128;
    for (blockIdx.x = 0; blockIdx.x < (n * A + 127) / 128; ++blockIdx.x)
        for (threadIdx.x = 0; threadIdx.x < 128; ++threadIdx.x)
            control_rows<i64>(states, n, *(const Setup*)setup, successors, probabilities, rewards, durations);
}
"""
_TEMPLATE = Path(__file__).parents[1] / "ooc_mdp" / "kernels" / "control_rows.cu"


@functools.cache
def compiled(source: str) -> ctypes.CDLL:
    """The library of a source behind the shim; skips the test where there is no compiler."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    with tempfile.TemporaryDirectory() as folder:
        file, library = Path(folder, "unit.cpp"), Path(folder, "unit.so")
        file.write_text(_SHIM + source)
        options = ["-std=c++17", "-O1", "-ffp-contract=off", "-shared", "-fPIC"]
        done = subprocess.run(
            [compiler, *options, "-o", str(library), str(file)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{done.stderr}\n{source}"
        return ctypes.CDLL(str(library))


def rows_of_kernel(discretised: Discretised, states: IntArray) -> Rows:
    """Rows by the kernel's template with the problem in it."""
    library = compiled(kernel_source(discretised) + _ROWS)
    n, a, k = states.size, discretised.n_actions, len(discretised.points) + 1
    arrays = [np.empty(n * a * k, np.int64), np.empty(n * a * k), np.empty(n * a), np.empty(n * a)]
    given = np.ascontiguousarray(states, np.int64)
    values = setup(discretised)
    pointers = [ctypes.c_void_p(x.ctypes.data) for x in (given, values, *arrays)]
    library.compute(pointers[0], ctypes.c_longlong(n), *pointers[1:])
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
            f'extern "C" void call_{name}(const void** in, double* out) {{ auto result = {value.c}({inputs}); '
            + (
                f"for (int i = 0; i < {value.kind.size}; ++i) out[i] = result.at[i]; }}"
                if value.kind.size is not None
                else "out[0] = result; }"
            )
            for name, value in made.items()
        ]
        self._library = compiled("\n".join([prelude, f"struct Parameters {{ {members} }};", *program.texts, *calls]))

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
