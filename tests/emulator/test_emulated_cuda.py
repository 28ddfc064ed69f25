"""Emulated kernels do what the CUDA programming guide says, and end with an error where a device would hang."""

from __future__ import annotations

import ctypes
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulated_cuda import KernelError, Module, compile_kernels, fenced, rewritten
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_kernel import FIRST, N_OWN, N_STATES, ROW_SUM, TABLES, Plain, random_table

from ooc_mdp.backends.base import SweepLimits
from ooc_mdp.backends.cuda.sources import SIMPLE, read_sources
from ooc_mdp.model.mdp import discounts
from ooc_mdp.model.partition import PartitionTable

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not (shutil.which("g++") or shutil.which("clang++")), reason="needs a C++ compiler"
)
SEEDS = [None, 0, 1, 2]
FIBERS: list[dict[str, str | int]] = [{}, {"EMULATED_UCONTEXT": 1}]
"""How fibers change places: by a few lines of assembly, and as the C library does."""

SUMS = """
// Not a declaration: __shared__ int x;
template <class T> __device__ __forceinline__ T warp_total(T mine) {
    #pragma unroll
    for (int d = 16; d; d >>= 1) mine += __shfl_down_sync(0xffffffffu, mine, d);
    return mine;
}
template <class T>
__global__ void __launch_bounds__(1024, 1) total(const T* __restrict__ x, T* out, int n) {
    __shared__ T parts[32];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    T mine = warp_total(i < n ? __ldg(x + i) : T(0));
    if ((threadIdx.x & 31) == 0) parts[threadIdx.x >> 5] = mine;
    __syncthreads();
    if (threadIdx.x < 32) {
        mine = warp_total(threadIdx.x < blockDim.x / warpSize ? parts[threadIdx.x] : T(0));
        if (threadIdx.x == 0) atomicAdd(out, mine);
    }
}
extern "C" __global__ void scan(const unsigned* x, unsigned* out) {   // inclusive, of one block
    extern __shared__ __align__(16) unsigned both[];
    unsigned *from = both, *to = both + blockDim.x;
    from[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    for (unsigned d = 1; d < blockDim.x; d *= 2) {
        to[threadIdx.x] = from[threadIdx.x] + (threadIdx.x >= d ? from[threadIdx.x - d] : 0u);
        __syncthreads();
        unsigned* other = from; from = to; to = other;
    }
    out[threadIdx.x] = from[threadIdx.x];
}
extern "C" __global__ void last_block(const int* x, int* parts, unsigned* done, int* out) {
    __shared__ int sum;
    __shared__ bool last;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    atomicAdd(&sum, x[blockIdx.x * blockDim.x + threadIdx.x]);
    __syncthreads();
    if (threadIdx.x == 0) {
        parts[blockIdx.x] = sum;
        __threadfence();
        last = atomicInc(done, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0)
        for (unsigned i = 0; i < gridDim.x; ++i) *out += __ldcg(parts + i);
}
"""
KINDS = {"int": "i4", "unsigned long long": "u8", "float": "f4", "double": "f8"}


@pytest.mark.parametrize("defines", FIBERS, ids=["assembly", "ucontext"])
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("c", KINDS)
def test_a_reduction_by_warps_and_blocks_equals_the_sum(c: str, seed: int | None, defines: dict[str, Any]) -> None:
    module = compile_kernels(SUMS, [f"total<{kind}>" for kind in KINDS], defines)
    x, out = np.random.default_rng(0).integers(0, 9, 5000).astype(KINDS[c]), np.zeros(1, KINDS[c])
    module.launch(f"total<{c}>", 5, 1024, [fenced(x), out, np.int32(x.size)], seed=seed)
    assert out[0] == x.sum()


