// Numbers as ordered unsigned integers, and the largest of a warp or of a block; layout.py is the host's side.
//
// Which thread owns what: each thread its own numbers, the first warp what the block makes of them. No device memory is
// read, and one atomic per block is written where a slot is given.

typedef unsigned long long u64;
typedef long long i64;
typedef unsigned int u32;
typedef unsigned short u16;

__device__ __forceinline__ double infinity() { return __longlong_as_double(0x7ff0000000000000ll); }

__device__ __forceinline__ double minus_infinity() { return -infinity(); }

// Order-preserving integer encoding of a number; above 0.
__device__ __forceinline__ u64 encoded(double x) {
    const u64 bits = (u64)__double_as_longlong(x);
    return (bits >> 63) ? ~bits : (bits | 0x8000000000000000ull);
}

// The upper half of a number's order-preserving encoding, rounded up. At most 2^-20 of a
// number is added, nothing to 0; one instruction then finds the largest of a warp.
__device__ __forceinline__ u32 rounded_up_half(double x) {
    const i64 bits = __double_as_longlong(x);
    const u32 high = (u32)((u64)bits >> 32);
    return bits < 0 ? ~high : (high + ((u32)bits != 0)) | 0x80000000u;
}

__device__ __forceinline__ double number_of(u32 bound) {
    return __longlong_as_double((i64)((u64)(bound >> 31 ? bound & 0x7fffffffu : ~bound) << 32));
}

__device__ __forceinline__ double warp_max(double x) {
#pragma unroll
    for (int d = 16; d; d >>= 1) x = fmax(x, __shfl_xor_sync(0xffffffffu, x, d));
    return x;
}

// The largest of each of N values a thread, in the first warp. Every thread of the block must come here.
template <int N>
__device__ __forceinline__ void block_max(double (&x)[N]) {
    __shared__ double warps[N][32];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, count = (blockDim.x + 31) >> 5;
#pragma unroll
    for (int i = 0; i < N; ++i) {
        x[i] = warp_max(x[i]);
        if (lane == 0) warps[i][warp] = x[i];
    }
    __syncthreads();
    if (warp == 0) {
#pragma unroll
        for (int i = 0; i < N; ++i) x[i] = warp_max(lane < count ? warps[i][lane] : warps[i][0]);
    }
    __syncthreads();
}

// Raises a slot in device memory to the largest of one unsigned number a thread: an encoding, or the bits of a double that
// is not negative. One atomic a block. Every thread of the block must come here.
__device__ __forceinline__ void raise_to_block_max(u64 mine, u64* slot) {
    __shared__ u64 warps[32];
    for (int d = 16; d; d >>= 1) {
        u64 other = __shfl_xor_sync(0xffffffffu, mine, d);
        if (other > mine) mine = other;
    }
    if ((threadIdx.x & 31) == 0) warps[threadIdx.x >> 5] = mine;
    __syncthreads();
    if (threadIdx.x < 32) {
        mine = threadIdx.x < (blockDim.x >> 5) ? warps[threadIdx.x] : 0;
        for (int d = 16; d; d >>= 1) {
            u64 other = __shfl_xor_sync(0xffffffffu, mine, d);
            if (other > mine) mine = other;
        }
        if (threadIdx.x == 0) atomicMax(slot, mine);
    }
    __syncthreads();
}
