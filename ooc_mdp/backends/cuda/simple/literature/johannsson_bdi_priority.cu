// Block Divided Iteration with priorities: Johannsson, "GPU-Based Markov Decision Process Solver", Reykjavik University
// 2009, section 3.3.2, without the buffers of section 3.3.1.
//
//   each pass a thread backs up the state of its own that has the largest   |delta_s| + U / updates_s     (equation 3.1)
//
// Which thread owns what: block b the states b BLOCK STATES .. (b + 1) BLOCK STATES - 1 of a partition; thread t of it the
// states t, t + BLOCK, t + 2 BLOCK, ... of these, STATES at most, so that neighbours read neighbouring rows. Values of the
// block lie in shared memory, changes and numbers of updates in registers; values outside stay what they were.
// Bytes a backup: as bdi.cu, but threads of a warp that choose different states read rows that do not lie together.
// Why not simpler: bdi.cu backs up every state as often as any other, whether its value still changes or not.
//
// A state without an update comes first, as U / 0 says, so a launch backs up every state: BACKUPS times on average. A
// thread with fewer than STATES states makes fewer passes, so that the average holds there too.
//
// Where this departs from the paper: (1) to (3) of bdi.cu; (4) the paper keeps changes from launch to launch, here a
// launch begins without: as every state's first update comes before any second one, they would only order these; (5) the
// paper gives no U: 1, in the unit of the rewards, makes a thread prefer what changes by more than that and otherwise
// take turns. Ties go to the lowest state.
//
// Compiled with BLOCK, STATES, BACKUPS and UPDATE_CONSTANT.

extern "C" __global__ void __launch_bounds__(BLOCK) bdi_priority(const Table* table, const double* in, double* out,
                                                                 int* policy, double* change, char* workspace) {
    __shared__ double own[BLOCK * STATES];
    const Table& t = *table;
    const i64 first = (i64)blockIdx.x * (BLOCK * STATES);
    double delta[STATES];
    int updates[STATES], choice[STATES], states = 0;
#pragma unroll
    for (int j = 0; j < STATES; ++j) {
        const int at = threadIdx.x + j * BLOCK;
        if (first + at < t.n) { own[at] = in[first + at]; states = j + 1; }
        delta[j] = 0.0;
        updates[j] = 0;
        choice[j] = -1;
    }
    __syncthreads();
    for (int pass = 0; pass < BACKUPS * STATES; ++pass) {
        const bool active = pass < BACKUPS * states;
        int chosen = 0, action = -1;
        double best = 0.0;
        if (active) {
            double most = minus_infinity();
#pragma unroll
            for (int j = 0; j < STATES; ++j) {
                if (j >= states) continue;
                const double due = updates[j] ? fabs(delta[j]) + (double)UPDATE_CONSTANT / updates[j] : infinity();
                if (due > most) { most = due; chosen = j; }
            }
            const i64 s = first + threadIdx.x + chosen * BLOCK;
            i64 row, end;
            rows_of(t, s, row, end);
            action = row < end ? 0 : -1;
            best = row < end ? minus_infinity() : terminal_value(t, s);
            for (i64 j = row; j < end; ++j) {
                i64 lo, hi;
                transitions_of(t, j, lo, hi);
                double total = 0.0;
                for (i64 k = lo; k < hi; ++k) {
                    const i64 to = successor_of(t, k);
                    const bool inside = to >= first && to < first + BLOCK * STATES && to < t.n;
                    total += probability_of(t, k) * (inside ? own[to - first] : in[to]);
                }
                const double q = value_of_sum(t, j, total);
                if (q > best) { best = q; action = (int)(j - row); }
            }
        }
        __syncthreads();   // everybody has read the values of the pass before
        if (active) {
            const int at = threadIdx.x + chosen * BLOCK;
            const double moved = best - own[at];
            own[at] = best;
#pragma unroll
            for (int j = 0; j < STATES; ++j)   // by constants, so that the arrays stay in registers
                if (j == chosen) { delta[j] = moved; choice[j] = action; ++updates[j]; }
        }
        __syncthreads();
    }
#pragma unroll
    for (int j = 0; j < STATES; ++j) {
        const i64 s = first + threadIdx.x + j * BLOCK;
        if (s >= t.n) continue;
        out[s] = own[s - first];
        policy[t.first + s] = choice[j];
        change[s] = delta[j];
    }
}
