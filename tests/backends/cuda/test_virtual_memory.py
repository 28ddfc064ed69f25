"""Calls of the CUDA driver's virtual memory, on a stand-in for its library that keeps count of what it gave."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

import numpy as np
import pytest
from emulated_cuda import EXPORT, compile_library

from ooc_mdp.backends.cuda.virtual_memory import VirtualMemory

_STAND_IN = """
typedef unsigned long long u64;
struct Allocation { int kind, handles, location, device; void* metadata; unsigned char flags[8]; };
struct Access { int location, device, flags; };
static u64 reserved, placed, handles, mapped[4], opened[8];
static int refused;   // the number of a call that fails
EXPORT int cuGetErrorString(int status, const char** text) {
    *text = status == 2 ? "out of memory" : "not supported";
    return 0;
}
EXPORT int cuMemGetAllocationGranularity(size_t* size, const Allocation* a, int option) {
    *size = a->device == 3 ? 4096 : 1024;
    return a->kind == 1 && a->location == 1 && !a->handles && !option ? 0 : 1;
}
EXPORT int cuMemAddressReserve(u64* at, size_t size, size_t alignment, u64 hint, u64 flags) {
    if (refused == 1) return 801;
    *at = 0x700000000000 + alignment;
    reserved += size;
    return hint || flags;
}
EXPORT int cuMemAddressFree(u64 at, size_t size) { reserved -= size; return at == 0x700000000000 + 4096 ? 0 : 1; }
EXPORT int cuMemCreate(u64* handle, size_t size, const Allocation* a, u64 flags) {
    if (refused == 2) return 2;
    ++handles;
    *handle = 0xF000000000000000 + a->device;
    placed += size;
    return a->kind == 1 && a->location == 1 && !flags && !a->metadata ? 0 : 1;
}
EXPORT int cuMemRelease(u64 handle) { --handles; return handle >> 60 == 15 ? 0 : 1; }
EXPORT int cuMemMap(u64 at, size_t size, size_t offset, u64 handle, u64 flags) {
    if (refused == 3) return 801;
    mapped[0] = at, mapped[1] = size, mapped[2] = handle & 15;
    return offset || flags;
}
EXPORT int cuMemUnmap(u64 at, size_t size) { placed -= size; return at != mapped[0]; }
EXPORT int cuMemSetAccess(u64 at, size_t size, const Access* access, size_t count) {
    opened[0] = at, opened[1] = size, opened[2] = count;
    for (size_t i = 0; i < count && i < 4; ++i) {
        if (access[i].location != 1 || access[i].flags != 3) return 1;
        opened[3 + i] = access[i].device;
    }
    return 0;
}
EXPORT void counts(u64* out) {
    out[0] = reserved, out[1] = placed, out[2] = handles;
    for (int i = 0; i < 3; ++i) out[3 + i] = mapped[i];
    for (int i = 0; i < 5; ++i) out[6 + i] = opened[i];
}
EXPORT void refuse(int call) { refused = call; }
""".replace("EXPORT", EXPORT)
_AT = 0x700000000000 + 4096


@pytest.fixture
def library() -> ctypes.CDLL:
    found = ctypes.CDLL(compile_library(_STAND_IN)._name)
    yield found
    found.refuse(0)


def counts(library: ctypes.CDLL) -> list[int]:
    """Bytes reserved and placed, handles; what was mapped, and what was opened last."""
    seen = np.zeros(11, np.uint64)
    library.counts(ctypes.c_void_p(seen.ctypes.data))
    return seen.tolist()


def test_a_range_is_reserved_placed_opened_and_freed(library: ctypes.CDLL) -> None:
    memory = VirtualMemory(library, [1, 3])
    assert memory.page == 4096, "the largest that a device of the group asks for"
    at = memory.reserve(3 * 4096)
    assert at == _AT
    memory.place(at + 4096, 2 * 4096, 1)
    assert counts(library)[:6] == [3 * 4096, 2 * 4096, 0, at + 4096, 2 * 4096, 3], "no handle is held"
    memory.open(at, 3 * 4096)
    assert counts(library)[6:] == [at, 3 * 4096, 2, 1, 3]
    memory.remove(at + 4096, 2 * 4096)
    memory.release(at, 3 * 4096)
    assert counts(library)[:3] == [0, 0, 0]


def test_every_call_is_made_in_the_context_that_is_asked_for(library: ctypes.CDLL) -> None:
    entered = []

    @contextlib.contextmanager
    def current() -> Iterator[None]:
        entered.append(True)
        yield

    memory = VirtualMemory(library, [1, 3], current)
    memory.release(memory.reserve(4096), 4096)
    assert len(entered) == 4, "two sizes of pages, addresses, and their end"


def test_memory_that_a_device_lacks_is_no_memory_and_other_refusals_are_said(library: ctypes.CDLL) -> None:
    memory = VirtualMemory(library, [1, 3])
    library.refuse(1)
    with pytest.raises(RuntimeError, match=r"cuMemAddressReserve failed: not supported \(801\)"):
        memory.reserve(4096)
    library.refuse(2)
    with pytest.raises(MemoryError, match=r"cuMemCreate failed: out of memory \(2\)"):
        memory.place(_AT, 4096, 0)
    before = counts(library)
    library.refuse(3)
    with pytest.raises(RuntimeError, match=r"cuMemMap failed: not supported \(801\)"):
        memory.place(_AT, 4096, 0)
    assert counts(library)[2] == before[2], "the handle is released also where nothing was mapped"
    library.refuse(0)
    memory.remove(counts(library)[3], 4096)
