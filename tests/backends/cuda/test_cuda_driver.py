"""Calls of the CUDA driver, on a stand-in for its library that writes down what it is asked for."""

from __future__ import annotations

import ctypes
import threading

import numpy as np
import pytest
from emulated_cuda import EXPORT, compile_library

from ooc_mdp.backends.cuda.driver import Arguments, CudaDriver, address_of

_STAND_IN = f"""
static thread_local void* current;
static int refused;
static unsigned long long launched[16];
{EXPORT} int cuCtxGetCurrent(void** context) {{ *context = current; return 0; }}
{EXPORT} int cuCtxSetCurrent(void* context) {{ current = context; return refused == 2 ? 201 : 0; }}
{EXPORT} int cuGetErrorString(int status, const char** text) {{
    *text = status == 700 ? "an illegal address" : 0;
    return 0;
}}
{EXPORT} int cuLaunchKernel(void* kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                            unsigned shared, void* stream, void** parameters, void** extra) {{
    if (refused) return 700;
    unsigned long long seen[] = {{(unsigned long long)kernel, gx, gy, gz, bx, by, bz, shared,
                                 (unsigned long long)stream, (unsigned long long)extra, (unsigned long long)current,
                                 *(unsigned long long*)parameters[0], (unsigned long long)*(int*)parameters[1],
                                 *(unsigned long long*)parameters[2], ((unsigned long long*)parameters[3])[2]}};
    for (int i = 0; i < 15; ++i) launched[i] = seen[i];
    return 0;
}}
{EXPORT} void launches(unsigned long long* out) {{ for (int i = 0; i < 16; ++i) out[i] = launched[i]; }}
{EXPORT} void refuse(int how) {{ refused = how; }}
{EXPORT} int cuMemcpyAsync(char* to, const char* source, unsigned long long n, void* stream) {{
    if (refused || !stream) return 700;
    for (unsigned long long i = 0; i < n; ++i) to[i] = source[i];
    return 0;
}}
{EXPORT} int cuMemsetD8Async(char* at, unsigned char value, unsigned long long n, void* stream) {{
    if (refused || !stream) return 999;
    for (unsigned long long i = 0; i < n; ++i) at[i] = value;
    return 0;
}}
"""
_CONTEXT, _KERNEL, _STREAM = 0x7F00DEADBEEF0010, 0x7F00ABCDEF012340, 0x7F00000000000042


@pytest.fixture
def library() -> ctypes.PyDLL:
    path = compile_library(_STAND_IN)._name
    found = ctypes.PyDLL(path)
    found.cuCtxSetCurrent(ctypes.c_void_p(_CONTEXT))
    yield found
    found.refuse(0)
    found.cuCtxSetCurrent(None)


def current(library: ctypes.PyDLL) -> int | None:
    context = ctypes.c_void_p()
    library.cuCtxGetCurrent(ctypes.byref(context))
    return context.value


def launched(library: ctypes.PyDLL) -> list[int]:
    seen = np.zeros(16, np.uint64)
    library.launches(ctypes.c_void_p(seen.ctypes.data))
    return [int(x) for x in seen[:15]]


def test_a_launch_brings_every_argument_at_its_width(library: ctypes.PyDLL) -> None:
    engine = np.zeros((), np.dtype([("a", "u8"), ("b", "f8"), ("c", "u8")]))
    engine["c"] = 2**63 + 5
    arguments = Arguments((np.uint64(2**64 - 3), np.int32(-7), np.float64(0.1), engine))
    CudaDriver(library).launch(_KERNEL, 70000, 512, 66000, _STREAM, arguments)
    sizes = [70000, 1, 1, 512, 1, 1, 66000]
    given = [2**64 - 3, 2**64 - 7, int(np.float64(0.1).view(np.uint64)), 2**63 + 5]
    assert launched(library) == [_KERNEL, *sizes, _STREAM, 0, _CONTEXT, *given]


def test_arrays_among_the_arguments_are_read_at_the_launch(library: ctypes.PyDLL) -> None:
    engine = np.zeros((), np.dtype([("a", "u8"), ("b", "f8"), ("c", "u8")]))
    arguments = Arguments((np.uint64(0), np.int32(0), np.float64(0), engine))
    engine["c"] = 9
    CudaDriver(library).launch(_KERNEL, 1, 32, 0, _STREAM, arguments)
    assert launched(library)[-1] == 9


