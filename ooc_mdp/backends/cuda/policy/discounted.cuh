// The equation of a discounted policy, V = r + g P V, for the solver: after policy/rows.cu, before policy/krylov.cu.

// What a state's value misses.
__device__ __forceinline__ double missing_of(const Evaluation& e, const Chunk& c, u32 i, i64 state) {
    return backup_of(e, c, i, state) - e.values[state];
}

// (1 - g P) x of a state.
__device__ __forceinline__ double product_of(const Evaluation& e, const Chunk& c, u32 i, i64 state, const double* x) {
    const double g = discount_at(e, state);
    return x[state] - g * expected(e.rows, c, i, x);
}
