// Jacobi value iteration with everything in the device's memory: what out-of-core solves are compared with.
//
//   out[s] = max_a { r(s,a) + (1 - l(s,a)) sum_k p_k in[succ_k] },       l = 1 - g, A actions and K successors each
//
// Ownership: thread s owns state s. The table lies in planes, one value of every state after the other:
//
//   successors [A][K][stride]   weights [A][K or K-1][stride]   rewards [A][stride]   losses [A][stride] or none
//
// so each load of a warp is one line of 128 bytes, all of a state's loads are independent, and the table is read past
// the L2's values (evict first). Bytes a backup: 4 (A K + A (K or K-1) + 2 A) of table, two values; successors' values
// come through L1 and L2. Not a successor's value a lane: the gathers of neighbouring states fall into the same lines
// as it is. Losses are 1 - g in the table's precision, because g is so near 1 that its own float32 would lose them.
// A sweep with CHECK also reduces what stopping needs, one atomic a block; the others write values and nothing else.

typedef unsigned long long u64;
typedef long long i64;

template <class T> __device__ __forceinline__ T lowest();
template <> __device__ __forceinline__ double lowest<double>() { return -1.7976931348623157e308; }
template <> __device__ __forceinline__ float lowest<float>() { return -3.402823466e38f; }

// The largest of one non-negative double a thread, as its bits. Every thread of the block must come here.
__device__ __forceinline__ void block_max(double value, u64* slot) {
    __shared__ u64 warps[32];
    u64 mine = (u64)__double_as_longlong(value);
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

// marks, bits of non-negative doubles: [0] largest |change|, [1] largest max_a (Q_a - V) / l_a, [2] largest
// (V - Q_greedy) / l_greedy. `in` and `out` may be one array: then a sweep takes new values where they are there.
template <class Value, class Real, int A, int K, bool LAST_IMPLIED, bool CHECK>
__global__ void sweep(const unsigned* successors, const Real* weights, const Real* rewards, const Real* losses,
                      double loss_of_all, const Value* in, Value* out, u64* marks, i64 n, i64 stride) {
    constexpr int W = LAST_IMPLIED ? K - 1 : K;
    i64 s = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    double change = 0.0, rise = 0.0, fall = 0.0;
    if (s < n) {
        Value own = CHECK ? in[s] : Value(0);
        Value best = lowest<Value>();
        double kept = 0.0;
        #pragma unroll
        for (int a = 0; a < A; ++a) {
            Value total = 0, rest = 1;
            #pragma unroll
            for (int k = 0; k < K; ++k) {
                Value weight = rest;
                if (k < W) {
                    weight = (Value)__ldcs(weights + (i64)(a * W + k) * stride + s);
                    rest -= weight;
                }
                total += weight * in[__ldcs(successors + (i64)(a * K + k) * stride + s)];
            }
            Value loss = losses ? (Value)__ldcs(losses + (i64)a * stride + s) : (Value)loss_of_all;
            Value q = (Value)__ldcs(rewards + (i64)a * stride + s) + (total - loss * total);
            if (CHECK) {
                double normalised = ((double)q - (double)own) / (double)loss;
                rise = fmax(rise, normalised);
                if (q > best) kept = normalised;
            }
            if (q > best) best = q;
        }
        out[s] = best;
        if (CHECK) {
            change = fabs((double)best - (double)own);
            fall = fmax(-kept, 0.0);
        }
    }
    if (CHECK) {
        block_max(change, marks);
        block_max(rise, marks + 1);
        block_max(fall, marks + 2);
    }
}
