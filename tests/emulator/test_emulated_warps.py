"""Warps and atomics of emulated kernels do what the CUDA programming guide says."""

from __future__ import annotations

import shutil
import sys
from typing import Any

import numpy as np
import pytest
from emulated_cuda import Module, compile_kernels
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not (shutil.which("g++") or shutil.which("clang++")), reason="needs a C++ compiler"
)
SEEDS = [None, 0, 1, 2]
FIBERS: list[dict[str, str | int]] = [{}, {"EMULATED_UCONTEXT": 1}]
"""How fibers change places: by a few lines of assembly, and as the C library does."""


WARPS = """
#define FULL 0xffffffffu
extern "C" __global__ void shuffles(const double* x, int by, int width, double* out) {
    int i = threadIdx.x, n = blockDim.x;
    out[i] = __shfl_sync(FULL, x[i], by, width);
    out[n + i] = __shfl_up_sync(FULL, x[i], by, width);
    out[2 * n + i] = __shfl_down_sync(FULL, x[i], by, width);
    out[3 * n + i] = __shfl_xor_sync(FULL, x[i], by, width);
}
extern "C" __global__ void votes(const int* x, unsigned mask, int* out) {   // lanes outside the mask vote on their own
    int i = threadIdx.x, n = blockDim.x, all, some;
    if (mask >> i & 1) {
        out[i] = __ballot_sync(mask, x[i] > 0);
        out[n + i] = __any_sync(mask, x[i] > 0);
        out[2 * n + i] = __all_sync(mask, x[i] > 0);
        out[3 * n + i] = __match_any_sync(mask, x[i]);
        out[4 * n + i] = __match_all_sync(mask, x[i], &all);
        out[5 * n + i] = __reduce_add_sync(mask, x[i]);
        out[6 * n + i] = __reduce_min_sync(mask, x[i]);
        out[7 * n + i] = __reduce_max_sync(mask, (unsigned)x[i]);
        out[8 * n + i] = __reduce_xor_sync(mask, (unsigned)x[i]);
    } else {
        out[i] = __ballot_sync(~mask, x[i] > 0);
        out[n + i] = __match_all_sync(~mask, 7, &some) == ~mask && some;
        __syncwarp(~mask);
    }
}
extern "C" __global__ void taken(const int* x, unsigned* out) {   // the lanes that take a branch add up there
    int i = threadIdx.x;
    if (x[i] % 3 == 0) {
        unsigned here = __activemask();
        out[i] = __ballot_sync(here, 1);
    } else {
        out[i] = __activemask();
    }
}
extern "C" __global__ void ended(int* out) {   // lanes that have ended are not waited for
    if (threadIdx.x % 3 == 0) return;
    out[threadIdx.x] = __ballot_sync(FULL, 1);
    out[blockDim.x + threadIdx.x] = __shfl_sync(FULL, (int)threadIdx.x, threadIdx.x & ~1);
}
extern "C" __global__ void barriers(const int* x, int* out) {
    int i = threadIdx.x, n = blockDim.x;
    if (i % 5 == 4) return;
    out[i] = __syncthreads_or(x[i]);
    out[n + i] = __syncthreads_and(x[i]);
    if (i % 5 == 3) return;
    out[2 * n + i] = __syncthreads_count(x[i]);
}
"""
WARP_KERNELS = ["shuffles", "votes", "taken", "ended", "barriers"]


def warps(defines: dict[str, str | int] | None = None) -> Module:
    return compile_kernels(WARPS, WARP_KERNELS, defines)


@pytest.mark.parametrize("width", [1, 2, 8, 32])
@pytest.mark.parametrize("by", [0, 1, 5, 16, 31])
def test_shuffles_read_where_the_guide_says(by: int, width: int) -> None:
    x, out = np.random.default_rng(3).normal(size=64), np.empty((4, 64))
    warps().launch("shuffles", 1, 64, [x, np.int32(by), np.int32(width), out], seed=by)
    lane = np.arange(64)
    within, start = lane % width, lane - lane % width
    np.testing.assert_array_equal(out[0], x[start + by % width])
    np.testing.assert_array_equal(out[1], x[np.where(within >= by, lane - by, lane)])
    np.testing.assert_array_equal(out[2], x[np.where(within + by < width, lane + by, lane)])
    # By xor lanes also read from earlier segments, never from later ones.
    partner = lane // 32 * 32 + (lane % 32 ^ by)
    np.testing.assert_array_equal(out[3], x[np.where(partner < start + width, partner, lane)])


@settings(max_examples=100)
@given(
    x=st.lists(st.integers(-2, 2), min_size=32, max_size=32),
    mask=st.integers(1, 2**32 - 2),
    seed=st.none() | st.integers(0, 99),
)
def test_votes_and_reductions_are_over_the_lanes_of_the_mask(x: list[int], mask: int, seed: int | None) -> None:
    values, out = np.array(x, np.int32), np.zeros((9, 32), np.int32)
    warps().launch("votes", 1, 32, [values, np.uint32(mask), out], seed=seed)
    inside = [i for i in range(32) if mask >> i & 1]
    outside = [i for i in range(32) if i not in inside]

    def bits(lanes: list[int]) -> int:
        return sum(1 << i for i in lanes)

    among, unsigned = values[inside], values[inside].view(np.uint32)
    whole = bits(inside) if len(set(among.tolist())) == 1 else 0
    for i in inside:
        expected = [
            bits([j for j in inside if x[j] > 0]),
            (among > 0).any(),
            (among > 0).all(),
            bits([j for j in inside if x[j] == x[i]]),
            whole,
            among.sum() & 0xFFFFFFFF,
            int(among.min()) & 0xFFFFFFFF,
            unsigned.max(),
            np.bitwise_xor.reduce(unsigned),
        ]
        assert out[:, i].view(np.uint32).tolist() == [int(e) for e in expected]
    for i in outside:
        assert int(out[0, i]) & 0xFFFFFFFF == bits([j for j in outside if x[j] > 0])
        assert out[1, i] == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_the_active_lanes_are_those_of_the_branch(seed: int | None) -> None:
    x = np.random.default_rng(4).integers(0, 9, 32).astype(np.int32)
    out = np.empty(32, np.uint32)
    warps().launch("taken", 1, 32, [x, out], seed=seed)
    lanes = 1 << np.arange(32, dtype=np.int64)
    first = x % 3 == 0
    np.testing.assert_array_equal(out, np.where(first, lanes[first].sum(), lanes[~first].sum()))


