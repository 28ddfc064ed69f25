// One resident partition as simple kernels see it, and the value of one of its rows.
//
// Rows are read in stored order, by one thread each, so results do not depend on the launch shape and equal the CPU's for
// the same input (compiled without fused multiply-add).

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
