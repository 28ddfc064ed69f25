// Backs up resident partitions, makes their policy greedy, and keeps its rows: after those of tiles, and policy/rows.cuh.
//
//     back_up_tiles ─▶ backups, at values that stay      take_backups ─▶ values
//     improve_tiles ─▶ policy and its rows, at values that stay
//
// A block takes tiles as `measure_tiles` does: rows in registers, values in shared memory, a state or two a thread. The
// chosen action's row is read from the slot once more, where it has just been, since registers have no index. Written
// a state: width * (4 + sizeof(REAL)) + sizeof(REWARD) + 8 bytes, nothing but Q2 where the action is the same and its
// row is valid.

#define FRESH 0x80000000u          // in a number of a partition: its states have no actions yet
#define VALID 0x40000000u          // its rows are valid
#define IMPROVED 5                 // numbers a partition
#define SHARES 16                  // blocks that copy a partition's backups

// A partition's number without its flags.
__device__ __forceinline__ u32 partition_of(u32 member) { return member & ~(FRESH | VALID); }

// Backups of all states of partitions over all actions, from values that stay as they are (Jacobi).
//   results [count, IMPROVED]: [0] largest change of a value, [1] smallest, [2] largest backup, [3] smallest; the smallest
//   with their signs turned, all in the order-preserving encoding
extern "C" __global__ void __launch_bounds__(THREADS) back_up_tiles(const Engine e, const u32* batch, int count,
                                                                    int batch_tiles, double* backups, u64* results) {
    extern __shared__ double v[];
    const i64 total = (i64)count * batch_tiles;
    for (i64 item = blockIdx.x; item < total; item += gridDim.x) {
        const u32 tile = (u32)(item % batch_tiles);
        const Descriptor& p = e.descriptors[partition_of(batch[item / batch_tiles])];
        if (tile >= p.tiles) continue;
        const TileHeader& h = e.headers[p.tile + tile];
        u32 numbers[STATES];
        double own[STATES];
        Rows states[STATES];
        bring_tile(e, h, v, numbers, own, states);
        double m[4] = {minus_infinity(), minus_infinity(), minus_infinity(), minus_infinity()};
#pragma unroll
        for (int i = 0; i < STATES; ++i) {
            const u32 local = numbers[i];
            if (local == NOWHERE) continue;
            const Rows& rows = states[i];
            double best = minus_infinity();
#if RAGGED
            const int actions = rows.actions();
            if (!actions) best = rows.t->terminal ? e.sign * rows.t->terminal[local] : 0.0;
#else
            const int actions = ACTIONS;
#pragma unroll
#endif
            for (int a = 0; a < actions; ++a) best = fmax(best, worth_of(e, rows, v, a));
            backups[h.first + local] = best;
            m[0] = fmax(m[0], best - own[i]);
            m[1] = fmax(m[1], own[i] - best);
            m[2] = fmax(m[2], best);
            m[3] = fmax(m[3], -best);
        }
        block_max(m);
        if (threadIdx.x == 0) {
            u64* out = results + IMPROVED * (item / batch_tiles);
            for (int i = 0; i < 4; ++i) atomicMax(out + i, encoded(m[i]));
        }
    }
}

// Values of partitions become their backups; SHARES blocks for each.
extern "C" __global__ void take_backups(const Engine e, const u32* batch, const double* backups) {
    const Descriptor& p = e.descriptors[partition_of(batch[blockIdx.x / SHARES])];
    for (u32 i = blockIdx.x % SHARES * blockDim.x + threadIdx.x; i < p.n; i += SHARES * blockDim.x)
        e.values[p.first + i] = backups[p.first + i];
}