@pytest.mark.parametrize("defines", FIBERS, ids=["assembly", "ucontext"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_scan_in_dynamic_shared_memory_equals_the_running_sum(seed: int | None, defines: dict[str, Any]) -> None:
    x = np.random.default_rng(1).integers(0, 2**32, 700, np.uint32)
    out = np.empty_like(x)
    compile_kernels(SUMS, ["scan"], defines).launch("scan", 1, x.size, [x, out], shared=2 * x.nbytes, seed=seed)
    np.testing.assert_array_equal(out, np.cumsum(x, dtype=np.uint32))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_last_block_finds_what_the_others_left(seed: int | None) -> None:
    x = np.random.default_rng(2).integers(-9, 9, 64 * 7).astype(np.int32)
    out = np.zeros(1, np.int32)
    module = compile_kernels(SUMS, ["last_block"])
    module.launch("last_block", 7, 64, [x, np.empty(7, np.int32), np.zeros(1, np.uint32), out], seed=seed)
    assert out[0] == x.sum()


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
    else:  # the module's own counter goes on from launch to launch
        assert out[0] == 100


LANGUAGE = """
#include <math.h>
struct __align__(16) Grid { int n; double step[2]; const float* table; };
namespace inner {
template <int N, class T> __global__ void apply(const __grid_constant__ Grid grid, T* out, double scale) {
    out[0] = (T)(grid.n * scale + grid.step[1] + grid.table[N]);
}
}
__constant__ double WEIGHTS[3] = {0.5, 0.25, 0.125};
__device__ __noinline__ int3 where() { return make_int3(threadIdx.x, threadIdx.y, threadIdx.z); }
extern "C" __global__ void places(int4* out) {
    int3 at = where();
    int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    int thread = (at.z * blockDim.y + at.y) * blockDim.x + at.x;
    out[block * (blockDim.x * blockDim.y * blockDim.z) + thread] = make_int4(at.x, at.y, at.z, block);
}
extern "C" __global__ void mixed(double* out, unsigned char small, bool on, float f) {
    out[0] = min(3, 2.5) + max(-1, 2u) + (small + on) * (double)f;
    out[1] = WEIGHTS[2] + fmax(out[0], sqrt(-1.0)) + fmin(1.0, pow(2.0, -3.0));
    double2 pair = make_double2(1.5, 2.5);
    float4 four = *(const float4*)__builtin_assume_aligned(out + 4, 16);
    __stcs(out + 2, pair.x * pair.y + four.w);
    out[3] = SCALE * exp(log(2.0));
}
#include <float.h>
struct index { int x; };
extern "C" __global__ void __launch_bounds__(32) select(double* out) { index one = {2}; out[0] = one.x + DBL_MAX; }
template <class T> struct Pair { T first, second; };
__shared__ int of_file[2];
template <class T, int N> __global__ void sharing(T* out) {
    __shared__ Pair<T> pairs[N < 4 ? 4 : N], single;
    __shared__ alignas(32) T matrix[2][N], *pointer;
    __shared__ union { T words[2]; unsigned char bytes[4]; } overlay;
    extern __shared__ T dynamic[];
    int i = threadIdx.x;
    bool clean = of_file[1] != 17 && single.second != T(17) && matrix[1][i] != T(17) && dynamic[i] != T(17);
    __syncthreads();
    if (i == 0) { single.second = T(17); of_file[1] = 17; pointer = &matrix[1][0]; overlay.words[1] = T(3); }
    pairs[i].first = matrix[0][i] = matrix[1][i] = dynamic[i] = T(17);
    __syncthreads();
    out[blockIdx.x * blockDim.x + i] = clean ? pointer[N - 1 - i] + overlay.words[1] + T((size_t)matrix % 32) : T(0);
}
extern "C" __global__ void speaks(int x) { printf("x is %d\\n", x); }
"""


def language(*names: str) -> Module:
    return compile_kernels(LANGUAGE, names, {"SCALE": 3})


def test_structures_go_by_value_into_kernels_of_namespaces_and_templates() -> None:
    table, out = np.array([1, 2, 4, 8], np.float32), np.empty(1, np.int64)
    layout = np.dtype({"names": ["n", "step", "table"], "formats": ["i4", ("f8", 2), "u8"], "offsets": [0, 8, 24]})
    grid = np.zeros((), layout)
    grid["n"], grid["step"], grid["table"] = 7, (0.25, 100), table.ctypes.data

    class Grid(ctypes.Structure):
        _fields_ = (("n", ctypes.c_int), ("step", ctypes.c_double * 2), ("table", ctypes.c_void_p))

    module = language("inner::apply<2, long long>")
    for given_grid in (grid, grid[()], grid.tobytes(), Grid(7, (0.25, 100), table.ctypes.data)):
        out[0] = 0
        module.launch("inner::apply<2, long long>", 1, 1, [given_grid, out, 10.0])
        assert out[0] == 70 + 100 + 4


def test_every_thread_has_its_place_in_three_dimensions() -> None:
    out = np.full((2 * 3 * 2, 3, 2, 5, 4), -1, np.int32)
    language("places").launch("places", (2, 3, 2), (5, 2, 3), [out], seed=1)
    z, y, x = np.indices((3, 2, 5))
    for block in range(12):
        np.testing.assert_array_equal(out[block], np.stack([x, y, z, np.full_like(x, block)], -1))


def test_types_mix_as_in_cuda() -> None:
    out = np.zeros(6)
    language("mixed").launch("mixed", 1, 1, [out, np.uint8(200), np.bool_(True), np.float32(0.5)])
    first = 2.5 + 0xFFFFFFFF + 201 * 0.5
    np.testing.assert_allclose(out[:4], [first, 0.125 + first + 0.125, 3.75, 6.0], rtol=1e-15)


def test_kernels_may_have_the_names_of_the_c_library() -> None:
    out = np.zeros(1)
    language("select").launch("select", 1, 1, [out])
    assert out[0] == 2 + sys.float_info.max


@pytest.mark.parametrize("seed", SEEDS)
def test_shared_variables_of_all_kinds_are_poisoned_before_each_block(seed: int | None) -> None:
    name = "sharing<double, 8>"
    for _ in range(2):
        out = np.zeros(5 * 8)
        language(name).launch(name, 5, 8, [out], shared=64, seed=seed)
        np.testing.assert_array_equal(out, 20.0)


def test_what_a_kernel_prints_is_seen(capfd: pytest.CaptureFixture[str]) -> None:
    language("speaks").launch("speaks", 1, 2, [np.int32(5)])
    assert capfd.readouterr().out == "x is 5\nx is 5\n"


def test_lines_stay_where_they_are_for_the_compiler_s_messages() -> None:
    rest = """const char* s = "// no comment"; char c = '"';\n#include <math.h>\nnonsense\n"""
    source = f"int a; /* two\nlines */ // __shared__\n{rest}"
    assert rewritten(source) == f"int a; \n  \n{rest}"
    with pytest.raises(KernelError, match=r"kernels\.cu:5:"):
        compile_kernels(source, [])


FAULTS = """
extern "C" __global__ void apart() { if (threadIdx.x == 3) __syncwarp(); else __syncthreads(); }
extern "C" __global__ void branches(int* out) {
    if (threadIdx.x & 1) out[threadIdx.x] = __shfl_sync(0xffffffffu, 1, 0);
    else out[threadIdx.x] = __any_sync(0xffffffffu, 1);
}
extern "C" __global__ void kinds() { if (threadIdx.x & 1) __syncthreads(); else __syncthreads_or(1); }
extern "C" __global__ void stranger() { __shfl_sync(1u, 1, 0); }
extern "C" __global__ void odd_width() { __shfl_sync(~0u, 1, 0, 3); }
extern "C" __global__ void above() { extern __shared__ int words[]; words[blockDim.x] = 1; }
extern "C" __global__ void below() { extern __shared__ int words[]; words[-2] = 1; }
extern "C" __global__ void beyond(const int* x, int* out) { out[0] = x[blockDim.x + threadIdx.x]; }
extern "C" __global__ void endless() { for (volatile int i = 0;; ++i) {} }
extern "C" __global__ void later(volatile int* flag) { if (blockIdx.x) *flag = 1; else while (!*flag) __nanosleep(9); }
extern "C" __global__ void wrong(int x) { assert(threadIdx.x < 5 || x == 1); }
extern "C" __global__ void traps() { if (threadIdx.x == 2) __trap(); }
extern "C" __global__ void misaligned(float4* out, int by) { *(float4*)((char*)out + by) = make_float4(1, 2, 3, 4); }
__device__ __noinline__ int depth(int n) { volatile int a[256]; a[n & 255] = n; return n ? depth(n - 1) + a[0] : 0; }
extern "C" __global__ void deep(int* n) { *n = depth(*n); }
extern "C" __global__ void outside(int* out) { __shared__ int x[64]; x[threadIdx.x] = 1; *out = x[threadIdx.x + 1]; }
extern "C" __global__ void shifted(int* out, int by) { *out = 1 << (threadIdx.x + by); }
extern "C" __global__ void divided(int* out, int by) { *out = 7 / ((int)threadIdx.x - by); }
extern "C" __global__ void fine(int* out) { out[threadIdx.x] = __syncthreads_count(1); }
"""
ENDS: dict[str, tuple[list[Any], str]] = {
    "apart": (
        [],
        r"deadlock: of 64 threads 0 have ended, 63 wait in __syncthreads .*, 1 wait in __syncwarp with .* 3\)",
    ),
    "branches": ([np.empty(64, np.int32)], r"deadlock.* wait in __any_sync with the mask ffffffff.* a shuffle"),
    "kinds": ([], r"different barriers: __syncthreads_or and __syncthreads"),
    "stranger": ([], r"a shuffle with the mask 00000001, in which the calling lane \d+ is not"),
    "odd_width": ([], r"width 3"),
    "above": ([], r"outside its 256 bytes of dynamic shared memory, 0 bytes after their end"),
    "below": ([], r"outside its 256 bytes of dynamic shared memory, 5 bytes before their start"),
    "endless": ([], r"out of time"),
    "later": ([np.zeros(1, np.int32)], r"waits for a block that has not started"),
    "wrong": ([np.int32(0)], r"thread \(\d+, 0, 0\): assert\(threadIdx.x < 5 \|\| x == 1\) failed in line 15"),
    "traps": ([], r"thread \(2, 0, 0\): the kernel trapped"),
    "misaligned": ([np.empty(99, np.float32), np.int32(4)], r"kernels\.cu:17: the address 0x.* is misaligned"),
    "outside": ([np.empty(1, np.int32)], r"thread \(63, 0, 0\): kernels\.cu:20: the index 64 is outside the array"),
    "shifted": ([np.empty(1, np.int32), np.int32(-31)], r"thread \(\d+, 0, 0\): kernels.cu:21: a shift by"),
    "divided": ([np.empty(1, np.int32), np.int32(9)], r"thread \(9, 0, 0\): kernels.cu:22: 7 is divided by 0"),
    "deep": ([np.full(1, 10**6, np.int32)], r"local variables need more than the 64 KiB"),
}


@pytest.mark.parametrize("defines", FIBERS, ids=["assembly", "ucontext"])
@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("name", ENDS)
def test_what_a_device_cannot_end_well_ends_with_an_error(name: str, seed: int | None, defines: dict[str, Any]) -> None:
    module = compile_kernels(FAULTS, [*ENDS, "fine", "beyond"], defines)
    arguments, message = ENDS[name]
    arguments = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
    seconds = 0.2 if name in ("endless", "later") else 60.0  # only these run until their time is up
    if name == "later":  # in numbered order, the block that waits is the first
        seed = None
    with pytest.raises(KernelError, match=message):
        module.launch(name, 2, 64, arguments, shared=256, seed=seed, seconds=seconds)
    out = np.empty(64, np.int32)
    module.launch("fine", 1, 64, [out], seed=seed)
    np.testing.assert_array_equal(out, 64)


def test_a_fenced_array_has_an_end() -> None:
    module = compile_kernels(FAULTS, [*ENDS, "fine", "beyond"])
    for size in (64, 99, 2000):
        x = np.arange(size, dtype=np.int32)
        copy, out = fenced(x), np.empty(1, np.int32)
        np.testing.assert_array_equal(copy, x)
        module.launch("beyond", 1, size // 2, [copy, out])
        with pytest.raises(KernelError, match=r"thread \(0, 0, 0\): invalid address"):
            module.launch("beyond", 1, min(size + 4, 1024), [copy[-1:], out])


RACES = """
extern "C" __global__ void turned(int* out) {   // needs a barrier between the two lines
    __shared__ int x[256];
    x[threadIdx.x] = threadIdx.x;
    if (GUARDED) __syncthreads();
    out[threadIdx.x] = x[blockDim.x - 1 - threadIdx.x];
}
extern "C" __global__ void tickets(unsigned* next, unsigned* blocks, unsigned* threads) {
    __shared__ unsigned turn;
    if (threadIdx.x == 0) blocks[blockIdx.x] = atomicAdd(next, 1u);
    if (threadIdx.x == 0) turn = 0;
    __syncthreads();
    threads[blockIdx.x * blockDim.x + threadIdx.x] = atomicAdd(&turn, 1u);
}
"""


@pytest.mark.parametrize("seed", SEEDS)
def test_a_missing_barrier_is_seen(seed: int | None) -> None:
    out = np.empty(256, np.int32)
    compile_kernels(RACES, ["turned"], {"GUARDED": 1}).launch("turned", 1, 256, [out], seed=seed)
    np.testing.assert_array_equal(out, np.arange(256)[::-1])
    compile_kernels(RACES, ["turned"], {"GUARDED": 0}).launch("turned", 1, 256, [out], seed=seed)
    assert (out != np.arange(256)[::-1]).any()


def test_a_seed_is_an_order_of_blocks_and_threads() -> None:
    module = compile_kernels(RACES, ["tickets"], {"GUARDED": 1})
    orders = []
    for seed in (None, 7, 7, 8):
        blocks, threads = np.empty(20, np.uint32), np.empty((20, 64), np.uint32)
        module.launch("tickets", 20, 64, [np.zeros(1, np.uint32), blocks, threads], seed=seed)
        np.testing.assert_array_equal(np.sort(blocks), np.arange(20))
        np.testing.assert_array_equal(np.sort(threads, axis=1), np.tile(np.arange(64), (20, 1)))
        orders.append((blocks.tolist(), threads.tolist()))
    assert orders[0] == (list(range(20)), [list(range(64))] * 20)
    assert orders[1] == orders[2]
    assert orders[1][0] not in (orders[0][0], orders[3][0])
    assert orders[1][1] not in (orders[0][1], orders[3][1])


def test_threads_may_launch_at_the_same_time() -> None:
    faults, sums = compile_kernels(FAULTS, [*ENDS, "fine", "beyond"]), compile_kernels(SUMS, ["scan"])
    x = np.arange(256, dtype=np.uint32)

    def work(turn: int) -> bool:
        if turn % 2:
            with pytest.raises(KernelError, match=r"trapped"):
                faults.launch("traps", 1, 64, [])
            return True
        out = np.empty_like(x)
        sums.launch("scan", 1, x.size, [x, out], shared=2 * x.nbytes, seed=turn)
        return bool((out == np.cumsum(x)).all())

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(60)))


TAKES = """
struct Two { int a, b; };
extern "C" __global__ void takes(const double* x, float* y, int n, float f, Two two, void* any) { y[0] = n + f; }
"""
GOOD: list[Any] = [
    np.zeros(2),
    np.zeros(2, np.float32),
    np.int32(1),
    np.float32(2),
    np.zeros(1, [("a", "i4"), ("b", "i4")]),
    None,
]


def read_only() -> np.ndarray:
    array = np.zeros(2, np.float32)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("place", "argument", "error", "message"),
    [
        (
            0,
            np.zeros(2, np.float32),
            TypeError,
            "argument 0 of takes points at kind 'f' of 8 bytes, an array of float32",
        ),
        (0, np.zeros(2, np.int64), TypeError, "an array of int64 is given"),
        (0, np.zeros(4)[::2], ValueError, "an array with gaps"),
        (0, 1.5, TypeError, "argument 0 of takes is a pointer, float is given"),
        (1, read_only(), ValueError, "may be written"),
        (2, 1, TypeError, "argument 2 of takes has 4 bytes and kind 'i', 8 bytes of kind 'i' are given"),
        (2, np.zeros(3, np.int32), TypeError, "3 elements are given"),
        (3, np.int32(1), TypeError, "kind 'f', 4 bytes of kind 'i'"),
        (4, b"seven b", TypeError, "8 bytes and kind 'V', 7 bytes"),
    ],
)
def test_arguments_that_are_not_the_kernel_s_are_refused(
    place: int, argument: Any, error: type[Exception], message: str
) -> None:
    module = compile_kernels(TAKES, ["takes"])
    module.launch("takes", 1, 1, GOOD)
    assert GOOD[1][0] == 3
    with pytest.raises(error, match=message):
        module.launch("takes", 1, 1, [argument if i == place else a for i, a in enumerate(GOOD)])