@pytest.mark.parametrize("defines", FIBERS, ids=["assembly", "ucontext"])
@pytest.mark.parametrize("threads", [32, 64, 75])
def test_ended_and_missing_lanes_are_not_waited_for_and_give_poison(threads: int, defines: dict[str, Any]) -> None:
    out = np.zeros((2, threads), np.int32)
    warps(defines).launch("ended", 1, threads, [out], seed=threads)
    for i in range(threads):
        warp = range(i // 32 * 32, min(i // 32 * 32 + 32, threads))
        source = i // 32 * 32 + (i % 32 & ~1)
        expected = sum(1 << (j % 32) for j in warp if j % 3)
        poison = int(np.int32(np.uint32(0xFBFBFBFB).view(np.int32)))
        both = (0, 0) if i % 3 == 0 else (expected, source if source % 3 else poison)
        assert (int(out[0, i]) & 0xFFFFFFFF, int(out[1, i])) == both


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("threads", [5, 40, 1024])
def test_barriers_gather_the_threads_that_have_not_ended(threads: int, seed: int | None) -> None:
    x = np.random.default_rng(5).integers(0, 2, threads).astype(np.int32)
    out = np.full((3, threads), -1, np.int32)
    warps().launch("barriers", 1, threads, [x, out], seed=seed)
    number = np.arange(threads) % 5
    some, few = number < 4, number < 3
    np.testing.assert_array_equal(out[0], np.where(some, x[some].any(), -1))
    np.testing.assert_array_equal(out[1], np.where(some, x[some].all(), -1))
    np.testing.assert_array_equal(out[2], np.where(few, x[few].sum(), -1))


ATOMICS = """
#define ALL(T) \\
    extern "C" __global__ void of_##T(const T* x, T* out, T* seen) { \\
        T mine = x[blockIdx.x * blockDim.x + threadIdx.x]; \\
        seen[blockIdx.x * blockDim.x + threadIdx.x] = atomicAdd(out, mine); \\
        EXTRA(T) \\
    }
#define EXTRA(T) ;
typedef unsigned long long u64;
ALL(float)
ALL(double)
#undef EXTRA
#define EXTRA(T) \\
    atomicMax(out + 1, mine); atomicMin(out + 2, mine); atomicAnd(out + 3, mine); atomicOr(out + 4, mine); \\
    atomicXor(out + 5, mine); atomicExch(out + 6, mine); \\
    for (T old = out[7];;) { T was = atomicCAS(out + 7, old, old + mine); if (was == old) break; old = was; }
ALL(int)
ALL(unsigned)
ALL(u64)
__device__ int turns = 0;
extern "C" __global__ void locked(int* lock, int* out) {
    for (bool done = false; !done;) {
        if (atomicCAS(lock, 0, 1) == 0) {
            int now = *(volatile int*)out;
            __threadfence();
            *(volatile int*)out = now + 1;
            ++turns;
            __threadfence();
            atomicExch(lock, 0);
            done = true;
        } else {
            __nanosleep(20);
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) out[1] = turns;
}
"""
ATOMIC_TYPES = {"float": "f4", "double": "f8", "int": "i4", "unsigned": "u4", "u64": "u8"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("c", ATOMIC_TYPES)
def test_atomics_miss_no_thread(c: str, seed: int | None) -> None:
    x = np.random.default_rng(6).integers(0, 99, 3 * 96).astype(ATOMIC_TYPES[c])
    out, seen = np.zeros(8, x.dtype), np.empty_like(x)
    if x.dtype.kind != "f":
        out[2], out[3] = 50, 127
    names = [f"of_{name}" for name in ATOMIC_TYPES]
    compile_kernels(ATOMICS, names).launch(f"of_{c}", 3, 96, [x, out, seen], seed=seed)
    assert out[0] == x.sum()
    # What each thread saw are the partial sums in some order of the threads.
    order = np.lexsort((x, seen))
    np.testing.assert_array_equal(seen[order], np.cumsum(x[order]) - x[order])
    if x.dtype.kind != "f":
        reduced = [np.maximum, np.minimum, np.bitwise_and, np.bitwise_or, np.bitwise_xor]
        assert out[1:6].tolist() == [
            int(f.reduce(x, initial=i)) for f, i in zip(reduced, (0, 50, 127, 0, 0), strict=True)
        ]
        assert out[6] in x
        assert out[7] == x.sum()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_lock_lets_one_thread_in_at_a_time(seed: int | None) -> None:
    out = np.zeros(2, np.int32)
    compile_kernels(ATOMICS, ["locked"]).launch("locked", 1, 100, [np.zeros(1, np.int32), out], seed=seed)
    if seed is None:
        assert out.tolist() == [100, 100]
    else:  # the module's own counter continues from launch to launch
        assert out[0] == 100
