"""CUDA kernels run on the CPU, so that tests of a ``.cu`` file need no GPU: results, barriers, races, bounds.

:func:`compile_kernels` puts ``emulated_cuda.hpp`` before a source and compiles it with the host's C++ compiler; a
block's threads become fibers, which meet at barriers and in warps' intrinsics as a device's do. A kernel that a GPU
would run into a deadlock, an invalid address or beyond its dynamic shared memory ends with a :class:`KernelError`. What
differs from a device: speed, the last bits of exp, sin and the like, and that blocks run one after the other.
"""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import functools
import hashlib
import mmap
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from paths import REPOSITORY

__all__ = ["EXPORT", "KernelError", "Module", "compile_kernels", "compile_library", "fenced", "rewritten"]

EXPORT = 'extern "C" __attribute__((visibility("default")))'
"""Before a function that a library of :func:`compile_library` shows."""
_HEADER = Path(__file__).with_name("emulated_cuda.hpp")
_OPTIONS = [
    "-std=c++17", "-Og", "-ffp-contract=off", "-fno-strict-aliasing", "-fno-exceptions", "-fno-threadsafe-statics",
    "-fvisibility=hidden", "-U_FORTIFY_SOURCE", "-fno-stack-protector", "-w", "-fPIC",
    "-fsanitize=alignment,bounds,shift-exponent,integer-divide-by-zero,unreachable,return", "-fno-sanitize-recover=all",
]  # fmt: skip
_KEPT = REPOSITORY / ".pytest_cache" / "emulated-cuda"
"""Libraries and headers, for all processes of a run of the tests and for later runs: compiling takes longer than most
launches."""
_ASKED = "EMULATED_"
"""Begins the names of definitions that the header asks about."""
_KEPT_SECONDS = 7 * 86_400
_MAX_SHARED = 227 << 10
_MAX_PARAMETERS = 64
_TEXT = 2000
_LITERALS = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\\n]){1,4}'""", re.DOTALL)
_LAUNCHING = threading.Lock()
_NAMESPACE = "emulated_source"
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\b[^\n]*", re.MULTILINE)
_EXTERN_C = re.compile(r'\bextern\s+"C"\s+(?=__(?!attribute__)\w+__\b|void\b)')
_SHARED = re.compile(r"\b(?:(extern|static)\s+)?__shared__\b")
_ALIGNED = re.compile(r"(?:alignas|__align__)\s*\((?:[^()]|\([^()]*\))*\)")
_LEADING = re.compile(rf"\s*(?:{_ALIGNED.pattern}\s*)?")


class KernelError(RuntimeError):
    """A kernel that cannot go on: where, and why."""


class _Parameter(NamedTuple):
    """As the header's struct of that name; kinds are NumPy's, and p for a pointer."""

    nbytes: int
    kind: str
    pointee_bytes: int
    pointee_kind: str
    writes: bool


def compile_kernels(source: str, names: Sequence[str], defines: Mapping[str, str | int] | None = None) -> Module:
    """The kernels of a source, by their names or template-ids such as ``sweep<unsigned short, float>``.

    Skips the test where there is no compiler or the system is not Linux. Compiled once for the same arguments.
    """
    return _compiled_kernels(source, tuple(names), tuple((defines or {}).items()))


@functools.cache
def _compiled_kernels(source: str, names: tuple[str, ...], defines: tuple[tuple[str, str | int], ...]) -> Module:
    exports = [f"EMULATED_KERNEL({number}, {name})" for number, name in enumerate(names)]
    return Module(compile_library("\n".join([source, *exports]), defines), names)


