// Windows with a trap, in which policy iteration is local: after tiles/sweeps.cu.
//
// Where the policy keeps a process among a few states (around the balance of a pendulum, say) their values converge as the
// discount of a step does, over tens of thousands of iterations on a fine grid, and each time they move, all that lead
// to them follow. So a few rounds of a batch are not visits. Each block looks at a *window*: a box of a partition's
// states, as large as a tile, beginning at a tile that is due or half a tile further along some axes, alternately, so that
// what lies across the borders of tiles lies within some window. Iterations tell whether it holds a *trap*: values
// from outside being held, changes that a process carries out of the window die away within a few crossings, and those
// that have hardly shrunk then belong to states that lead to themselves. There the policy's values are solved for, z in
// (1 - G^m) z = T^m V - V, G the policy's discounted transitions within the window and m = STEPS: powers of G leave only
// slow modes to the Krylov space, so that a few of its dimensions are enough (GMRES, Saad and Schultz 1986). Then the
// policy is improved, as in policy iteration. Such a window is looked at in every such round from then on, due or not.
//
// Nothing that is proved rests on it. Values that a window has changed came from outside of tiles, as in `take_values`:
// `accumulated` is raised by as much, last_change = infinity, and tiles are visited in the round that follows. Windows of
// one round may overlap: a state has then changed by no more than all of them together.

#if LOCAL && IN_REGISTERS
#define STEPS 32          // backups between two looks at their changes, and in a power of G
#define POLICIES 8        // that are evaluated at most

// The largest number of a block, or the sum, in all of its threads.
template <bool SUM> __device__ __forceinline__ double of_block(double x) {
    __shared__ double warps[32];
#pragma unroll
    for (int d = 16; d; d >>= 1) {
        const double other = __shfl_xor_sync(0xffffffffu, x, d);
        x = SUM ? x + other : fmax(x, other);
    }
    __syncthreads();
    if ((threadIdx.x & 31) == 0) warps[threadIdx.x >> 5] = x;
    __syncthreads();
    x = (threadIdx.x & 31) < blockDim.x >> 5 ? warps[threadIdx.x & 31] : 0.0;
#pragma unroll
    for (int d = 16; d; d >>= 1) {
        const double other = __shfl_xor_sync(0xffffffffu, x, d);
        x = SUM ? x + other : fmax(x, other);
    }
    return x;
}

__device__ __forceinline__ double largest_of_block(double x) { return of_block<false>(x); }
__device__ __forceinline__ double sum_of_block(double x) { return of_block<true>(x); }

struct Corner {       // of a window, and its size
    u32 at[DIMS], room[DIMS];
};

// The window that begins at a tile or, along the axes of `halves`, half a tile further; whether there is any of it.
__device__ __forceinline__ bool window_at(const Descriptor& p, u32 tile, u32 halves, Corner& w) {
    bool any = true;
#pragma unroll
    for (int d = DIMS - 1; d >= 0; --d) {
        const u32 shape = tile_shape[d], across = (p.extent[d] + shape - 1) / shape;
        w.at[d] = tile % across * shape + (halves >> d & 1 ? shape / 2 : 0);
        tile /= across;
        any = any && w.at[d] < p.extent[d];
        w.room[d] = any ? min(shape, p.extent[d] - w.at[d]) : 0;
    }
    return any;
}

// Offset in the window of a partition's state, or NOWHERE.
__device__ __forceinline__ u32 offset_in(const Descriptor& p, const Corner& w, u32 local) {
    u32 offset = 0, unit = 1;
    bool inside = true;
#pragma unroll
    for (int d = DIMS - 1; d >= 0; --d) {
        const u32 at = (d ? local % p.extent[d] : local) - w.at[d];
        local /= p.extent[d];
        inside = inside && at < w.room[d];   // numbers below the corner wrap round
        offset += at * unit;
        unit *= tile_shape[d];
    }
    return inside ? offset : NOWHERE;
}

// The partition's state at an offset of the window, or NOWHERE.
__device__ __forceinline__ u32 state_in(const Descriptor& p, const Corner& w, u32 offset) {
    u32 local = 0, unit = 1;
    bool inside = offset < BOX;
#pragma unroll
    for (int d = DIMS - 1; d >= 0; --d) {
        const u32 at = d ? offset % tile_shape[d] : offset;
        offset /= tile_shape[d];
        inside = inside && at < w.room[d];
        local += (w.at[d] + at) * unit;
        unit *= p.extent[d];
    }
    return inside ? local : NOWHERE;
}

