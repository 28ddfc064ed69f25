// One resident partition as simple kernels see it, and the value of one of its rows.
//
// Every kernel of a pass has this signature and no other:
//
//     extern "C" __global__ void NAME(const Table* table, const double* in, double* out, int* policy, double* change,
//                                     char* workspace)
//
//     in, out    [n + h] local values: own states, then the halo. A pass reads `in` and writes the own states of `out`,
//                whose halo is there already: two buffers, so that a pass has one result.
//     policy     of the whole model: the action of own state s is policy[first + s], -1 where it has no action.
//     change     [n] new - old of each own state in its last backup: what a test of convergence looks at.
//     workspace  as many bytes as the catalogue's entry asks for, or null; cleared when a solve begins, and kept from
//                launch to launch.
//
// Compiled with INDEX and REAL, the types of successors and of probabilities and rewards, and without fused
// multiply-add: a row that is read in stored order by one thread has the CPU's value, bit for bit, whatever the launch.
//
// Which thread owns what: one thread each function's row. Bytes a row: its transitions (index, probability), its reward,
// a discount where rows differ in it, and its successors' values through the second-level cache.

// Lies at the start of the partition's own allocation.
struct Table {
    const unsigned* action_ptr;      // [n+1], or null: `actions` rows a state
    const unsigned* successor_ptr;   // [m+1], or null: `width` transitions a row
    const void* successors;          // [nnz] INDEX
    const void* probabilities;       // [nnz] REAL
    const void* rewards;             // [m] REAL
    const double* discounts;         // [m], or null: `discount`
    const double* terminal;          // [n], or null: 0
    const i64* halo;                 // [h]
    const unsigned char* boundary;   // [n]
    i64 first, n, h, actions, width;
    double discount, sign;
};

__device__ __forceinline__ void rows_of(const Table& t, i64 s, i64& row, i64& end) {
    row = t.action_ptr ? (i64)t.action_ptr[s] : s * t.actions;
    end = t.action_ptr ? (i64)t.action_ptr[s + 1] : row + t.actions;
}

__device__ __forceinline__ void transitions_of(const Table& t, i64 row, i64& lo, i64& hi) {
    lo = t.successor_ptr ? (i64)t.successor_ptr[row] : row * t.width;
    hi = t.successor_ptr ? (i64)t.successor_ptr[row + 1] : lo + t.width;
}

__device__ __forceinline__ i64 row_count(const Table& t) { return t.action_ptr ? (i64)t.action_ptr[t.n] : t.n * t.actions; }

__device__ __forceinline__ i64 transition_count(const Table& t) {
    const i64 rows = row_count(t);
    return t.successor_ptr ? (i64)t.successor_ptr[rows] : rows * t.width;
}

// The row of transition k < transition_count(t). Where rows differ it is searched for, outwards from the place where it
// would lie if they did not: a few reads where they hardly differ, twice the logarithm of the distance elsewhere.
__device__ __forceinline__ i64 row_of_transition(const Table& t, i64 k) {
    if (!t.successor_ptr) return k / t.width;
    const unsigned* ptr = t.successor_ptr;
    const i64 rows = row_count(t), guess = (i64)((double)k / ptr[rows] * rows);
    i64 low = guess < rows ? guess : rows - 1, high = low + 1;
    for (i64 step = 1; ptr[low] > k; step *= 2) { high = low; low = low > step ? low - step : 0; }
    for (i64 step = 1; ptr[high] <= k; step *= 2) { low = high; high = high + step < rows ? high + step : rows; }
    while (high - low > 1) {   // ptr[low] <= k < ptr[high]
        const i64 middle = (low + high) / 2;
        if (ptr[middle] <= k) low = middle; else high = middle;
    }
    return low;
}

__device__ __forceinline__ i64 successor_of(const Table& t, i64 k) { return (i64)((const INDEX*)t.successors)[k]; }

__device__ __forceinline__ double probability_of(const Table& t, i64 k) {
    return (double)((const REAL*)t.probabilities)[k];
}

__device__ __forceinline__ double discount_of(const Table& t, i64 row) { return t.discounts ? t.discounts[row] : t.discount; }

// A row's value from the sum of its successors' values, each times its probability.
__device__ __forceinline__ double value_of_sum(const Table& t, i64 row, double total) {
    return t.sign * (double)((const REAL*)t.rewards)[row] + discount_of(t, row) * total;
}

__device__ __forceinline__ double row_value(const Table& t, const double* in, i64 row) {
    i64 lo, hi;
    transitions_of(t, row, lo, hi);
    double total = 0.0;
    for (i64 k = lo; k < hi; ++k) total += probability_of(t, k) * in[successor_of(t, k)];
    return value_of_sum(t, row, total);
}

__device__ __forceinline__ double terminal_value(const Table& t, i64 s) { return t.terminal ? t.sign * t.terminal[s] : 0.0; }
