// Evaluates a policy on its rows, without the table: appended to policy/rows.cuh, and followed by policy/mixing.cu, an
// equation and policy/krylov.cu.
//
//     V(s) <- r(s) + g(s) sum_k p_k V(succ_k)          (sweep_rows, in place)
//
// A thread takes a state at a time, a block a *chunk* of up to 256 states of one partition; as many blocks as the
// device runs at once go through all chunks: what sweeps read of the chunks before is new, and sweeps that go back and
// forth carry values both ways. Where each has many, blocks of a sweep claim chunks in their order and so stay near each
// other: the values that one has read are in the second-level cache for the others, where blocks that stride over chunks
// drift apart. A sweep reads width * (4 + sizeof(REAL)) + sizeof(REWARD) + 8 (+ 8 VARIES) bytes of each state and the values of its
// successors. What is claimed is measured last of all, at values that stay.
//
// In-place sweeps may read a value of this sweep or of the one before: once no value changes by more than c in a sweep,
// no residual is above g rho c. Each device of a group sweeps its own chunks, and all meet after each sweep: c is the
// largest change on any of them, and what is read of another device is of this sweep or of the one before, too.
//
// Compiled with REAL, REWARD, VARIES, ROW_WIDTH (successors of every row, or 0 where they differ or are many), MEMBERS
// (devices of the group).

typedef unsigned long long u64;
typedef long long i64;
typedef unsigned int u32;

#define BLOCK 256
#define CLAIM 2            // chunks that a block claims at a time
#define MAX_SWEEPS 64
#define RESULTS 9
#define MOST_SUMS 7           // of a kernel over all states, at most

struct __align__(16) Chunk {
    i64 state;             // the first
    i64 entry;             // its place in a plane
    u32 states, pitch, width, partition;
};

struct Progress {
    double stop;           // largest change, or residual, that ends a batch
    double rho, alpha, omega, beta;
    double residual, first_residual;
    u64 size;              // bits of the largest |V|
    u64 change[MAX_SWEEPS];   // bits of the largest change of each sweep
    double sums[MOST_SUMS]; // of mix_record
    u32 claims[MAX_SWEEPS];   // of each sweep, beyond the first of each block
    u32 state, products;
};

struct Evaluation {
    PolicyRows rows;
    const Chunk* chunks;   // of this device
    i64 count;
    i64 member;            // this device's place in the group
    double* values;
    double* start;         // values at the beginning
    double *z, *r, *shadow, *p, *v, *t;   // [states] of mixing or of the solver
    Progress* progress;
    double* partials;      // [blocks, MOST_SUMS]
    u32* ticket;           // 0 between kernels
    const double* row_sums;   // [partitions]
    u64* results;            // [partitions, RESULTS]
    double discount;
    double centre;         // of relative values: what is taken off the rewards
    Progress* progress_of[MEMBERS];   // of every device
    double* sums_of[MEMBERS];   // [DECISIONS, MEMBERS, 3] on every device
};

__device__ __forceinline__ double infinity() { return __longlong_as_double(0x7ff0000000000000ll); }

__device__ __forceinline__ u64 encoded(double x) {
    const u64 bits = (u64)__double_as_longlong(x);
    return (bits >> 63) ? ~bits : (bits | 0x8000000000000000ull);
}

// The number itself, or infinity for what is no number, which fmax would pass over.
__device__ __forceinline__ double bounded(double x) { return x < infinity() ? x : infinity(); }

// f(chunk, i, state) for every state that has rows, in this thread's chunks. The next chunk is asked for early.
template <class F> __device__ __forceinline__ void for_states(const Evaluation& e, bool back, F f) {
    i64 c = blockIdx.x;
    if (c >= e.count) return;
    Chunk next = e.chunks[back ? e.count - 1 - c : c];
    while (c < e.count) {
        const Chunk chunk = next;
        c += gridDim.x;
        if (c < e.count) next = e.chunks[back ? e.count - 1 - c : c];
        if (threadIdx.x < chunk.states) f(chunk, threadIdx.x, chunk.state + threadIdx.x);
    }
}