def test_sizes_that_are_not_a_device_s_are_refused() -> None:
    module = compile_kernels(TAKES, ["takes"])
    for grid, block in ((0, 1), (1, 0), (1, 1025), (1, (64, 17)), (1, (1, 1, 65)), ((1, 1, 1, 1), 1), ((1, 70000), 1)):
        with pytest.raises(ValueError, match=r"the (grid|block)|a block of 1088 threads"):
            module.launch("takes", grid, block, GOOD)
    with pytest.raises(ValueError, match=r"dynamic shared memory"):
        module.launch("takes", 1, 1, GOOD, shared=228 << 10)
    with pytest.raises(TypeError, match=r"takes 6 arguments, 5 are given"):
        module.launch("takes", 1, 1, GOOD[:5])


NUMBERS = """
extern "C" __global__ void bits(const unsigned* x, unsigned* out, unsigned long long* wide) {
    unsigned a = x[0], b = x[1], by = x[2];
    unsigned long long both = (unsigned long long)b << 32 | a;
    out[0] = __popc(a); out[1] = __popcll(both); out[2] = __ffs(a); out[3] = __ffsll(both); out[4] = __clz(a);
    out[5] = __clzll(both); out[6] = __brev(a); out[7] = __byte_perm(a, b, by); out[8] = __funnelshift_l(a, b, by);
    out[9] = __funnelshift_r(a, b, by); out[10] = __umulhi(a, b); out[11] = __funnelshift_lc(a, b, by & 63);
    out[12] = __float_as_uint(__uint_as_float(a & 0x7f7fffffu)); out[13] = __mulhi((int)a, (int)b);
    wide[0] = __brevll(both); wide[1] = __umul64hi(both, both ^ by);
    wide[2] = __double_as_longlong(__longlong_as_double(both & 0x7fefffffffffffffull));
    wide[3] = __double_as_longlong(__hiloint2double(7, 9));
}
#define IN_ALL(name) out[k++] = name##_rd(a, b); out[k++] = name##_rn(a, b); out[k++] = name##_ru(a, b);
extern "C" __global__ void rounded(double a, double b, double* out, float* narrow, long long* whole) {
    int k = 0;
    IN_ALL(__dadd) IN_ALL(__dsub) IN_ALL(__dmul) IN_ALL(__ddiv)
    narrow[0] = __double2float_rd(a); narrow[1] = __double2float_rn(a); narrow[2] = __double2float_ru(a);
    whole[0] = __double2int_rn(a); whole[1] = __double2int_rz(a); whole[2] = __double2ll_rd(a);
    whole[3] = __double2uint_ru(a); whole[4] = min(max(a, -1.0), 1.0) == a;
}
"""
WORDS = st.integers(0, 2**32 - 1)


