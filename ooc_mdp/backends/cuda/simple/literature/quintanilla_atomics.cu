// Two steps a sweep: A. Quintanilla, A. Kolisetti, "Parallelizing Markov Decision Process Problems", sections 2 and 3.
//
//   u(s,a) <- 0,   u(s,a) += p_k in[succ_k] for every transition k,   out[s] = max_a { sign r(s,a) + g(s,a) u(s,a) }
//
// Which thread owns what: in clear_rows a row, in add_transitions a transition, which it adds to the sum of its row by
// atomicAdd, in best_of_rows a state, whose rows it compares one after the other, as the paper does. With fewer threads
// than there are rows, transitions or states each takes every (all threads)-th of them: the paper's tables 3 to 7 have 2
// to 8 blocks.
// Bytes a transition: its successor and probability, the successor's value through the second-level cache, a pointer of
// the search for its row, and 16 of the sum that the atomic reads and writes there; a row: 8 cleared, 8 read, its reward.
// Why not simpler: a thread a state (plain.cu) reads the same transitions, adds them in a register and needs neither
// sums in device memory nor a second launch, so it moves fewer bytes. This kernel has a thread for each transition, so
// that rows of any length share out evenly: that is the paper's reason, and its section 3.1 found it slower all the same.
//
// Where this departs from the paper: (1) sums and values are float64; (2) its list has state and action with each
// transition, here the row is found from the pointers to the rows; (3) rewards belong to rows, not to states.
// The order in which atomics add is not fixed, so values may differ in their last bits from run to run.

extern "C" __global__ void clear_rows(const Table* table, const double* in, double* out, int* policy, double* change,
                                      char* workspace) {
    const i64 rows = row_count(*table), all = (i64)gridDim.x * blockDim.x;
    for (i64 j = (i64)blockIdx.x * blockDim.x + threadIdx.x; j < rows; j += all) ((double*)workspace)[j] = 0.0;
}

extern "C" __global__ void add_transitions(const Table* table, const double* in, double* out, int* policy, double* change,
                                           char* workspace) {
    const Table& t = *table;
    double* sums = (double*)workspace;
    const i64 transitions = transition_count(t), all = (i64)gridDim.x * blockDim.x;
    for (i64 k = (i64)blockIdx.x * blockDim.x + threadIdx.x; k < transitions; k += all)
        atomicAdd(sums + row_of_transition(t, k), probability_of(t, k) * in[successor_of(t, k)]);
}

extern "C" __global__ void best_of_rows(const Table* table, const double* in, double* out, int* policy, double* change,
                                        char* workspace) {
    const Table& t = *table;
    const double* sums = (const double*)workspace;
    const i64 all = (i64)gridDim.x * blockDim.x;
    for (i64 s = (i64)blockIdx.x * blockDim.x + threadIdx.x; s < t.n; s += all) {
        i64 row, end;
        rows_of(t, s, row, end);
        int choice = row < end ? 0 : -1;
        double best = row < end ? minus_infinity() : terminal_value(t, s);
        for (i64 j = row; j < end; ++j) {
            const double q = value_of_sum(t, j, sums[j]);
            if (q > best) { best = q; choice = (int)(j - row); }
        }
        out[s] = best;
        policy[t.first + s] = choice;
        change[s] = best - in[s];
    }
}
