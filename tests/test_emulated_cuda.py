"""Emulated kernels do what the CUDA programming guide says, and end with an error where a device would hang."""

from __future__ import annotations

import shutil
import sys

import numpy as np
import pytest
from emulated_cuda import compile_kernels, fenced

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not (shutil.which("g++") or shutil.which("clang++")), reason="needs a C++ compiler"
)
SEEDS = [None, 0, 1, 2]

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
"""


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("c", "dtype"), [("int", "i4"), ("unsigned long long", "u8"), ("float", "f4"), ("double", "f8")]
)
def test_a_reduction_by_warps_and_blocks_equals_the_sum(c: str, dtype: str, seed: int | None) -> None:
    module = compile_kernels(SUMS, [f"total<{kind}>" for kind in ("int", "unsigned long long", "float", "double")])
    x, out = np.random.default_rng(0).integers(0, 9, 5000).astype(dtype), np.zeros(1, dtype)
    module.launch(f"total<{c}>", 5, 1024, [fenced(x), out, np.int32(x.size)], seed=seed)
    assert out[0] == x.sum()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_scan_in_dynamic_shared_memory_equals_the_running_sum(seed: int | None) -> None:
    x = np.random.default_rng(1).integers(0, 2**32, 700, np.uint32)
    out = np.empty_like(x)
    compile_kernels(SUMS, ["scan"]).launch("scan", 1, x.size, [x, out], shared=2 * x.nbytes, seed=seed)
    np.testing.assert_array_equal(out, np.cumsum(x, dtype=np.uint32))