@functools.cache
def compile_library(source: str, defines: tuple[tuple[str, str | int], ...] = ()) -> ctypes.CDLL:
    """A CUDA source as a library of the host; functions after :data:`EXPORT` can be called from Python."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    if sys.platform != "linux":
        pytest.skip("emulated CUDA needs the signals and timers of Linux")
    text = _INCLUDE.sub(_outside_namespace, rewritten(source))
    # In a namespace, so that a kernel may have the name of a function of the C library.
    # What the header does not ask about is defined after it: one precompiled header serves all.
    defined = "".join(f"#define {name} {value}\n" for name, value in defines if not name.startswith(_ASKED))
    text = f'#include "{_HEADER.name}"\n{defined}namespace {_NAMESPACE} {{\n#line 1 "kernels.cu"\n{text}\n}}\n'
    unique = [] if "clang" in compiler else ["-fno-gnu-unique"]
    asked = [f"-D{name}={value}" for name, value in defines if name.startswith(_ASKED)]
    options = (*_OPTIONS, *unique, *asked)
    library = _KEPT / f"{_hash(text, compiler, *options)}.so"
    with contextlib.suppress(FileNotFoundError):
        os.utime(library)  # first, so that it is not taken for an old one meanwhile
    if not library.exists():
        _make(library, compiler, options, text)
    return ctypes.CDLL(str(library))


def _make(library: Path, compiler: str, options: Sequence[str], text: str) -> None:
    """Compile a library, which other processes see when it is whole."""
    _KEPT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_KEPT) as folder:
        file, unit, made = (Path(folder) / name for name in ("kernels.cpp", "kernels.o", "kernels.so"))
        file.write_text(text)
        # In two steps: the header has what the compiler's checks call, their library would be linked too.
        headers = str(_headers(compiler, tuple(options)))
        _compile(compiler, *options, "-iquote", headers, "-c", "-o", str(unit), str(file))
        _compile(compiler, "-shared", "-o", str(made), str(unit))
        made.replace(library)


@functools.cache
def _headers(compiler: str, options: tuple[str, ...]) -> Path:
    """A folder with the header, which GCC has precompiled: parsing it takes a third of the time of most libraries."""
    if "clang" in compiler:
        return _HEADER.parent
    folder = _KEPT / _hash(_HEADER.name, compiler, *options)
    precompiled = folder / f"{_HEADER.name}.gch"
    if not precompiled.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as place:
            for header in _HEADER.parent.glob("emulated_*.hpp"):
                Path(shutil.copy(header, place)).replace(folder / header.name)
            made = Path(place) / precompiled.name
            _compile(compiler, *options, "-x", "c++-header", "-o", str(made), str(folder / _HEADER.name))
            made.replace(precompiled)
    os.utime(precompiled)
    return folder


def _compile(compiler: str, *arguments: str) -> None:
    done = subprocess.run([compiler, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise KernelError(f"{compiler} cannot compile the kernels:\n{done.stderr[:8000]}")


@functools.cache
def _headers_and_compiler(compiler: str) -> str:
    """What a library depends on beside its source and options. Libraries that nobody has used for a week go."""
    for old in (*_KEPT.glob("*.so"), *_KEPT.glob("*/*.gch")):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - old.stat().st_mtime > _KEPT_SECONDS:
                old.unlink()
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    return version + "".join(file.read_text() for file in sorted(_HEADER.parent.glob("emulated_*.hpp")))


def _hash(text: str, compiler: str, *options: str) -> str:
    parts = (_headers_and_compiler(compiler), compiler, text, *options)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def rewritten(source: str) -> str:
    """A source without comments, its ``__shared__`` declarations as statics and pointers that the header knows.

    Kernels lose their ``extern "C"``, which would make two functions of one name one, whatever their namespaces.
    """
    source = _EXTERN_C.sub("", _LITERALS.sub(_without_comment, source))
    parts, position = [], 0
    for number, match in enumerate(_SHARED.finditer(source)):
        end, names = _declared(source, match.end())
        parts.append(source[position : match.start()])
        declaration = source[match.end() : end]
        if match[1] == "extern":
            dynamic = re.fullmatch(r"(.*?)(\w+)\s*\[\s*\]\s*", _ALIGNED.sub("", declaration), re.DOTALL)
            if dynamic is None:
                raise KernelError(f"extern __shared__{declaration}; is no array without a size")
            kind, name = dynamic.groups()
            parts.append(f"static {kind}* const {name} = ({kind}*)EMULATED_DYNAMIC_SHARED;")
        else:
            aligned = "".join(_LEADING.findall(declaration)[:1])
            parts.append(f"{aligned} static {declaration[len(aligned) :]};")
            parts += [f" EMULATED_SHARED_PLACE({name}, {number}_{name})" for name in names]
        position = end + 1
    return "".join([*parts, source[position:]])


def _without_comment(match: re.Match[str]) -> str:
    return "\n" * match[0].count("\n") or " " if match[0].startswith(("//", "/*")) else match[0]


def _outside_namespace(match: re.Match[str]) -> str:
    line = match.string.count("\n", 0, match.end()) + 2
    return f'}}\n{match[0]}\nnamespace {_NAMESPACE} {{\n#line {line} "kernels.cu"'


def _declared(source: str, start: int) -> tuple[int, list[str]]:
    """Where a declaration ends, and the names it declares."""
    names: list[str] = []
    depth = angles = 0
    last, named = "", False
    for match in re.compile(r"\w+|\S").finditer(source, start):
        token = match[0]
        if depth == 0 and angles == 0 and not named and token in ("[", ",", ";"):
            names.append(last)
            named = True
        if token == ";" and depth == 0:
            return match.start(), names
        if token == "," and depth == 0 and angles == 0:
            named = False
        depth += (token in "([{") - (token in ")]}")
        if depth == 0 and not named:
            angles += (token == "<") - (token == ">")
        if depth == 0 and angles == 0 and re.match(r"[A-Za-z_]", token):
            last = token
    raise KernelError(f"a __shared__ declaration has no end: {source[start : start + 60]!r}")


class Module:
    """Compiled kernels. Threads may launch; one launch at a time runs in the process, which has one set of signals."""

    _stacks: ClassVar[int | None] = None
    """Address of the threads' stacks, which all modules of the process share."""

    def __init__(self, library: ctypes.CDLL, names: Sequence[str]) -> None:
        self._library = library
        library.emulated_stacks.restype = ctypes.c_void_p
        Module._stacks = library.emulated_stacks(ctypes.c_void_p(Module._stacks))
        self._numbers = {name: number for number, name in enumerate(names)}

    def launch(
        self,
        name: str,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        args: Sequence[Any],
        shared: int = 0,
        *,
        seed: int | None = None,
        seconds: float = 60.0,
    ) -> None:
        """Run a kernel to its end.

        Parameters
        ----------
        name : as given to :func:`compile_kernels`.
        grid, block : sizes in up to three dimensions.
        args : NumPy arrays for pointers (their dtype must be what is pointed at, where neither is bytes), None for a
            null pointer, an integer of 8 bytes for an address (also 0-d); NumPy scalars, 0-d or one-element arrays,
            bytes or ctypes structures for what is passed by value. Python's int and float are of 8 bytes, as for CuPy.
        shared : bytes of dynamic shared memory.
        seed : of the order of blocks and threads; None is as numbered.
        seconds : of CPU time that the launch may take.

        Raises
        ------
        KernelError : deadlock, invalid address, dynamic shared memory exceeded, failed assertion, out of time.
        TypeError, ValueError : the arguments are not the kernel's, or the sizes are not a device's.
        """
        number = self._numbers[name]
        sizes = (*_sizes("grid", grid), *_sizes("block", block))
        if not 0 <= shared <= _MAX_SHARED:
            raise ValueError(f"{shared} bytes of dynamic shared memory: a block has up to {_MAX_SHARED}")
        parameters = self._parameters(number)
        if len(parameters) != len(args):
            raise TypeError(f"{name} takes {len(parameters)} arguments, {len(args)} are given")
        values = [
            _value(f"argument {i} of {name}", a, p) for i, (a, p) in enumerate(zip(args, parameters, strict=True))
        ]
        buffers = [ctypes.create_string_buffer(value, len(value)) for value in values]
        pointers = (ctypes.c_void_p * max(len(buffers), 1))(*(ctypes.addressof(buffer) for buffer in buffers))
        text = ctypes.create_string_buffer(_TEXT)
        mixed = 0 if seed is None else (seed * 2 + 1) & 0xFFFFFFFFFFFFFFFF
        with _LAUNCHING:
            failed = self._library[f"emulated_launch_{number}"](
                pointers,
                (ctypes.c_uint * 6)(*sizes),
                ctypes.c_size_t(shared),
                ctypes.c_ulonglong(mixed),
                ctypes.c_double(seconds),
                text,
                ctypes.c_size_t(_TEXT),
            )
        if failed:
            raise KernelError(f"{name}, {text.value.decode(errors='replace')}")

    def _parameters(self, number: int) -> list[_Parameter]:
        raw = np.zeros((_MAX_PARAMETERS, 5), np.intc)
        count = self._library[f"emulated_parameters_{number}"](ctypes.c_void_p(raw.ctypes.data), _MAX_PARAMETERS)
        return [_Parameter(int(b), chr(k), int(pb), chr(pk), bool(w)) for b, k, pb, pk, w in raw[:count]]