// Write the row of action a of a state, `local` in its partition, which state `own` of the thread holds.
__device__ __forceinline__ void write_row(const Engine& e, const TileHeader& h, const Rows& rows, int own, u32 local,
                                          int a, double discount, const PolicyRows& to) {
    const RowsDescriptor descriptor = to.descriptors[h.partition];
    const i64 state = h.first + local, at = descriptor.entries + local;
    u32 count = 0;
#if RAGGED
    const Table& t = *rows.t;
    if (a < 0) {
        to.rewards[state] = t.terminal ? e.sign * t.terminal[local] : 0.0;
    } else {
        const i64 j = rows.row + a, lo = WIDTH ? j * WIDTH : (i64)t.successor_ptr[j];
        count = WIDTH ? WIDTH : (u32)((i64)t.successor_ptr[j + 1] - lo);
        for (u32 k = 0; k < count; ++k) {
            const i64 x = (i64)t.successors[lo + k];
            to.successors[at + (i64)k * descriptor.pitch] = (u32)(x < t.n ? h.first + x : (i64)t.halo[x - t.n]);
            to.probabilities[at + (i64)k * descriptor.pitch] = t.probabilities[lo + k];
        }
        to.rewards[state] = e.sign * (double)t.rewards[j];
    }
#else
    const u32 from = STATES * threadIdx.x + own;
    const Record& record = record_of(h);
    REAL last = 1;
    for (; count < WIDTH; ++count) {
        u32 x = record.successors[a * WIDTH + count][from];
#if LOCAL
        x = x < TILE ? (u32)h.first + state_of(h, x) : record.halo[x - TILE];
#endif
        const REAL p = count < WEIGHTS ? record.weights_of()[(a * WEIGHTS + count) * TILE + from] : last;
        last -= p;
        to.successors[at + (i64)count * descriptor.pitch] = x;
        to.probabilities[at + (i64)count * descriptor.pitch] = p;
    }
    to.rewards[state] = (REAL)e.sign * record.rewards[a][from];
#endif
#if VARIES
    to.discounts[state] = discount;
#endif
    for (; count < descriptor.width; ++count) {
        to.successors[at + (i64)count * descriptor.pitch] = (u32)state;
        to.probabilities[at + (i64)count * descriptor.pitch] = 0;
    }
}

// results [count, IMPROVED]: as `measured` of measure_tiles, [0] to [3]; [4] states whose action is another than before.
extern "C" __global__ void __launch_bounds__(THREADS) improve_tiles(const Engine e, const u32* batch, int count,
                                                                    int batch_tiles, const PolicyRows to, double margin,
                                                                    u64* results) {
    extern __shared__ double v[];
    const i64 total = (i64)count * batch_tiles;
    for (i64 item = blockIdx.x; item < total; item += gridDim.x) {
        const u32 member = batch[item / batch_tiles], tile = (u32)(item % batch_tiles);
        const bool fresh = member & FRESH, valid = member & VALID;
        const Descriptor& p = e.descriptors[partition_of(member)];
        if (tile >= p.tiles) continue;
        const TileHeader& h = e.headers[p.tile + tile];
        u32 numbers[STATES];
        double own[STATES];
        Rows states[STATES];
        bring_tile(e, h, v, numbers, own, states);
        double m[4] = {minus_infinity(), minus_infinity(), minus_infinity(), minus_infinity()};
        u32 changed = 0;
#pragma unroll
        for (int i = 0; i < STATES; ++i) {
            const u32 local = numbers[i];
            if (local == NOWHERE) continue;
            const Rows& rows = states[i];
            const i64 s = h.first + local;
            const double now = own[i];
            const int before = fresh ? -1 : (int)e.policy[s];
            double best = minus_infinity(), second = best, normalised = best, old = best;
            double discount = 0.0, old_discount = 0.0;
            int choice = -1;
#if RAGGED
            const int actions = rows.actions();
#else
            const int actions = ACTIONS;
#pragma unroll
#endif
            for (int a = 0; a < actions; ++a) {
                const double g = UNIT * discount_of(e, rows, a), worth = worth_of(e, rows, v, a);
                normalised = fmax(normalised, (worth - now) / (1.0 - g * p.row_sum));
                if (a == before) { old = worth; old_discount = g; }
                if (worth > best) { second = best; best = worth; choice = a; discount = g; }
                else second = fmax(second, worth);
            }
            double residual = best - now, other = second, worth = best;
#if RAGGED
            if (!actions) {
                worth = rows.t->terminal ? e.sign * rows.t->terminal[local] : 0.0;
                residual = normalised = worth - now;
            }
#endif
            if (before >= 0 && before < actions && best - old <= margin) {
                if (before != choice) other = best;
                worth = old;
                discount = old_discount;
                choice = before;
            }
            const double change = worth - now;
            m[0] = fmax(m[0], normalised);
            m[1] = fmax(m[1], -(choice < 0 ? change : change / (1.0 - discount * p.row_sum)));
            m[2] = fmax(m[2], residual);
            m[3] = fmax(m[3], -change);
            to.second_best[s] = other;
            changed += choice != before;
            if (choice != before || fresh) e.policy[s] = (CHOICE)choice;   // it may be -1, and 0 be there
            if (choice != before || !valid) write_row(e, h, rows, i, local, choice, discount, to);
        }
        changed = __reduce_add_sync(0xffffffffu, changed);
        u64* out = results + IMPROVED * (item / batch_tiles);
        if ((threadIdx.x & 31) == 0 && changed) atomicAdd(out + 4, (u64)changed);
        block_max(m);
        if (threadIdx.x == 0)
            for (int i = 0; i < 4; ++i) atomicMax(out + i, encoded(m[i]));
    }
}