// f(chunk, i, state) likewise, in chunks that blocks claim by a counter that begins at 0. The next claim is made before
// the work on this one.
template <class F> __device__ __forceinline__ void for_claims(const Evaluation& e, bool back, u32* counter, F f) {
    __shared__ u32 claims[2];
    const i64 count = (e.count + CLAIM - 1) / CLAIM;
    int now = 0;
    if (threadIdx.x == 0) claims[0] = blockIdx.x;
    while (true) {
        __syncthreads();
        const i64 claim = claims[now];
        if (claim >= count) return;
        now ^= 1;
        if (threadIdx.x == 0) claims[now] = gridDim.x + (gridDim.x < count ? atomicAdd(counter, 1u) : claim);
        const i64 begin = claim * CLAIM, end = min(begin + CLAIM, e.count);
        for (i64 c = begin; c < end; ++c) {
            const Chunk chunk = e.chunks[back ? e.count - 1 - c : c];
            if (threadIdx.x < chunk.states) f(chunk, threadIdx.x, chunk.state + threadIdx.x);
        }
    }
}

// sum_k p_k x(succ_k). `x` may be written at the same time.
__device__ __forceinline__ double expected(const PolicyRows& rows, const Chunk& c, u32 i, const double* x) {
    const u32* successors = rows.successors + c.entry + i;
    const REAL* probabilities = rows.probabilities + c.entry + i;
    double total = 0.0;
#if ROW_WIDTH
    u32 to[ROW_WIDTH];
    REAL p[ROW_WIDTH];
#pragma unroll
    for (int k = 0; k < ROW_WIDTH; ++k) {
        to[k] = __ldcs(successors + (i64)k * c.pitch);
        p[k] = __ldcs(probabilities + (i64)k * c.pitch);
    }
#pragma unroll
    for (int k = 0; k < ROW_WIDTH; ++k) total += (double)p[k] * x[to[k]];
#else
#pragma unroll 4
    for (u32 k = 0; k < c.width; ++k)
        total += (double)__ldcs(probabilities + (i64)k * c.pitch) * x[__ldcs(successors + (i64)k * c.pitch)];
#endif
    return total;
}

__device__ __forceinline__ double discount_at(const Evaluation& e, i64 state) {
#if VARIES
    return __ldcs(e.rows.discounts + state);
#else
    return e.discount;
#endif
}

__device__ __forceinline__ double backup_of(const Evaluation& e, const Chunk& c, u32 i, i64 state) {
    const double reward = (double)__ldcs(e.rows.rewards + state), g = discount_at(e, state);
    return reward + g * expected(e.rows, c, i, e.values);
}

// ---------------------------------------------------------------------------------------------------- reductions

// Over a block, in thread 0: sums of the first SUMS numbers, the largest of the others. Every thread must come here.
template <int SUMS, int N> __device__ __forceinline__ void reduce(double (&x)[N]) {
    __shared__ double warps[N][BLOCK / 32];
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < N; ++i) {
#pragma unroll
        for (int d = 16; d; d >>= 1) {
            const double other = __shfl_xor_sync(0xffffffffu, x[i], d);
            x[i] = i < SUMS ? x[i] + other : fmax(x[i], other);
        }
        if (lane == 0) warps[i][warp] = x[i];
    }
    __syncthreads();
    if (threadIdx.x == 0) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            x[i] = warps[i][0];
            for (int w = 1; w < BLOCK / 32; ++w) x[i] = i < SUMS ? x[i] + warps[i][w] : fmax(x[i], warps[i][w]);
        }
    }
    __syncthreads();
}

