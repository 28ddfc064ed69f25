// The equation of a policy's relative values, for the solver: after policy/rows.cu, before policy/krylov.cu.
//
//     D^-1 (I - P + 1 e_0^T) h = D^-1 (r - c),         and below a discount of 1   D^-1 (I - g P) h = D^-1 (r - c)
//
// e_0^T h is the value of state 0, which is the gain less c then: one state fixes h as well as the mean of all does, in
// as many iterations (of three queues), and is not summed up. D is what a row has outside its own state, so that
// chains that mostly stay where they are take no more iterations. P is divided by the sums of its rows.
//
// Bytes a state and product: as a sweep of policy/rows.cu.

#define LEAST_AWAY 0.01    // share of a row that leaves its state, below which rows are not divided by it
#define TINY 1e-310        // at least the rounding of products that underflow

// Of a row: its sum, what of it leaves the state, and sums of p (x(succ) - x(state)) and of their sizes.
struct Moves { double mass, away, moved, size; };

__device__ __forceinline__ Moves moves_of(const Evaluation& e, const Chunk& c, u32 i, i64 state, const double* x) {
    const u32* successors = e.rows.successors + c.entry + i;
    const REAL* probabilities = e.rows.probabilities + c.entry + i;
    const double own = x[state];
    Moves m = {0.0, 0.0, 0.0, 0.0};
#if ROW_WIDTH
#pragma unroll
    for (int k = 0; k < ROW_WIDTH; ++k) {
#else
#pragma unroll 4
    for (u32 k = 0; k < c.width; ++k) {
#endif
        const double p = (double)__ldcs(probabilities + (i64)k * c.pitch);
        const u32 to = __ldcs(successors + (i64)k * c.pitch);
        const double change = p * (x[to] - own);
        m.mass += p;
        m.moved += change;
        m.size += fabs(change);
        if (to != state) m.away += p;
    }
    return m;
}

__device__ __forceinline__ double divisor_of(const Evaluation& e, const Moves& m) {
    return fmax(1.0 - e.discount + e.discount * m.away / m.mass, LEAST_AWAY);
}

// What is added to the linear part of every row where there is no discount.
__device__ __forceinline__ double fixed_of(const Evaluation& e, const double* x) { return e.discount < 1.0 ? 0.0 : x[0]; }

// What a state's value misses.
__device__ __forceinline__ double missing_of(const Evaluation& e, const Chunk& c, u32 i, i64 state) {
    const Moves m = moves_of(e, c, i, state, e.values);
    const double reward = (double)__ldcs(e.rows.rewards + state) - e.centre - fixed_of(e, e.values);
    return (reward + e.discount * m.moved / m.mass - (1.0 - e.discount) * e.values[state]) / divisor_of(e, m);
}

__device__ __forceinline__ double product_of(const Evaluation& e, const Chunk& c, u32 i, i64 state, const double* x) {
    const Moves m = moves_of(e, c, i, state, x);
    return (fixed_of(e, x) - e.discount * m.moved / m.mass + (1.0 - e.discount) * x[state]) / divisor_of(e, m);
}

// x of the policy at the values, for every partition: encodings of [0] minus the least, rounded outward, [1] the largest,
// [2] the largest rounding; since the beginning [3] the largest rise and [4] the largest fall of a value; [5] the largest
// value and [6] minus the smallest.
extern "C" __global__ void __launch_bounds__(BLOCK) measure_gains(const Evaluation e) {
    const i64 share = (e.count + gridDim.x - 1) / gridDim.x, begin = blockIdx.x * share, end = min(e.count, begin + share);
    double m[7];
    for (i64 c = begin; c < end; ++c) {
        const Chunk chunk = e.chunks[c];
        if (c == begin || e.chunks[c - 1].partition != chunk.partition)
            for (int i = 0; i < 7; ++i) m[i] = -infinity();
        if (threadIdx.x < chunk.states) {
            const i64 state = chunk.state + threadIdx.x;
            const Moves row = moves_of(e, chunk, threadIdx.x, state, e.values);
            const double reward = (double)__ldcs(e.rows.rewards + state), x = reward + row.moved / row.mass;
            const double size = fabs(reward) + row.size / row.mass;
            const double error = 2.02 * (double)(chunk.width + 8) * 1.1102230246251565e-16 * size + TINY;
            const double now = e.values[state], before = e.start[state];
            m[0] = fmax(m[0], bounded(-(x - error)));
            m[1] = fmax(m[1], bounded(x + error));
            m[2] = fmax(m[2], bounded(error));
            m[3] = fmax(m[3], bounded(now - before));
            m[4] = fmax(m[4], bounded(before - now));
            m[5] = fmax(m[5], bounded(now));
            m[6] = fmax(m[6], bounded(-now));
        }
        if (c + 1 == end || e.chunks[c + 1].partition != chunk.partition) {
            reduce<0>(m);
            if (threadIdx.x == 0)
                for (int i = 0; i < 7; ++i) atomicMax(e.results + RESULTS * (i64)chunk.partition + i, encoded(m[i]));
        }
    }
}
