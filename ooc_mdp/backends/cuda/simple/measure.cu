// Residuals of one partition, measured without changing a value: what is proved rests on it, whatever swept before.
//
// Which thread owns what: thread s own state s. Bytes a state: its rows once (index, probability, reward), its successors'
// values through the second-level cache, 12 of its own. Why not within the sweeps: a sweep's largest change bounds the
// residual of the values before it; this gives that of the values as they are, from both sides.

// report, all encoded: [0] rise, [1] fall of the normalised residual, [2] rise, [3] fall of the plain one (of either sign;
// falls are those of the policy's action), [4] the largest B + V where |B| > significant. A state that has no policy yet
// gets its greedy action.
extern "C" __global__ void measure(const Table* table, const double* in, int* policy, double row_sum,
                                   double significant, u64* report) {
    const Table& t = *table;
    i64 s = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    u64 rise = 0, fall = 0, plain_rise = 0, plain_fall = 0, largest = 0;   // below the encoding of any number
    if (s < t.n) {
        i64 row, end;
        rows_of(t, s, row, end);
        double best, normalised, kept, kept_normalised;
        if (row == end) {
            best = terminal_value(t, s);
            normalised = kept = kept_normalised = best - in[s];
        } else {
            best = normalised = minus_infinity();
            kept = kept_normalised = 0.0;
            i64 chosen = policy[t.first + s], greedy = 0;
            for (i64 j = row; j < end; ++j) {
                double q = row_value(t, in, j);
                double scaled = (q - in[s]) / (1.0 - discount_of(t, j) * row_sum);
                if (q > best) { best = q; greedy = j - row; }
                normalised = fmax(normalised, scaled);
                if (j - row == chosen || (chosen < 0 && greedy == j - row)) { kept = q - in[s]; kept_normalised = scaled; }
            }
            if (chosen < 0) policy[t.first + s] = (int)greedy;
        }
        double residual = best - in[s];
        rise = encoded(normalised);
        fall = encoded(-kept_normalised);
        plain_rise = encoded(residual);
        plain_fall = encoded(-kept);
        if (fabs(residual) > significant) largest = encoded(best);
    }
    raise_to_block_max(rise, report);
    raise_to_block_max(fall, report + 1);
    raise_to_block_max(plain_rise, report + 2);
    raise_to_block_max(plain_fall, report + 3);
    raise_to_block_max(largest, report + 4);
}
