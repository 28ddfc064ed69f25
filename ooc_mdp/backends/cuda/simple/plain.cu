// Jacobi sweeps of one resident partition; plain and correct, the measure for anything faster.
//
//   out[s] = max_a { sign r(s,a) + g(s,a) sum_k p_k in[succ_k] },   s = 0 .. n-1 own states,  in[n ..] = halo values
//
// Which thread owns what: thread s state s and its rows. Ties go to the lowest action.
// Bytes a backup: its rows once (index, probability, reward), its successors' values through L2, 12 bytes out.
// Not the simpler in-place version: with a racing mix of old and new values the change of a sweep would still bound
// the residual, but runs would not repeat. Largest changes are kept as bit patterns of non-negative doubles, whose
// order is that of unsigned integers, so one atomicMax a block is enough (block maxima: Inamoto et al., technique 4).

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
            best = minus_infinity();
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
    raise_to_block_max((u64)__double_as_longlong(up), changes);
    raise_to_block_max((u64)__double_as_longlong(fabs(down)), changes + 1);
}