// A thread's state and its rows within the window: what an action is worth is base + sum of weight * value at.
struct Rowing {
    double base[ACTIONS], weight[ACTIONS * WIDTH];
    u16 at[ACTIONS * WIDTH];
};

__device__ __forceinline__ void open_window(const Engine& e, const Descriptor& p, const char* slot, const Corner& w,
                                            u32 local, Rowing& rows) {
    if (local == NOWHERE) {   // it stays 0
#pragma unroll
        for (int i = 0; i < ACTIONS * WIDTH; ++i) { rows.weight[i] = 0.0; rows.at[i] = 0; }
#pragma unroll
        for (int a = 0; a < ACTIONS; ++a) rows.base[a] = 0.0;
        return;
    }
    u32 tile, offset;
    tile_of(p, local, tile, offset);
    const TileHeader& h = e.headers[p.tile + tile];
    const Record& record = ((const Record*)(slot + AT_TILES))[tile];
    const u32 entry = STATES * (offset % SPREAD) + offset / SPREAD;
#pragma unroll
    for (int a = 0; a < ACTIONS; ++a) {
#if HAS_TAU
        const double discount = factor_of(e, (double)record.durations[a][entry]);
#else
        const double discount = e.discount;
#endif
        double base = e.sign * (double)record.rewards[a][entry];
        REAL last = 1;
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) {
            REAL probability = last;
            if (k < WEIGHTS) {
                probability = record.weights_of()[(a * WEIGHTS + k) * TILE + entry];
                last -= probability;
            }
            const u32 x = record.successors[a * WIDTH + k][entry];
            i64 state = x < TILE ? h.first + state_of(h, x) : (i64)record.halo[x - TILE];
            const bool own = state >= p.first && state < p.first + p.n;
            const u32 there = own ? offset_in(p, w, (u32)(state - p.first)) : NOWHERE;
            const double weight = discount * (double)probability;
            rows.at[a * WIDTH + k] = (u16)(there == NOWHERE ? 0 : there);
            rows.weight[a * WIDTH + k] = there == NOWHERE ? 0.0 : weight;
            if (there == NOWHERE && probability != 0) base += weight * __ldcg(e.values + state);
        }
        rows.base[a] = base;
    }
}

// Values of a window: two copies used alternately, and what a thread knows of its own.
struct Values {
    double* v;          // [2, TILE]
    u32 current;
    double own;
    __device__ const double* now() const { return v + current * TILE; }
    __device__ void next(double value) {
        own = value;
        current ^= 1;
        v[current * TILE + threadIdx.x] = value;
        __syncthreads();
    }
};

struct Changes {
    double halfway, last;    // largest change of the backups in the middle, and of the last
    __device__ bool slow(double weight, double limit) const {
        if (!(last > 0.5 * halfway) || !(last > 0.0)) return false;
        // From a sixteenth of STEPS to the next they shrink by little: what is still to come is their sum.
        const double shrunk = fmax(1.0 - last / halfway, 1e-6) / (STEPS / 2);
        return last * weight > limit * shrunk;
    }
};

// STEPS backups over all actions; the last of the greedy ones.
__device__ __forceinline__ Changes improve(const Rowing& rows, Values& values, int& choice) {
    Changes changes;
    double change = 0.0;
    for (int i = 0; i < STEPS; ++i) {
        const double* v = values.now();
        double best = minus_infinity();
#pragma unroll
        for (int a = 0; a < ACTIONS; ++a) {
            double q = rows.base[a];
#pragma unroll
            for (int k = 0; k < WIDTH; ++k) q += rows.weight[a * WIDTH + k] * v[rows.at[a * WIDTH + k]];
            if (q > best) { best = q; choice = a; }
        }
        change = fabs(best - values.own);
        values.next(best);
        if (i == STEPS / 2 - 1) changes.halfway = largest_of_block(change);
    }
    changes.last = largest_of_block(change);
    return changes;
}

