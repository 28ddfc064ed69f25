// Block Divided Iteration: Johannsson, "GPU-Based Markov Decision Process Solver", Reykjavik University 2009, section
// 3.2.1, algorithm 2; with BUFFERED, section 3.3.1.
//
//   V_s(s) <- max_a { sign r(s,a) + g(s,a) sum_k p_k V_s(succ_k if in the block) or V_in(succ_k) },    ITERATIONS times
//
// Which thread owns what: block b the states b BLOCK .. (b + 1) BLOCK - 1 of a partition, a thread one of them. Values of
// the block lie in shared memory; those of other blocks and of the halo stay what they were before the launch.
// Bytes a backup: in the first iteration a state's rows, as stored, and its successors' values through the caches; in
// the others rows again, from the caches if a block's rows fit there (the paper had them in texture memory), and shared
// memory for successors in the block. BUFFERED: ACTIONS * WIDTH values a thread in shared memory, gathered once, so that
// no later iteration reads a value from device memory.
// Why not simpler: one Jacobi sweep a launch (plain.cu) needs ITERATIONS launches for what this does in one, but moves
// information as far as so many states, also across blocks; here it leaves a block once a launch. That is the paper's
// own finding: 25.5 times faster a sweep than one core, 11.7 times to convergence.
//
// Where this departs from the paper: (1) it reads other blocks' values while these may be writing theirs, here a pass
// has two buffers, so that it has one result; (2) it has one barrier an iteration, here there are two, for the same
// reason; (3) like the paper it tests the change of the last iteration, which bounds no residual, since what other
// blocks did in the same launch is not in it: residuals are measured afterwards.
//
// Compiled with BLOCK, ITERATIONS, BUFFERED, and ACTIONS and WIDTH, which are 1 where rows differ.

extern "C" __global__ void __launch_bounds__(BLOCK) bdi(const Table* table, const double* in, double* out, int* policy,
                                                        double* change, char* workspace) {
    __shared__ double own[BLOCK];
    const Table& t = *table;
    const i64 first = (i64)blockIdx.x * BLOCK, s = first + threadIdx.x;
    const bool mine = s < t.n;
    i64 row = 0, end = 0;
    double value = 0.0, idle = 0.0;   // idle: the value of a state without actions
    if (mine) {
        rows_of(t, s, row, end);
        value = in[s];
        idle = terminal_value(t, s);
    }
    own[threadIdx.x] = value;
#if BUFFERED
    __shared__ double outside[ACTIONS * WIDTH][BLOCK];
    for (i64 k = row * WIDTH; k < end * WIDTH; ++k) outside[k - row * WIDTH][threadIdx.x] = in[successor_of(t, k)];
#endif
    __syncthreads();
    double last = 0.0;
    int choice = -1;
    for (int iteration = 0; iteration < ITERATIONS; ++iteration) {
        double best = row < end ? minus_infinity() : idle;
        choice = row < end ? 0 : -1;
        for (i64 j = row; j < end; ++j) {
            i64 lo, hi;
            transitions_of(t, j, lo, hi);
            double total = 0.0;
            for (i64 k = lo; k < hi; ++k) {
                const i64 to = successor_of(t, k);
                const bool inside = to >= first && to < first + BLOCK && to < t.n;
#if BUFFERED
                const double v = inside ? own[to - first] : outside[k - row * WIDTH][threadIdx.x];
#else
                const double v = inside ? own[to - first] : in[to];
#endif
                total += probability_of(t, k) * v;
            }
            const double q = value_of_sum(t, j, total);
            if (q > best) { best = q; choice = (int)(j - row); }
        }
        __syncthreads();   // everybody has read the values of the iteration before
        last = best - value;
        value = best;
        own[threadIdx.x] = value;
        __syncthreads();
    }
    if (mine) {
        out[s] = value;
        policy[t.first + s] = choice;
        change[s] = last;
    }
}