// f(chunk, i, state) for every state of this device that has rows, which adds to N numbers in x: SUMS sums, and maxima of
// at least 0. True in the one thread that then has those of all blocks in x.
template <int SUMS, int N, class F> __device__ __forceinline__ bool sum_states(const Evaluation& e, double (&x)[N], F f) {
    __shared__ bool last;
    for_states(e, false, f);
    reduce<SUMS>(x);
    if (threadIdx.x == 0) {
        for (int i = 0; i < N; ++i) __stcg(e.partials + MOST_SUMS * (i64)blockIdx.x + i, x[i]);
        __threadfence();
        last = atomicAdd(e.ticket, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last) return false;
    __threadfence();
    for (int i = 0; i < N; ++i) x[i] = 0.0;
    for (u32 block = threadIdx.x; block < gridDim.x; block += BLOCK)
        for (int i = 0; i < N; ++i) {
            const double other = __ldcg(e.partials + MOST_SUMS * (i64)block + i);
            x[i] = i < SUMS ? x[i] + other : fmax(x[i], other);
        }
    reduce<SUMS>(x);
    if (threadIdx.x == 0) *e.ticket = 0;
    return threadIdx.x == 0;
}

// -------------------------------------------------------------------------------------------------------- sweeps

// Bits of the largest change of any device's sweep.
__device__ __forceinline__ u64 change_of(const Evaluation& e, int sweep) {
#if MEMBERS > 1
    u64 most = 0;
    for (int g = 0; g < MEMBERS; ++g) {
        const u64 change = *(const volatile u64*)(e.progress_of[g]->change + sweep);
        if (change > most) most = change;
    }
    return most;
#else
    return __ldcg(e.progress->change + sweep);
#endif
}

// One sweep of a batch; nothing once the one before has changed little enough. Devices meet between two sweeps.
template <bool CLAIMS> __device__ __forceinline__ void sweep_once(const Evaluation& e, int sweep, int back) {
    Progress& progress = *e.progress;
    if (sweep > 0) {
        const u64 before = change_of(e, sweep - 1);
        if (__longlong_as_double((i64)before) <= progress.stop) {
            if (blockIdx.x == 0 && threadIdx.x == 0) progress.change[sweep] = before;
            return;
        }
    }
    double m[2] = {0.0, 0.0};
    const auto visit = [&](const Chunk& c, u32 i, i64 state) {
        const double before = e.values[state], now = backup_of(e, c, i, state);
        e.values[state] = now;
        m[0] = fmax(m[0], bounded(fabs(now - before)));
        m[1] = fmax(m[1], fabs(now));
    };
    if (CLAIMS) for_claims(e, back, progress.claims + sweep, visit);
    else for_states(e, back, visit);
    reduce<0>(m);
    if (threadIdx.x == 0) {
        atomicMax(progress.change + sweep, (u64)__double_as_longlong(m[0]));
        atomicMax(&progress.size, (u64)__double_as_longlong(m[1]));
    }
}

// Where blocks have many chunks each, and where they have few.
extern "C" __global__ void __launch_bounds__(BLOCK) sweep_rows(const Evaluation e, int sweep, int back) {
    sweep_once<true>(e, sweep, back);
}

extern "C" __global__ void __launch_bounds__(BLOCK) sweep_few_rows(const Evaluation e, int sweep, int back) {
    sweep_once<false>(e, sweep, back);
}

// What an evaluation reports, for every partition with rows: [0] largest rise since the beginning, [1] fall, [2] rise
// and [3] fall of the normalised residual, [4] and [5] of the plain one, [6] Q2 - V, [7] V, [8] -V; encodings of the
// largest over its states. A block's chunks follow each other, so that it adds to a partition's numbers once or so.
extern "C" __global__ void __launch_bounds__(BLOCK) measure_rows(const Evaluation e) {
    const i64 share = (e.count + gridDim.x - 1) / gridDim.x, begin = blockIdx.x * share, end = min(e.count, begin + share);
    double m[RESULTS];
    for (i64 c = begin; c < end; ++c) {
        const Chunk chunk = e.chunks[c];
        if (c == begin || e.chunks[c - 1].partition != chunk.partition)
            for (int i = 0; i < RESULTS; ++i) m[i] = -infinity();
        if (threadIdx.x < chunk.states) {
            const i64 state = chunk.state + threadIdx.x;
            const double now = e.values[state], before = e.start[state];
            const double residual = backup_of(e, chunk, threadIdx.x, state) - now;
            const double normalised = residual / (1.0 - discount_at(e, state) * e.row_sums[chunk.partition]);
            m[0] = fmax(m[0], now - before);
            m[1] = fmax(m[1], before - now);
            m[2] = fmax(m[2], bounded(normalised));
            m[3] = fmax(m[3], bounded(-normalised));
            m[4] = fmax(m[4], bounded(residual));
            m[5] = fmax(m[5], bounded(-residual));
            m[6] = fmax(m[6], e.rows.second_best[state] - now);
            m[7] = fmax(m[7], now);
            m[8] = fmax(m[8], -now);
        }
        if (c + 1 == end || e.chunks[c + 1].partition != chunk.partition) {
            reduce<0>(m);
            if (threadIdx.x == 0)
                for (int i = 0; i < RESULTS; ++i) atomicMax(e.results + RESULTS * (i64)chunk.partition + i, encoded(m[i]));
        }
    }
}