// One row, of the policy.
struct PolicyRow {
    double base, weight[WIDTH];
    u16 at[WIDTH];
    __device__ PolicyRow(const Rowing& rows, int choice) {
#pragma unroll
        for (int a = 0; a < ACTIONS; ++a)
            if (a == choice) {
                base = rows.base[a];
#pragma unroll
                for (int k = 0; k < WIDTH; ++k) { weight[k] = rows.weight[a * WIDTH + k]; at[k] = rows.at[a * WIDTH + k]; }
            }
    }
    // STEPS backups, or without rewards where `rewards` is 0.
    __device__ void apply(Values& values, double rewards) const {
        for (int i = 0; i < STEPS; ++i) {
            const double* v = values.now();
            double q = rewards * base;
#pragma unroll
            for (int k = 0; k < WIDTH; ++k) q += weight[k] * v[at[k]];
            values.next(q);
        }
    }
};

// What is missing from the policy's values: z of this thread's state. `basis` has room for DIMENSIONS + 1 vectors.
__device__ __forceinline__ double missing(const PolicyRow& row, Values& values, double* basis) {
    __shared__ double h[DIMENSIONS + 1][DIMENSIONS], turned[DIMENSIONS + 1], cosine[DIMENSIONS], sine[DIMENSIONS];
    const double own = values.own;
    row.apply(values, 1.0);
    const double missed = values.own - own, norm = sqrt(sum_of_block(missed * missed));
    if (!(norm > 0.0)) return 0.0;
    double* mine = basis + threadIdx.x;
    mine[0] = missed / norm;
    if (threadIdx.x == 0) turned[0] = norm;
    int used = 0;
    while (used < DIMENSIONS) {
        const int j = used++;
        const double q = mine[j * TILE];
        values.next(q);
        row.apply(values, 0.0);
        double rest = q - values.own;
        for (int i = 0; i <= j; ++i) {
            const double along = sum_of_block(rest * mine[i * TILE]);
            rest -= along * mine[i * TILE];
            if (threadIdx.x == 0) h[i][j] = along;
        }
        const double length = sqrt(sum_of_block(rest * rest));
        if (threadIdx.x == 0) {
            for (int i = 0; i < j; ++i) {   // what turned the columns before
                const double x = h[i][j], y = h[i + 1][j];
                h[i][j] = cosine[i] * x + sine[i] * y;
                h[i + 1][j] = cosine[i] * y - sine[i] * x;
            }
            const double x = h[j][j], all = sqrt(x * x + length * length);
            cosine[j] = all > 0 ? x / all : 1.0;
            sine[j] = all > 0 ? length / all : 0.0;
            h[j][j] = all;
            turned[j + 1] = -sine[j] * turned[j];
            turned[j] *= cosine[j];
        }
        __syncthreads();
        if (!(fabs(turned[j + 1]) > 1e-9 * norm) || !(length > 0.0)) break;
        mine[(j + 1) * TILE] = rest / length;
    }
    __syncthreads();
    if (threadIdx.x == 0)
        for (int i = used - 1; i >= 0; --i) {   // the triangle
            double x = turned[i];
            for (int j = i + 1; j < used; ++j) x -= h[i][j] * turned[j];
            turned[i] = x / h[i][i];
        }
    __syncthreads();
    double z = 0.0;
    for (int i = 0; i < used; ++i) z += turned[i] * mine[i * TILE];
    __syncthreads();
    return z;
}

