// The segmented reduction that A. Quintanilla and A. Kolisetti, "Parallelizing Markov Decision Process Problems", name
// as future work in section 7, in the place of the atomics of quintanilla_atomics.cu.
//
//   lane            0    1    2    3    4    5   ...  31  |  32 ...
//   row             7    8    8    8    9    9   ...  17  |  17 ...
//   sums of rows    x    .    .    x    .    x   ...      |   x            the last transition of a row writes its sum
//   carry of warp                                      x  |                what of row 17 lies in the first warp
//
// Which thread owns what: in add_segments a transition, a warp 32 consecutive ones. The lanes of a row add up their
// products by shuffles, in 5 steps whatever the length of the row. The last lane of a row writes its sum; where a row
// goes on in the next warp, the last lane of the warp writes what there is of it as the warp's carry. In best_of_carries
// a thread owns a state: it adds to the sum of a row the carries of the warps before, and compares the rows.
// Bytes a transition: its successor and probability, the successor's value through the second-level cache, pointers of
// its row, a quarter of a byte of carry; a row: 8 written and 8 read, its pointers and reward. No atomics, and nothing
// to clear beforehand.
// Why not simpler: a thread a row, or a thread a state (plain.cu), adds in stored order without shuffles, but waits for
// the longest of a warp's rows, and reads transitions a row apart. That is what rows of different lengths cost.
//
// Sums are float64, always added in the same order, though not in that of a single thread: runs repeat bit for bit, and
// differ from a Jacobi sweep by rounding. Blocks must be of whole warps.

#define LANES 32

extern "C" __global__ void add_segments(const Table* table, const double* in, double* out, int* policy, double* change,
                                        char* workspace) {
    const Table& t = *table;
    double *sums = (double*)workspace, *carries = sums + row_count(t);
    const int lane = threadIdx.x % LANES;
    const i64 transitions = transition_count(t), all = (i64)gridDim.x * blockDim.x;
    // `base` is the same in a warp's lanes, which therefore meet in every shuffle.
    for (i64 base = (i64)blockIdx.x * blockDim.x + threadIdx.x - lane; base < transitions; base += all) {
        const i64 k = base + lane;
        i64 row = 0, first = k, end = 0;   // beyond the last transition: a row of its own, which ends nowhere
        double sum = 0.0;
        if (k < transitions) {
            row = row_of_transition(t, k);
            transitions_of(t, row, first, end);
            sum = probability_of(t, k) * in[successor_of(t, k)];
        }
        const i64 head = first > base ? first - base : 0;   // the lane at which the row begins in this warp
        for (int by = 1; by < LANES; by *= 2) {
            const double before = __shfl_up_sync(0xffffffffu, sum, by);
            if (lane - by >= head) sum += before;
        }
        if (k + 1 == end) sums[row] = sum;
        else if (k < transitions && lane == LANES - 1) carries[k / LANES] = sum;
    }
}

extern "C" __global__ void best_of_carries(const Table* table, const double* in, double* out, int* policy, double* change,
                                           char* workspace) {
    const Table& t = *table;
    const double *sums = (const double*)workspace, *carries = sums + row_count(t);
    const i64 all = (i64)gridDim.x * blockDim.x;
    for (i64 s = (i64)blockIdx.x * blockDim.x + threadIdx.x; s < t.n; s += all) {
        i64 row, end;
        rows_of(t, s, row, end);
        int choice = row < end ? 0 : -1;
        double best = row < end ? minus_infinity() : terminal_value(t, s);
        for (i64 j = row; j < end; ++j) {
            i64 lo, hi;
            transitions_of(t, j, lo, hi);
            double total = 0.0;
            if (lo < hi) {
                for (i64 warp = lo / LANES; warp < (hi - 1) / LANES; ++warp) total += carries[warp];
                total += sums[j];
            }
            const double q = value_of_sum(t, j, total);
            if (q > best) { best = q; choice = (int)(j - row); }
        }
        out[s] = best;
        policy[t.first + s] = choice;
        change[s] = best - in[s];
    }
}
