"""Emulated kernels do what the CUDA programming guide says, and end with an error where a device would hang."""

from __future__ import annotations

import ctypes
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulated_cuda import KernelError, Module, compile_kernels, fenced, rewritten

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


def test_many_modules_share_the_stacks_of_their_threads() -> None:
    def mappings() -> int:
        return len(Path("/proc/self/maps").read_bytes().splitlines())

    compile_kernels("__global__ void nothing() {}", ["nothing"], {"NUMBER": 0}).launch("nothing", 1, 32, [])
    before = mappings()
    for number in range(1, 4):
        compile_kernels("__global__ void nothing() {}", ["nothing"], {"NUMBER": number}).launch("nothing", 1, 32, [])
    assert mappings() < before + 200