def _sizes(what: str, given: int | Sequence[int]) -> tuple[int, int, int]:
    sizes = (given,) if isinstance(given, (int, np.integer)) else tuple(given)
    x, y, z = (int(size) for size in (*sizes, 1, 1, 1)[:3])
    limits = (1024, 1024, 64) if what == "block" else (2**31 - 1, 65535, 65535)
    if len(sizes) > 3 or not all(0 < size <= most for size, most in zip((x, y, z), limits, strict=True)):
        raise ValueError(f"the {what} {given} is not of one to three sizes up to {limits}")
    if what == "block" and x * y * z > 1024:
        raise ValueError(f"a block of {x * y * z} threads: a device takes up to 1024")
    return x, y, z


def _value(what: str, argument: Any, parameter: _Parameter) -> bytes:
    """The bytes that a launch reads."""
    if parameter.kind == "p":
        return _pointer(what, argument, parameter).to_bytes(8, sys.byteorder)
    if isinstance(argument, (bytes, bytearray, ctypes.Structure)):
        given, kind = bytes(argument), "V"
    else:
        array = np.asarray(argument)
        if array.size != 1:
            raise TypeError(f"{what} is passed by value, {array.size} elements are given")
        given, kind = array.tobytes(), array.dtype.kind
    integers = kind in "iu" and parameter.kind in "iu"
    if len(given) != parameter.nbytes or not (kind == parameter.kind or integers):
        raise TypeError(
            f"{what} has {parameter.nbytes} bytes and kind {parameter.kind!r}, "
            f"{len(given)} bytes of kind {kind!r} are given"
        )
    return given


