// The hybrid of Block and Result Divided Iteration that is future work in Johannsson, "GPU-Based Markov Decision Process
// Solver", Reykjavik University 2009, chapter 7: "each action would be assigned to a thread. It would offer the
// opportunity to use shared memory but be more fine grained than the BDI algorithm."
//
//   Q(s,a) <- sign r(s,a) + g(s,a) sum_k p_k V_s(succ_k if in the block) or V_in(succ_k)     a thread a row
//   V_s(s) <- max_a Q(s,a)                                                                   a thread a state, both
//                                                                                            ITERATIONS times
//
// Which thread owns what: block b the states b STATES .. (b + 1) STATES - 1 of a partition. Its rows are taken THREADS at
// a time, in stored order: a thread puts the value of its row into shared memory, then the first STATES threads take
// into their state's maximum what was put there of its rows. With 4 actions a state and THREADS = 4 STATES that is
// once an iteration. Values of the block lie in shared memory; those outside stay what they were before the launch.
// Bytes a backup: as johannsson_bdi.cu; values of rows never leave the multiprocessor, as they do in johannsson_rdi.cu.
// Why not simpler: in bdi a thread goes through all rows of its state one after the other, which a model with few
// states and many actions waits for; here its rows are computed at the same time.
//
// Where this goes beyond the paper: it says no more than what is quoted. As in bdi, a pass has two buffers and barriers
// where it would otherwise depend on the order of threads.
//
// Compiled with STATES, THREADS >= STATES, and ITERATIONS.

extern "C" __global__ void __launch_bounds__(THREADS) rdi_block(const Table* table, const double* in, double* out,
                                                                int* policy, double* change, char* workspace) {
    __shared__ double own[STATES], q[THREADS];
    const Table& t = *table;
    const i64 first = (i64)blockIdx.x * STATES, last = first + STATES < t.n ? first + STATES : t.n;
    const i64 s = first + threadIdx.x;
    const bool mine = s < last;   // threads that own a state beside rows
    i64 block_row, block_end, row = 0, end = 0, unused;
    rows_of(t, first, block_row, unused);
    rows_of(t, last - 1, unused, block_end);
    double value = 0.0, idle = 0.0, moved = 0.0;
    if (mine) {
        rows_of(t, s, row, end);
        own[threadIdx.x] = value = in[s];
        idle = terminal_value(t, s);
    }
    __syncthreads();
    int choice = -1;
    for (int iteration = 0; iteration < ITERATIONS; ++iteration) {
        double best = row < end ? minus_infinity() : idle;
        choice = row < end ? 0 : -1;
        for (i64 from = block_row; from < block_end; from += THREADS) {
            const i64 j = from + threadIdx.x, to = from + THREADS;
            if (j < block_end) {
                i64 lo, hi;
                transitions_of(t, j, lo, hi);
                double total = 0.0;
                for (i64 k = lo; k < hi; ++k) {
                    const i64 successor = successor_of(t, k);
                    const bool inside = successor >= first && successor < last;
                    total += probability_of(t, k) * (inside ? own[successor - first] : in[successor]);
                }
                q[threadIdx.x] = value_of_sum(t, j, total);
            }
            __syncthreads();   // all values of these rows are there
            for (i64 i = row > from ? row : from; i < (end < to ? end : to); ++i)
                if (q[i - from] > best) { best = q[i - from]; choice = (int)(i - row); }
            __syncthreads();   // everybody has read them, and values of the iteration before
        }
        if (mine) {
            moved = best - value;
            own[threadIdx.x] = value = best;
        }
        __syncthreads();
    }
    if (mine) {
        out[s] = value;
        policy[t.first + s] = choice;
        change[s] = moved;
    }
}
