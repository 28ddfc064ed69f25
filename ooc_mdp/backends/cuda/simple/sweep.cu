// Jacobi sweeps of one resident partition, a state a thread; plain and correct, the measure for anything faster.
//
//   out[s] = max_a { sign r(s,a) + g(s,a) sum_k p_k in[succ_k] },   s = 0 .. n-1 own states,  in[n ..] = halo values
//
// Ownership: thread s owns state s and reads its rows in stored order, so results do not depend on the launch shape
// and equal the CPU's for the same input (compiled without fused multiply-add). Ties go to the lowest action.
// Bytes a backup: its rows once (index, probability, reward), its successors' values through L2, 12 bytes out.
// Not the simpler in-place version: with a racing mix of old and new values the change of a sweep would still bound
// the residual, but runs would not repeat. Largest changes are kept as bit patterns of non-negative doubles, whose
// order is that of unsigned integers, so one atomicMax a block is enough (block maxima: Inamoto et al., technique 4).

typedef unsigned long long u64;
typedef long long i64;

// Lies at the start of the partition's own allocation.
struct Table {
    const unsigned* action_ptr;      // [n+1], or null: `actions` rows a state
    const unsigned* successor_ptr;   // [m+1], or null: `width` transitions a row
    const void* successors;          // [nnz]
    const void* probabilities;       // [nnz]
    const void* rewards;             // [m]
    const double* discounts;         // [m], or null: `discount`
    const double* terminal;          // [n], or null: 0
    const i64* halo;                 // [h]
    const unsigned char* boundary;   // [n]
    i64 first, n, h, actions, width;
    double discount, sign;
};

__device__ __forceinline__ u64 rank_of(double x) {   // order-preserving image of any double
    u64 b = (u64)__double_as_longlong(x);
    return (b >> 63) ? ~b : (b | 0x8000000000000000ull);
}

// The largest of one value a thread, one atomic a block. Every thread of the block must come here.
__device__ __forceinline__ void block_max(u64 mine, u64* slot) {
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

template <class Index, class Real>
__device__ __forceinline__ double row_value(const Table& t, const double* in, i64 j) {
    i64 lo = t.successor_ptr ? (i64)t.successor_ptr[j] : j * t.width;
    i64 hi = t.successor_ptr ? (i64)t.successor_ptr[j + 1] : lo + t.width;
    const Index* successors = (const Index*)t.successors;
    const Real* probabilities = (const Real*)t.probabilities;
    double total = 0.0;
    for (i64 k = lo; k < hi; ++k) total += (double)probabilities[k] * in[successors[k]];
    return t.sign * (double)((const Real*)t.rewards)[j] + (t.discounts ? t.discounts[j] : t.discount) * total;
}

__device__ __forceinline__ void rows_of(const Table& t, i64 s, i64& row, i64& end) {
    row = t.action_ptr ? (i64)t.action_ptr[s] : s * t.actions;
    end = t.action_ptr ? (i64)t.action_ptr[s + 1] : row + t.actions;
}

// Own and halo values into both buffers (a sweep writes own states only).
extern "C" __global__ void gather(const Table* table, const double* values, double* a, double* b) {
    const Table& t = *table;
    i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < t.n) a[i] = values[t.first + i];
    else if (i < t.n + t.h) a[i] = b[i] = values[t.halo[i - t.n]];
}

// changes[0], changes[1]: largest rise and fall of a value, as bits of non-negative doubles.
template <class Index, class Real>
__global__ void sweep(const Table* table, const double* in, double* out, int* policy, u64* changes) {
    const Table& t = *table;
    i64 s = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    double up = 0.0, down = 0.0;
    if (s < t.n) {
        i64 row, end;
        rows_of(t, s, row, end);
        int choice = -1;
        double best;
        if (row == end) {
            best = t.terminal ? t.sign * t.terminal[s] : 0.0;
        } else {
            best = -__longlong_as_double(0x7ff0000000000000ll);
            choice = 0;
            for (i64 j = row; j < end; ++j) {
                double q = row_value<Index, Real>(t, in, j);
                if (q > best) { best = q; choice = (int)(j - row); }
            }
        }
        double change = best - in[s];
        if (change > 0) up = change; else down = -change;
        out[s] = best;
        policy[t.first + s] = choice;
    }
    block_max((u64)__double_as_longlong(up), changes);
    block_max((u64)__double_as_longlong(fabs(down)), changes + 1);
}

// report: [0] boundary rise, [1] boundary fall (bits of non-negative doubles), [2] rank of the largest changed
// boundary value, [3] rank of the largest value, [4] rank of minus the smallest.
extern "C" __global__ void scatter(const Table* table, const double* in, double* values, u64* report) {
    const Table& t = *table;
    i64 s = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    double up = 0.0, down = 0.0;
    u64 changed = 0, largest = 0, smallest = 0;
    if (s < t.n) {
        double now = in[s], change = now - values[t.first + s];
        if (t.boundary[s] && change != 0.0) {
            if (change > 0) up = change; else down = -change;
            changed = rank_of(now);
        }
        largest = rank_of(now);
        smallest = rank_of(-now);
        values[t.first + s] = now;
    }
    block_max((u64)__double_as_longlong(up), report);
    block_max((u64)__double_as_longlong(down), report + 1);
    block_max(changed, report + 2);
    block_max(largest, report + 3);
    block_max(smallest, report + 4);
}

// report, all ranks: [0] rise, [1] fall of the normalised residual, [2] rise, [3] fall of the plain one (of either sign;
// falls are those of the policy's action), [4] the largest B + V where |B| > significant. A state that has no policy yet
// gets its greedy action.
template <class Index, class Real>
__global__ void measure(const Table* table, const double* in, int* policy, double row_sum, double significant,
                        u64* report) {
    const Table& t = *table;
    i64 s = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    u64 rise = 0, fall = 0, plain_rise = 0, plain_fall = 0, largest = 0;   // below the rank of any number
    if (s < t.n) {
        i64 row, end;
        rows_of(t, s, row, end);
        double best, normalised, kept, kept_normalised;
        if (row == end) {
            best = t.terminal ? t.sign * t.terminal[s] : 0.0;
            normalised = kept = kept_normalised = best - in[s];
        } else {
            best = normalised = -__longlong_as_double(0x7ff0000000000000ll);
            kept = kept_normalised = 0.0;
            i64 chosen = policy[t.first + s], greedy = 0;
            for (i64 j = row; j < end; ++j) {
                double q = row_value<Index, Real>(t, in, j);
                double scaled = (q - in[s]) / (1.0 - (t.discounts ? t.discounts[j] : t.discount) * row_sum);
                if (q > best) { best = q; greedy = j - row; }
                normalised = fmax(normalised, scaled);
                if (j - row == chosen || (chosen < 0 && greedy == j - row)) { kept = q - in[s]; kept_normalised = scaled; }
            }
            if (chosen < 0) policy[t.first + s] = (int)greedy;
        }
        double residual = best - in[s];
        rise = rank_of(normalised);
        fall = rank_of(-kept_normalised);
        plain_rise = rank_of(residual);
        plain_fall = rank_of(-kept);
        if (fabs(residual) > significant) largest = rank_of(best);
    }
    block_max(rise, report);
    block_max(fall, report + 1);
    block_max(plain_rise, report + 2);
    block_max(plain_fall, report + 3);
    block_max(largest, report + 4);
}
