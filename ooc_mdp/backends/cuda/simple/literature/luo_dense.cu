// Dense value iteration: Y. Luo and P. Koettering, "Solving Large MDPs with Value-Iteration on Multi-GPU Systems", New
// York University, algorithms 2 and 3.
//
//   V'(s) <- max_a { sign r(s,a) + g(s,a) sum_s' T(s,a,s') V(s') },    T of every pair of states, zeros included
//
//   T in the workspace      a row for each state and action, a column for each local state
//     row 0     s' = 0 1 2 .. n-1 | halo        warp w of a state's block adds up rows w, w + 8, ...: lane l the columns
//     row 1     s' = 0 1 2 .. n-1 | halo        l, l + 32, ..., then a tree over the 32 partial sums
//
// Which thread owns what: in dense_table a warp owns a row of T, and some 8 in turn. In dense_states a block owns
// a state, a warp every eighth of its actions, a lane every 32nd successor. The tree over actions has two levels: each
// warp keeps the best of its own, and the block compares its 8 warps.
// Bytes a backup: 8 (n + h) for each action, read in order whatever the model; values come through the caches. T is
// written once and stays in the workspace until another partition is swept: a model in one partition is expanded once.
// Why not simpler: plain.cu reads stored transitions only, which is less by the share of zeros; a dense table pays where
// almost every state follows almost every other. A thread an action, as in the paper, reads columns of T a row apart.
//
// Where this departs from the paper: (1) it has rewards R(s,a,s') in a second table of the same size, here rows have
// their expected reward, so that half the bytes are read; (2) a thread adds up a whole row, here a warp does; (3) its
// second level is a kernel of its own, after a synchronisation, here a barrier; (4) the table is resident: moving
// T(s,:,:) to the device for each state in each pass, as algorithm 2 does, is measured in benchmarks/papers, as are
// algorithm 3 and this kernel on the rows of several devices.
// Sums are float64, always added in the same order, though not in that of a single thread: runs repeat bit for bit, and
// differ from a Jacobi sweep by rounding.

#define LANES 32        // of a warp
#define WARPS 8         // of a block
#define TABLE_AT 32     // doubles; the first of them has which partition is expanded

// 1 + the first state of the expanded partition; 0 at the start of a solve, when the workspace is cleared.
__device__ __forceinline__ i64* expanded(char* workspace) { return (i64*)workspace; }

extern "C" __global__ void dense_table(const Table* table, const double* in, double* out, int* policy, double* change,
                                       char* workspace) {
    const Table& t = *table;
    if (*expanded(workspace) == t.first + 1) return;
    double* dense = (double*)workspace + TABLE_AT;
    const i64 rows = row_count(t), columns = t.n + t.h, warps = (i64)gridDim.x * WARPS;
    const int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    for (i64 row = (i64)blockIdx.x * WARPS + warp; row < rows; row += warps) {
        double* own = dense + row * columns;
        for (i64 s = lane; s < columns; s += LANES) own[s] = 0.0;
        __syncwarp();
        i64 lo, hi;
        transitions_of(t, row, lo, hi);
        // A row may have a successor twice.
        for (i64 k = lo + lane; k < hi; k += LANES) atomicAdd(own + successor_of(t, k), probability_of(t, k));
    }
}

extern "C" __global__ void dense_states(const Table* table, const double* in, double* out, int* policy, double* change,
                                        char* workspace) {
    __shared__ double best_of[WARPS];
    __shared__ i64 row_of[WARPS];
    const Table& t = *table;
    const double* dense = (const double*)workspace + TABLE_AT;
    const i64 s = blockIdx.x, columns = t.n + t.h;
    const int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    i64 row, end;
    rows_of(t, s, row, end);
    double best = minus_infinity();
    i64 choice = end;
    for (i64 j = row + warp; j < end; j += WARPS) {
        const double* own = dense + j * columns;
        double total = 0.0;
        for (i64 to = lane; to < columns; to += LANES) total += own[to] * in[to];
        for (int by = LANES / 2; by; by /= 2) total += __shfl_xor_sync(0xffffffffu, total, by);
        const double q = value_of_sum(t, j, total);
        if (q > best) { best = q; choice = j; }
    }
    if (lane == 0) { best_of[warp] = best; row_of[warp] = choice; }
    for (int left = WARPS / 2; left; left /= 2) {
        __syncthreads();
        const int one = threadIdx.x, other = one + left;
        if (one >= left) continue;
        const bool tie = best_of[other] == best_of[one] && row_of[other] < row_of[one];   // the lowest action
        if (best_of[other] > best_of[one] || tie) { best_of[one] = best_of[other]; row_of[one] = row_of[other]; }
    }
    if (threadIdx.x) return;
    out[s] = row < end ? best_of[0] : terminal_value(t, s);
    policy[t.first + s] = row < end ? (int)(row_of[0] - row) : -1;
    change[s] = out[s] - in[s];
    if (s == 0) *expanded(workspace) = t.first + 1;   // every block of dense_table has looked
}