@settings(max_examples=200)
@given(a=WORDS, b=WORDS, by=WORDS)
def test_bits_are_counted_and_moved_as_in_cuda(a: int, b: int, by: int) -> None:
    module = compile_kernels(NUMBERS, ["bits", "rounded"])
    out, wide = np.zeros(14, np.uint32), np.zeros(4, np.uint64)
    module.launch("bits", 1, 1, [np.array([a, b, by], np.uint32), out, wide])
    both, word = b << 32 | a, 2**32 - 1
    eight = [*a.to_bytes(4, "little"), *b.to_bytes(4, "little")]
    picked = sum(eight[by >> 4 * i & 7] << 8 * i for i in range(4))
    signed = [x - 2**32 if x >> 31 else x for x in (a, b)]
    assert out.tolist() == [
        a.bit_count(),
        both.bit_count(),
        (a & -a).bit_length(),
        (both & -both).bit_length(),
        32 - a.bit_length(),
        64 - both.bit_length(),
        int(f"{a:032b}"[::-1], 2),
        picked,
        (both << by % 32) >> 32 & word,
        both >> by % 32 & word,
        a * b >> 32,
        (both << min(by % 64, 32)) >> 32 & word,
        a & 0x7F7FFFFF,
        signed[0] * signed[1] >> 32 & word,
    ]
    assert wide.tolist() == [
        int(f"{both:064b}"[::-1], 2),
        both * (both ^ by) >> 64,
        both & 0x7FEFFFFFFFFFFFFF,
        7 << 32 | 9,
    ]


