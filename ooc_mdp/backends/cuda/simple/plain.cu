// Jacobi sweeps of one resident partition; plain and correct, the measure for anything faster.
//
//   out[s] = max_a { sign r(s,a) + g(s,a) sum_k p_k in[succ_k] },   s = 0 .. n-1 own states,  in[n ..] = halo values
//
// Which thread owns what: thread s state s and its rows. Ties go to the lowest action.
// Bytes a backup: its rows once (index, probability, reward), its successors' values through L2, 20 bytes out.
// Not the simpler in-place version: with a racing mix of old and new values the change of a sweep would still bound
// the residual, but runs would not repeat.

extern "C" __global__ void sweep(const Table* table, const double* in, double* out, int* policy, double* change,
                                 char* workspace) {
    const Table& t = *table;
    const i64 s = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (s >= t.n) return;
    i64 row, end;
    rows_of(t, s, row, end);
    int choice = row < end ? 0 : -1;
    double best = row < end ? minus_infinity() : terminal_value(t, s);
    for (i64 j = row; j < end; ++j) {
        const double q = row_value(t, in, j);
        if (q > best) { best = q; choice = (int)(j - row); }
    }
    out[s] = best;
    policy[t.first + s] = choice;
    change[s] = best - in[s];
}