def test_arguments_keep_what_they_point_to(library: ctypes.PyDLL) -> None:
    arguments = [Arguments((np.uint64(i), np.int32(i), np.float64(i), np.full(3, i, np.uint64))) for i in range(200)]
    driver = CudaDriver(library)
    for i, packed in enumerate(arguments):
        driver.launch(_KERNEL, 1, 32, 0, _STREAM, packed)
        assert launched(library)[11:] == [i, i, int(np.float64(i).view(np.uint64)), i]


def test_copies_and_fills_reach_exactly_their_bytes(library: ctypes.PyDLL) -> None:
    driver = CudaDriver(library)
    source, to = np.arange(1, 101, dtype=np.uint8), np.zeros(100, np.uint8)
    driver.copy(address_of(to[10:]), address_of(source), 80, _STREAM)
    assert to.tolist() == [0] * 10 + list(range(1, 81)) + [0] * 10
    driver.clear(address_of(to[20:]), 5, _STREAM)
    assert np.flatnonzero(to == 0).tolist() == [*range(10), *range(20, 25), *range(90, 100)]


def test_a_copy_of_nothing_asks_for_nothing(library: ctypes.PyDLL) -> None:
    library.refuse(1)
    CudaDriver(library).copy(0, 0, 0, _STREAM)


def test_an_address_is_that_of_the_first_byte_whatever_the_array() -> None:
    whole = np.arange(1000.0)
    locked = whole.copy()
    locked.flags.writeable = False
    structure = np.zeros((), np.dtype([("a", "u1"), ("b", "f8")], align=True))
    for array in (whole, whole[17:30], locked[3:], structure, np.empty(0), whole[5:5]):
        assert address_of(array) == array.ctypes.data
    with pytest.raises((ValueError, TypeError, BufferError)):
        address_of(whole[::2])


def test_what_the_driver_refuses_is_said_in_its_words(library: ctypes.PyDLL) -> None:
    driver = CudaDriver(library)
    library.refuse(1)
    arguments = Arguments((np.uint64(0), np.int32(0), np.float64(0), np.zeros(3)))
    with pytest.raises(RuntimeError, match=r"cuLaunchKernel failed: an illegal address \(700\)"):
        driver.launch(_KERNEL, 1, 32, 0, _STREAM, arguments)
    with pytest.raises(RuntimeError, match=r"cuMemcpyAsync failed: an illegal address \(700\)"):
        driver.copy(1, 2, 3, _STREAM)
    with pytest.raises(RuntimeError, match=r"cuMemsetD8Async failed: unknown error \(999\)"):
        driver.clear(1, 2, _STREAM)


def test_every_thread_gets_the_context_and_has_its_own_back(library: ctypes.PyDLL) -> None:
    driver = CudaDriver(library)
    to = np.ones(1, np.uint8)
    found: list[int | None] = []

    def work() -> None:
        library.cuCtxSetCurrent(ctypes.c_void_p(5))
        driver.clear(address_of(to), 1, _STREAM)
        found.append(current(library))
        driver.leave()
        found.append(current(library))
        driver.clear(address_of(to), 1, _STREAM)
        found.append(current(library))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [_CONTEXT, 5, _CONTEXT]


def test_a_thread_that_had_no_context_keeps_the_one_that_it_got(library: ctypes.PyDLL) -> None:
    driver = CudaDriver(library)
    library.cuCtxSetCurrent(None)
    driver.clear(address_of(np.ones(1, np.uint8)), 1, _STREAM)
    driver.leave()
    assert current(library) == _CONTEXT


def test_a_thread_that_never_came_has_nothing_to_leave(library: ctypes.PyDLL) -> None:
    driver = CudaDriver(library)
    library.cuCtxSetCurrent(ctypes.c_void_p(5))
    driver.leave()
    assert current(library) == 5


def test_a_context_that_cannot_be_had_is_said_at_each_call(library: ctypes.PyDLL) -> None:
    driver = CudaDriver(library)
    library.refuse(2)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="cuCtxSetCurrent failed"):
            driver.clear(1, 2, _STREAM)


def test_drivers_of_several_contexts_take_turns_on_a_thread(library: ctypes.PyDLL) -> None:
    first = CudaDriver(library)
    library.cuCtxSetCurrent(ctypes.c_void_p(7))
    second = CudaDriver(library)
    library.cuCtxSetCurrent(ctypes.c_void_p(5))
    to = address_of(np.ones(1, np.uint8))
    found = []
    for driver in (first, second, second, first):
        driver.clear(to, 1, _STREAM)
        found.append(current(library))
    assert found == [_CONTEXT, 7, 7, _CONTEXT]
    second.leave()
    assert current(library) == 5
    first.leave()
    assert current(library) == 5
    second.clear(to, 1, _STREAM)
    assert current(library) == 7