NORMAL = st.floats(-1e30, 1e30).filter(lambda x: abs(x) > 1e-30)


@settings(max_examples=200)
@given(a=NORMAL, b=NORMAL)
def test_directed_rounding_encloses_the_exact_result(a: float, b: float) -> None:
    out, narrow, whole = np.empty(12), np.empty(3, np.float32), np.empty(5, np.int64)
    module = compile_kernels(NUMBERS, ["bits", "rounded"])
    module.launch("rounded", 1, 1, [np.float64(a), np.float64(b), out, narrow, whole])
    x, y = Fraction(a), Fraction(b)
    for (low, nearest, high), exact in zip(out.reshape(4, 3).tolist(), [x + y, x - y, x * y, x / y], strict=True):
        assert Fraction(low) <= exact <= Fraction(high)
        assert nearest == float(exact)
        assert high in (low, np.nextafter(low, np.inf))
    assert float(narrow[0]) <= a <= float(narrow[2])
    assert narrow[1] == np.float32(a)
    assert narrow[2] in (narrow[0], np.nextafter(narrow[0], np.float32(np.inf)))

    def held(value: int, low: int, high: int) -> int:
        return min(max(value, low), high)

    limits = (-(2**31), 2**31 - 1)
    assert whole.tolist() == [
        held(round(a), *limits),
        held(int(a), *limits),
        held(int(np.floor(a)), -(2**63), 2**63 - 1),
        held(int(np.ceil(a)), 0, 2**32 - 1),
        int(-1 <= a <= 1),
    ]


