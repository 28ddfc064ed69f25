// Evaluates a policy on its rows, without the table: appended to policy/rows.cuh.
//
//     V(s) <- r(s) + g(s) sum_k p_k V(succ_k)          (sweep_rows, in place)
//     (1 - g P) z = r + g P V - V,  V <- V + z         (krylov_...: BiCGSTAB, van der Vorst 1992)
//
// A thread takes a state at a time, a block a *chunk* of up to 256 states of one partition; as many blocks as the
// device runs at once go through all chunks, so that a sum is of few parts, and sweeps move on through the states: what
// they read of the chunks before is new, and sweeps that go back and forth carry values both ways. Blocks of a sweep
// claim chunks in their order and so stay near each other: the values that one has read are in the second-level cache for
// the others, where blocks that stride over chunks drift apart. A sweep reads
// width * (4 + sizeof(REAL)) + sizeof(REWARD) + 8 (+ 8 VARIES) bytes of each state and the values of its successors;
// an iteration of BiCGSTAB does so twice and moves 168 bytes more. Sums are taken in an order that depends on the
// number of blocks alone, so a solver's steps repeat; in-place sweeps need not. What is claimed is measured last of
// all, at values that stay.
//
// In-place sweeps may read a value of this sweep or of the one before: once no value changes by more than c in a sweep,
// no residual is above g rho c.
//
// The solver's scalars never leave the device: the last block of a kernel to finish adds the blocks' sums up, and takes
// the decisions. z is apart from V, which stays as it is until the host has seen what z is good for. Vectors and scalars
// stay as they are until krylov_begin, so that the host may leave the solver after any iteration and go on later.
//
// Compiled with REAL, REWARD, VARIES, ROW_WIDTH (successors of every row, or 0 where they differ or are many).

typedef unsigned long long u64;
typedef long long i64;
typedef unsigned int u32;

#define BLOCK 256
#define CLAIM 2            // chunks that a block claims at a time
#define MAX_SWEEPS 64
#define RESULTS 9
#define GROWN 1e8          // times its first largest residual: a solver's sums have lost what matters

enum { RUNNING, REACHED, BROKEN, LOST };   // LOST: z has numbers that are none

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
    u32 claims[MAX_SWEEPS];   // of each sweep, beyond the first of each block
    u32 tickets, state, products, unused;
};

struct Evaluation {
    PolicyRows rows;
    const Chunk* chunks;
    i64 count;             // chunks
    double* values;
    double* start;         // values at the beginning
    double *z, *r, *shadow, *p, *v, *t;   // [states] of the solver
    Progress* progress;
    double* partials;      // [blocks, 3]
    const double* row_sums;   // [partitions]
    u64* results;            // [partitions, RESULTS]
    double discount;
};

__device__ __forceinline__ double infinity() { return __longlong_as_double(0x7ff0000000000000ll); }

__device__ __forceinline__ u64 encoded(double x) {
    const u64 bits = (u64)__double_as_longlong(x);
    return (bits >> 63) ? ~bits : (bits | 0x8000000000000000ull);
}

// The number itself, or infinity for what is no number, which fmax would pass over.
__device__ __forceinline__ double bounded(double x) { return x < infinity() ? x : infinity(); }

