// Result Divided Iteration: Johannsson, "GPU-Based Markov Decision Process Solver", Reykjavik University 2009, section
// 3.2.2, algorithm 3.
//
//   results(k) <- p_k V(succ_k)     for every transition k
//   Q(s,a)     <- sign r(s,a) + g(s,a) sum of the results of the row
//   V(s)       <- max_a Q(s,a)
//
// Which thread owns what: in the first launch a thread a transition, in the second a thread a row, in the third a thread
// a state. Results and then Q lie in the workspace.
// Bytes a backup: as plain.cu, and 16 more a transition and a row, which are written and read again.
// Why not simpler: plain.cu has a thread a state, which leaves a device idle where there are few states with many
// actions; here as many threads work as there are transitions, whatever the shape of the model.
//
// Where this departs from the paper: (1) its rewards belong to transitions and are added in the first launch, here they
// belong to rows; (2) it writes the value vector that it reads, which is the same as it has read all of it before;
// (3) products are added by one thread a row in stored order, so that bits agree with plain.cu.

extern "C" __global__ void rdi_results(const Table* table, const double* in, double* out, int* policy, double* change,
                                       char* workspace) {
    const Table& t = *table;
    const i64 k = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (k < transition_count(t)) ((double*)workspace)[k] = probability_of(t, k) * in[successor_of(t, k)];
}

extern "C" __global__ void rdi_actions(const Table* table, const double* in, double* out, int* policy, double* change,
                                       char* workspace) {
    const Table& t = *table;
    const double* results = (const double*)workspace;
    double* q = (double*)workspace + transition_count(t);
    const i64 row = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= row_count(t)) return;
    i64 lo, hi;
    transitions_of(t, row, lo, hi);
    double total = 0.0;
    for (i64 k = lo; k < hi; ++k) total += results[k];
    q[row] = value_of_sum(t, row, total);
}

extern "C" __global__ void rdi_states(const Table* table, const double* in, double* out, int* policy, double* change,
                                      char* workspace) {
    const Table& t = *table;
    const double* q = (const double*)workspace + transition_count(t);
    const i64 s = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (s >= t.n) return;
    i64 row, end;
    rows_of(t, s, row, end);
    int choice = row < end ? 0 : -1;
    double best = row < end ? minus_infinity() : terminal_value(t, s);
    for (i64 j = row; j < end; ++j)
        if (q[j] > best) { best = q[j]; choice = (int)(j - row); }
    out[s] = best;
    policy[t.first + s] = choice;
    change[s] = best - in[s];
}