SWEEP = read_sources(*SIMPLE, "simple/plain.cu")
TYPES = {"u1": "unsigned char", "u2": "unsigned short", "u4": "unsigned", "f4": "float", "f8": "double"}


def unranked(rank: np.uint64) -> float:
    """The double of an order-preserving image."""
    bits = int(rank)
    return float(np.uint64(bits - (1 << 63) if bits >> 63 else (1 << 64) - 1 - bits).view(np.float64))


class Sweeps:
    """The simple kernels over one partition: gather, Jacobi sweeps, scatter, measure."""

    def __init__(self, table: PartitionTable, discount: float, sign: float, seed: int | None) -> None:
        index, real = (TYPES[a.dtype.str[1:]] for a in (table.successors, table.probabilities))
        names = ["gather", "sweep", "largest_change", "scatter", "measure"]
        self.module = compile_kernels(SWEEP, names, {"INDEX": index, "REAL": real})
        self.seed, self.n, self.size = seed, table.n_states, table.n_states + table.halo.size
        fields = [
            table.action_ptr,
            table.successor_ptr,
            table.successors,
            table.probabilities,
            table.rewards,
            discounts(discount, table.durations),
            table.terminal_rewards,
            table.halo,
            table.boundary,
        ]
        self.fields = [fenced(field) if field.size else None for field in fields]
        numbers = [("first", "i8"), ("n", "i8"), ("h", "i8"), ("actions", "i8"), ("width", "i8")]
        self.table = np.zeros(1, [("pointers", "u8", 9), *numbers, ("discount", "f8"), ("sign", "f8")])
        self.table["pointers"] = [0 if field is None else field.ctypes.data for field in self.fields]
        self.table["first"], self.table["n"], self.table["h"] = table.first_state, table.n_states, table.halo.size
        self.table["actions"], self.table["width"] = table.actions_per_state, table.successors_per_action
        self.table["discount"], self.table["sign"] = discount, sign

    def launch(self, name: str, threads: int, *arguments: Any) -> None:
        self.module.launch(name, -(-threads // 32), 32, [self.table, *arguments], seed=self.seed)

    def visit(self, values: np.ndarray, policy: np.ndarray, sweeps: int) -> tuple[np.ndarray, np.ndarray]:
        """Changes of the last sweep and the report's first two numbers; updates values and policy."""
        now, other = fenced(np.full(self.size, np.nan)), fenced(np.full(self.size, np.nan))
        self.launch("gather", self.size, values, now, other)
        change, changes = fenced(np.full(self.n, np.nan)), np.zeros(2, np.uint64)
        for _ in range(sweeps):
            self.launch("sweep", self.n, now, other, policy, change, None)
            now, other = other, now
        self.launch("largest_change", self.n, change, changes)
        report = np.zeros(5, np.uint64)
        self.launch("scatter", self.n, now, values, report)
        return changes.view(np.float64), report[:2].view(np.float64)


@pytest.mark.parametrize("seed", [None, 4])
@pytest.mark.parametrize("shape", TABLES)
@pytest.mark.parametrize(("index", "real"), [("u1", "f8"), ("u2", "f4"), ("u4", "f8")])
def test_the_sweep_kernels_equal_the_plain_equations(index: str, real: str, shape: str, seed: int | None) -> None:
    table = random_table(1, index, real, **TABLES[shape])
    plain, emulated = Plain(table, 0.9, -1.0), Sweeps(table, 0.9, -1.0, seed)
    values, policy = np.random.default_rng(99).normal(size=N_STATES) * 100, np.full(N_STATES, -1, np.int32)
    for sweeps in (1, 4):
        own, own_policy = values.copy(), policy.copy()
        changes, boundary = emulated.visit(own, own_policy, sweeps)
        report = plain.visit(values, policy, SweepLimits(-1.0, sweeps), jacobi=True)
        np.testing.assert_array_equal(own, values)
        np.testing.assert_array_equal(own_policy, policy)
        assert report.last_change is not None
        assert changes.tolist() == report.last_change[:, 0].tolist()
        assert boundary.tolist() == [report.boundary_rise[0], report.boundary_fall[0]]
    policy[FIRST + 1 :: 3] = -1  # where there is none the greedy action becomes it
    own_policy = policy.copy()
    local, other, marks = np.empty(emulated.size), np.empty(emulated.size), np.zeros(5, np.uint64)
    emulated.launch("gather", emulated.size, values, local, other)
    emulated.launch("measure", N_OWN, local, own_policy, ROW_SUM, 0.0, marks)
    measured, _ = plain.measure(values, policy, 0.0)
    np.testing.assert_allclose([unranked(mark) for mark in marks[:4]], measured, rtol=1e-13)
    np.testing.assert_array_equal(own_policy, policy)


def test_many_modules_share_the_stacks_of_their_threads() -> None:
    def mappings() -> int:
        return len(Path("/proc/self/maps").read_bytes().splitlines())

    compile_kernels("__global__ void nothing() {}", ["nothing"], {"NUMBER": 0}).launch("nothing", 1, 32, [])
    before = mappings()
    for number in range(1, 4):
        compile_kernels("__global__ void nothing() {}", ["nothing"], {"NUMBER": number}).launch("nothing", 1, 32, [])
    assert mappings() < before + 200