def _pointer(what: str, argument: Any, parameter: _Parameter) -> int:
    if argument is None:
        return 0
    if isinstance(argument, np.ndarray) and argument.ndim == 0 and argument.dtype.kind in "iu":
        argument = argument[()]
    if isinstance(argument, (int, np.int64, np.uint64)):
        return int(argument)
    if not isinstance(argument, np.ndarray):
        raise TypeError(f"{what} is a pointer, {type(argument).__name__} is given")
    if not (argument.flags.c_contiguous or argument.flags.f_contiguous):
        raise ValueError(f"{what} is an array with gaps")
    if parameter.writes and not argument.flags.writeable:
        raise ValueError(f"{what} may be written, the array is read-only")
    dtype = argument.dtype
    known = parameter.pointee_kind != "V" and dtype.kind != "V" and min(dtype.itemsize, parameter.pointee_bytes) > 1
    if known:
        integers = dtype.kind in "iu" and parameter.pointee_kind in "iu"
        if dtype.itemsize != parameter.pointee_bytes or not (dtype.kind == parameter.pointee_kind or integers):
            raise TypeError(
                f"{what} points at kind {parameter.pointee_kind!r} of {parameter.pointee_bytes} bytes, "
                f"an array of {dtype} is given"
            )
    return int(argument.ctypes.data)


def fenced(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A copy whose end is followed by memory that cannot be accessed (up to 15 bytes later, for its alignment)."""
    page = mmap.PAGESIZE
    room = -(-array.nbytes // 16) * 16
    pages = -(-room // page)
    memory = mmap.mmap(-1, (pages + 1) * page)
    whole = np.frombuffer(memory, np.uint8)
    library = ctypes.CDLL(None, use_errno=True)
    fence = whole.ctypes.data + pages * page
    if library.mprotect(ctypes.c_void_p(fence), ctypes.c_size_t(page), 0):
        raise OSError(ctypes.get_errno(), "mprotect")
    start = pages * page - room
    copy = whole[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