// Some number of a tile and a round: which tiles are due may repeat itself every few rounds, and what is tried should not.
__device__ __forceinline__ u32 some_number(u32 id, u32 window_round) {
    u32 x = id * 0x9e3779b9u ^ window_round * 0x85ebca6bu;
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

// The `launch`th of a batch's `launches` rounds of windows, among those of all batches.
__device__ __forceinline__ u32 window_round_of(const Control& c, int launch, int launches) {
    return c.batches * launches + launch;
}

// Lists of a round: tiles with a window in which a trap was found, from the front, and tiles that are due, from the back;
// now and then the former are among these, since another of their windows may hold more of it.
extern "C" __global__ void select_windows(const Engine e, int round, int launch, int launches) {
    Control& c = *e.control;
    const u32 window_round = window_round_of(c, launch, launches);
    for_tiles(e, round, [&](u32 id, const Descriptor&, bool due) {
        const bool trapped = id != NOWHERE && e.traps[id] && !(due && some_number(id, window_round) >> 30 == 0);
        const u32 known = place_in(&c.count[round], trapped), at = place_in(&c.behind[round], due && !trapped);
        if (trapped) e.work_list[known] = id;
        else if (due) e.work_list[e.tiles - 1 - at] = id;
    });
}

// Look at the window of a tile, and solve it if it holds a trap. By all threads of a block. Backups are counted of windows
// that are solved; looking takes some 500 windows a round, less than a hundredth of what visits do.
__device__ __forceinline__ void solve_window(const Engine& e, u32 id, u32 halves, int round, double* v) {
    const TileHeader& header = e.headers[id];
    const Descriptor& p = e.descriptors[header.partition];
    Control& c = *e.control;
    Corner w;
    if (!window_at(p, header.tile, halves, w)) return;
    const u32 local = state_in(p, w, threadIdx.x);
    Rowing rows;
    open_window(e, p, header.slot, w, local, rows);
    const double before = local == NOWHERE ? 0.0 : __ldcg(e.values + p.first + local), weight = weight_of(e, id);
    Values values = {v, 0, before};
    v[threadIdx.x] = before;
    __syncthreads();
    int choice = 0;
    const Changes first = improve(rows, values, choice);
    if (!first.slow(weight, c.limit)) return;
    double found = values.own, least = first.last;
    u32 backups = STEPS;
    for (int i = 0; i < POLICIES; ++i) {
        const double own = values.own;
        const PolicyRow row(rows, choice);
        const double z = missing(row, values, v + 2 * TILE);
        values.next(own + z);
        const Changes changes = improve(rows, values, choice);
        backups += STEPS + (DIMENSIONS + 1) * STEPS / ACTIONS;
        if (changes.last < least) {
            least = changes.last;
            found = values.own;
        }
        if (!changes.slow(weight, c.limit)) break;
    }
    if (local != NOWHERE) __stcg(e.values + p.first + local, found);
    const double change = largest_of_block(local == NOWHERE ? 0.0 : fabs(found - before)) * ROUND_UP;
    if (threadIdx.x == 0) {
        u32 states = 1;
        for (int d = 0; d < DIMS; ++d) states *= w.room[d];
        atomicAdd(e.backups + header.partition, (u64)backups * states);
        add_change(e, round, change);
        e.traps[id] = 1 + halves;
    }
    // The tiles that hold some of it, a thread each.
    if (threadIdx.x < 1u << DIMS) {
        u32 tile = 0;
        bool there = true;
#pragma unroll
        for (int d = 0; d < DIMS; ++d) {
            const u32 shape = tile_shape[d], further = threadIdx.x >> d & 1;
            const u32 across = (p.extent[d] + shape - 1) / shape, at = w.at[d] / shape + further;
            there = there && at < across && (!further || at * shape < w.at[d] + w.room[d]);
            tile = tile * across + at;
        }
        if (there) {
            const u32 one = p.tile + tile;
            publish_more(e, one, change);
            e.must_visit[one] = 1;
            e.last_change[one] = __longlong_as_double(0x7ff0000000000000ll);
        }
    }
}

// In place of the visits of a round: at most `most` windows of each list are looked at, others in the next.
extern "C" __global__ void __launch_bounds__(TILE) solve_windows(const Engine e, int round, int launch, int launches,
                                                                  u32 most) {
    extern __shared__ __align__(128) double v[];
    const Control& c = *e.control;
    const u32 window_round = window_round_of(c, launch, launches), known = c.count[round], due = c.behind[round];
    auto of_round = [&](u32 i, u32 count) { return (u32)((i + (u64)window_round * most) % count); };
    for (u32 i = blockIdx.x; i < min(known, most) + min(due, most); i += gridDim.x) {
        if (i < min(known, most)) {
            const u32 id = e.work_list[of_round(i, known)];
            solve_window(e, id, e.traps[id] - 1, round, v);
        } else {
            const u32 id = e.work_list[e.tiles - 1 - of_round(i - min(known, most), due)];
            solve_window(e, id, some_number(id, window_round) & ((1u << DIMS) - 1), round, v);
        }
        __syncthreads();
    }
}
#endif
