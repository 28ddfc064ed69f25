// Average rewards: one resident partition measured over all actions, and its policy made greedy. Values stay.
//
//   x_a(s) = sign r(s,a) + sum_k p_k (h[succ_k] - h[s]) / sum_k p_k
//
// After simple/table.cuh and policy/rows.cuh. Which thread owns what: thread s own state s and its rows. Bytes a state: its
// rows once (index, probability, reward), the values of its successors through the second-level cache (8 more for the
// number of one in the halo), 20 of its own, and where the policy's rows are kept, the chosen row once more where it is
// another than before. Why no local values: a state is measured once between two changes of h, and copying them costs as
// much as reading them in place.
//
// Differences of values are added up, in one thread and in stored order, as on the CPU: the bound on the rounding is the
// same, and so are the numbers.

#define FOUND 6            // numbers that improve_gains finds
#define TINY 1e-310        // at least the rounding of products that underflow

// At least what rounding does to x of a row of so many transitions, whose terms have that size together.
__device__ __forceinline__ double rounding_of(i64 length, double size) {
    return 2.02 * (double)(length + 8) * 1.1102230246251565e-16 * size + TINY;
}

__device__ __forceinline__ i64 number_of_state(const Table& t, i64 local) {
    return local < t.n ? t.first + local : t.halo[local - t.n];
}

// x of a row of the state whose value is `own`, and at least its rounding.
__device__ __forceinline__ double advantage_of(const Table& t, const double* values, double own, i64 row, double& error) {
    i64 lo, hi;
    transitions_of(t, row, lo, hi);
    double mass = 0.0, moved = 0.0, size = 0.0;
    for (i64 k = lo; k < hi; ++k) {
        const double p = probability_of(t, k), change = p * (values[number_of_state(t, successor_of(t, k))] - own);
        mass += p;
        moved += change;
        size += fabs(change);
    }
    const double reward = t.sign * (double)((const REAL*)t.rewards)[row];
    error = rounding_of(hi - lo, fabs(reward) + size / mass);
    return reward + moved / mass;
}

__device__ __forceinline__ void keep_row(const Table& t, const PolicyRows& to, u32 partition, i64 s, i64 row) {
    const RowsDescriptor d = to.descriptors[partition];
    const i64 at = d.entries + s, state = t.first + s;
    i64 lo, hi;
    transitions_of(t, row, lo, hi);
    for (u32 k = 0; k < d.width; ++k) {
        const bool there = lo + k < hi;
        to.successors[at + (i64)k * d.pitch] = (u32)(there ? number_of_state(t, successor_of(t, lo + k)) : state);
        to.probabilities[at + (i64)k * d.pitch] = there ? ((const REAL*)t.probabilities)[lo + k] : (REAL)0;
    }
    to.rewards[state] = (REWARD)t.sign * (REWARD)((const REAL*)t.rewards)[row];
}

// A state keeps its action unless another is better by more than `margin`; of others the lowest best is taken.
//
// keeps: 0: no rows are kept; 1: those of states whose action is another now; 2: all.
// found: [0] minus the least x of the policy, [1] the largest x, [2] of the other actions, [3] the largest rounding, as
// encodings; [4] states whose action is another; [5] 1 + a state without action.
extern "C" __global__ void improve_gains(const Table* table, const PolicyRows to, u32 partition, int keeps,
                                         const double* values, int* policy, double* advantage, double margin, u64* found) {
    const Table& t = *table;
    const i64 s = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    u64 low = 0, high = 0, others = 0, rounding = 0, without = 0;   // below the encoding of any number
    u32 changed = 0;
    i64 row, end;
    if (s < t.n) rows_of(t, s, row, end);
    if (s < t.n && row == end) without = (u64)s + 1;
    else if (s < t.n) {
        const i64 state = t.first + s;
        const double own = values[state];
        const int before = policy[state];
        double best = minus_infinity(), top = best, second = best, kept = best, error = 0.0, kept_error = 0.0, most = 0.0;
        int chosen = -1;
        for (i64 j = row; j < end; ++j) {
            double e;
            const double x = advantage_of(t, values, own, j, e);
            most = fmax(most, e);
            if (x > best) {
                second = top;
                best = x;
                error = e;
                chosen = (int)(j - row);
            } else {
                second = fmax(second, x + e);
            }
            top = fmax(top, x + e);
            if (j - row == before) { kept = x; kept_error = e; }
        }
        advantage[state] = best;
        if (before >= 0 && before != chosen && kept >= best - margin) {
            second = fmax(second, best + error);
            best = kept;
            error = kept_error;
            chosen = before;
        }
        changed = chosen != before;
        if (changed) policy[state] = chosen;
        if (keeps == 2 || (keeps && changed)) keep_row(t, to, partition, s, row + chosen);
        low = encoded(-(best - error));
        high = encoded(top);
        others = encoded(second);
        rounding = encoded(most);
    }
    raise_to_block_max(low, found);
    raise_to_block_max(high, found + 1);
    raise_to_block_max(others, found + 2);
    raise_to_block_max(rounding, found + 3);
    raise_to_block_max(without, found + 5);
    changed = __reduce_add_sync(0xffffffffu, changed);
    if ((threadIdx.x & 31) == 0 && changed) atomicAdd(found + 4, (u64)changed);
}

// A step of relative value iteration for the states of a partition: h += share (max_a x_a - middle).
// found: encodings of [0] minus the least and [1] the largest change of a value, as it was rounded.
extern "C" __global__ void step_gains(i64 first, i64 n, double share, double middle, const double* advantage, double* values,
                                      u64* found) {
    const i64 s = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    u64 least = 0, largest = 0;
    if (s < n) {
        const double before = values[first + s], now = before + share * (advantage[first + s] - middle);
        values[first + s] = now;
        least = encoded(before - now);
        largest = encoded(now - before);
    }
    raise_to_block_max(least, found);
    raise_to_block_max(largest, found + 1);
}

__device__ __forceinline__ bool row_leaves(const Table& t, i64 row, const unsigned char* inside) {
    i64 lo, hi;
    transitions_of(t, row, lo, hi);
    for (i64 k = lo; k < hi; ++k)
        if (probability_of(t, k) > 0 && !inside[number_of_state(t, successor_of(t, k))]) return true;
    return false;
}

// Clears `closed` of states of which some row leaves it, and `kept` of those whose row of the policy leaves that; cleared:
// how many. Others may be cleared meanwhile, so that this pass finds some that the next one would have found.
extern "C" __global__ void prune_gains(const Table* table, const int* policy, unsigned char* closed, unsigned char* kept,
                                       u64* cleared) {
    const Table& t = *table;
    const i64 s = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    u32 count = 0;
    if (s < t.n) {
        const i64 state = t.first + s;
        i64 row, end;
        rows_of(t, s, row, end);
        if (closed[state]) {
            bool leaves = false;
            for (i64 j = row; j < end && !leaves; ++j) leaves = row_leaves(t, j, closed);
            if (leaves) { closed[state] = 0; ++count; }
        }
        if (kept[state] && row_leaves(t, row + policy[state], kept)) { kept[state] = 0; ++count; }
    }
    count = __reduce_add_sync(0xffffffffu, count);
    if ((threadIdx.x & 31) == 0 && count) atomicAdd(cleared, (u64)count);
}