// f(chunk, i, state) for every state that has rows, in this thread's chunks. The next chunk is asked for early.
template <class F> __device__ __forceinline__ void for_states(const Evaluation& e, F f) {
    i64 c = blockIdx.x;
    if (c >= e.count) return;
    Chunk next = e.chunks[c];
    while (c < e.count) {
        const Chunk chunk = next;
        c += gridDim.x;
        if (c < e.count) next = e.chunks[c];
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

// (1 - g P) x of a state.
__device__ __forceinline__ double product_of(const Evaluation& e, const Chunk& c, u32 i, i64 state, const double* x) {
    const double g = discount_at(e, state);
    return x[state] - g * expected(e.rows, c, i, x);
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

// Two sums and a maximum (at least 0) over all blocks; true in the one thread that is to go on with them.
__device__ __forceinline__ bool finish(const Evaluation& e, double (&x)[3]) {
    __shared__ bool last;
    reduce<2>(x);
    if (threadIdx.x == 0) {
        for (int i = 0; i < 3; ++i) __stcg(e.partials + 3 * (i64)blockIdx.x + i, x[i]);
        __threadfence();
        last = atomicAdd(&e.progress->tickets, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last) return false;
    __threadfence();
    x[0] = x[1] = x[2] = 0.0;
    for (u32 b = threadIdx.x; b < gridDim.x; b += BLOCK) {
        x[0] += __ldcg(e.partials + 3 * (i64)b);
        x[1] += __ldcg(e.partials + 3 * (i64)b + 1);
        x[2] = fmax(x[2], __ldcg(e.partials + 3 * (i64)b + 2));
    }
    reduce<2>(x);
    if (threadIdx.x == 0) e.progress->tickets = 0;
    return threadIdx.x == 0;
}

// -------------------------------------------------------------------------------------------------------- sweeps

// One sweep of a batch; nothing once the one before has changed little enough.
extern "C" __global__ void __launch_bounds__(BLOCK) sweep_rows(const Evaluation e, int sweep, int back) {
    Progress& progress = *e.progress;
    if (sweep > 0) {
        const u64 before = __ldcg(progress.change + sweep - 1);
        if (__longlong_as_double((i64)before) <= progress.stop) {
            if (blockIdx.x == 0 && threadIdx.x == 0) progress.change[sweep] = before;
            return;
        }
    }
    double m[2] = {0.0, 0.0};
    for_claims(e, back, progress.claims + sweep, [&](const Chunk& c, u32 i, i64 state) {
        const double before = e.values[state], now = backup_of(e, c, i, state);
        e.values[state] = now;
        m[0] = fmax(m[0], bounded(fabs(now - before)));
        m[1] = fmax(m[1], fabs(now));
    });
    reduce<0>(m);
    if (threadIdx.x == 0) {
        atomicMax(progress.change + sweep, (u64)__double_as_longlong(m[0]));
        atomicMax(&progress.size, (u64)__double_as_longlong(m[1]));
    }
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

// ------------------------------------------------------------------------------------------------------- BiCGSTAB

// r = shadow = p = r + g P V - V; z = 0.
extern "C" __global__ void __launch_bounds__(BLOCK) krylov_begin(const Evaluation e) {
    double x[3] = {0.0, 0.0, 0.0};
    for_states(e, [&](const Chunk& c, u32 i, i64 state) {
        const double r = backup_of(e, c, i, state) - e.values[state];
        e.r[state] = e.shadow[state] = e.p[state] = r;
        e.z[state] = 0.0;
        x[0] += r * r;
        x[2] = fmax(x[2], fabs(r));
    });
    if (!finish(e, x)) return;
    Progress& q = *e.progress;
    q.rho = x[0];
    q.residual = q.first_residual = x[2];
    q.products = 1;
    q.state = !(x[0] < infinity()) ? LOST : x[2] <= q.stop || x[0] == 0 ? REACHED : RUNNING;
}

// v = (1 - g P) p;  alpha = rho / (shadow v).
extern "C" __global__ void __launch_bounds__(BLOCK) krylov_direction(const Evaluation e) {
    Progress& q = *e.progress;
    if (q.state != RUNNING) return;
    double x[3] = {0.0, 0.0, 0.0};
    for_states(e, [&](const Chunk& c, u32 i, i64 state) {
        const double v = product_of(e, c, i, state, e.p);
        e.v[state] = v;
        x[0] += e.shadow[state] * v;
    });
    if (!finish(e, x)) return;
    ++q.products;
    q.alpha = q.rho / x[0];
    if (!(fabs(q.alpha) < infinity())) q.state = BROKEN;
}

// r, now s, = r - alpha v.
extern "C" __global__ void __launch_bounds__(BLOCK) krylov_half(const Evaluation e) {
    if (e.progress->state != RUNNING) return;
    const double alpha = e.progress->alpha;
    for_states(e, [&](const Chunk&, u32, i64 state) { e.r[state] -= alpha * e.v[state]; });
}

// t = (1 - g P) s;  omega = t s / (t t).
extern "C" __global__ void __launch_bounds__(BLOCK) krylov_minimise(const Evaluation e) {
    Progress& q = *e.progress;
    if (q.state != RUNNING) return;
    double x[3] = {0.0, 0.0, 0.0};
    for_states(e, [&](const Chunk& c, u32 i, i64 state) {
        const double t = product_of(e, c, i, state, e.r);
        e.t[state] = t;
        x[0] += t * e.r[state];
        x[1] += t * t;
    });
    if (!finish(e, x)) return;
    ++q.products;
    q.omega = x[1] > 0 ? x[0] / x[1] : 0.0;   // where t is 0, so is s, and z + alpha p is the solution
    if (!(fabs(q.omega) < infinity())) q.state = BROKEN;
}

// z += alpha p + omega s;  r = s - omega t;  beta from the new rho = shadow r.
extern "C" __global__ void __launch_bounds__(BLOCK) krylov_step(const Evaluation e) {
    Progress& q = *e.progress;
    if (q.state != RUNNING) return;
    const double alpha = q.alpha, omega = q.omega;
    double x[3] = {0.0, 0.0, 0.0};
    for_states(e, [&](const Chunk&, u32, i64 state) {
        const double s = e.r[state], r = s - omega * e.t[state];
        const double z = e.z[state] + alpha * e.p[state] + omega * s;
        e.z[state] = z;
        e.r[state] = r;
        x[0] += e.shadow[state] * r;
        x[1] += bounded(fabs(z)) < infinity() ? r * r : infinity();
        x[2] = fmax(x[2], fabs(r));
    });
    if (!finish(e, x)) return;
    q.beta = x[0] / q.rho * (alpha / omega);
    q.rho = x[0];
    q.residual = x[2];
    if (!(x[1] < infinity())) q.state = LOST;
    else if (x[2] <= q.stop) q.state = REACHED;
    else if (!(fabs(q.beta) < infinity()) || x[0] == 0 || x[2] > GROWN * q.first_residual) q.state = BROKEN;
}

// p = r + beta (p - omega v).
extern "C" __global__ void __launch_bounds__(BLOCK) krylov_turn(const Evaluation e) {
    if (e.progress->state != RUNNING) return;
    const double beta = e.progress->beta, omega = e.progress->omega;
    for_states(e, [&](const Chunk&, u32, i64 state) {
        e.p[state] = e.r[state] + beta * (e.p[state] - omega * e.v[state]);
    });
}

// V += z, and z begins again at 0: later iterations go on as they would have.
extern "C" __global__ void __launch_bounds__(BLOCK) krylov_apply(const Evaluation e) {
    for_states(e, [&](const Chunk&, u32, i64 state) {
        e.values[state] += e.z[state];
        e.z[state] = 0.0;
    });
}
