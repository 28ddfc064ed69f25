// A decoded table into a slot: after tiles/memory.cuh.

#define HASH_EMPTY 0xffffffffu

// Insert a key into an open-addressing table in shared memory; false once it holds `room` keys.
__device__ __forceinline__ bool insert(u32* keys, u32 size, u32* used, u32 room, u32 key) {
    u32 at = (key * 2654435761u) & (size - 1);
    for (;;) {
        u32 found = atomicCAS(keys + at, HASH_EMPTY, key);
        if (found == key) return true;
        if (found == HASH_EMPTY) return atomicAdd(used, 1u) < room;
        if (*(volatile u32*)used >= room) return false;
        at = (at + 1) & (size - 1);
    }
}

// The table's keys in ascending order, by all threads of a block of TILE (bitonic): what is empty comes last.
__device__ __forceinline__ void sort_keys(u32* keys, u32 size) {
    for (u32 run = 2; run <= size; run *= 2)
        for (u32 apart = run / 2; apart; apart /= 2) {
            for (u32 i = threadIdx.x; i < size / 2; i += TILE) {
                const u32 a = 2 * i - (i & (apart - 1)), b = a + apart, at_a = keys[a], at_b = keys[b];
                if (at_a != at_b && (at_a > at_b) == !(a & run)) {
                    keys[a] = at_b;
                    keys[b] = at_a;
                }
            }
            __syncthreads();
        }
}

// The place of a key among the first `count`, in ascending order, of which it is one.
__device__ __forceinline__ u32 place_of(const u32* keys, u32 count, u32 key) {
    u32 at = 0;
    while (count > 1) {
        const u32 half = count / 2;
        if (keys[at + half] <= key) at += half;
        count -= half;
    }
    return at;
}

// Lay a decoded table out in its slot: a block a tile. Dynamic shared memory: keys of halo and inputs. A halo is in
// ascending order, so that threads next to each other bring states next to each other.
// faults[0]: largest halo of a tile, where it exceeds HALO; faults[1], by who decoded the table: whether it is none;
// faults[3]: whether a row leads to a state that does not exist.
extern "C" __global__ void __launch_bounds__(TILE) lay_out(const Engine e, const Table* table, int q, char* slot,
                                                           u32* faults) {
    extern __shared__ u32 shared[];
    if (faults[1]) return;   // its pointers may lead anywhere
    const Table& t = *table;
    const Descriptor p = e.descriptors[q];
    __shared__ u32 halo_used, inputs_used, numbered, too_many, unlisted, astray;
    u32* inputs = shared;                            // [INPUTS_HASH]
    u32* halo = shared + INPUTS_HASH;                // [HALO_HASH]
    __shared__ TileHeader header;
    const u32 tile = blockIdx.x;
    const u32 id = p.tile + tile;
    Record& record = ((Record*)(slot + AT_TILES))[tile];
    if (threadIdx.x == 0) set_box(p, tile, header);
    for (u32 i = threadIdx.x; i < INPUTS_HASH; i += TILE) inputs[i] = HASH_EMPTY;
#if LOCAL
    for (u32 i = threadIdx.x; i < HALO_HASH; i += TILE) halo[i] = HASH_EMPTY;
#endif
    if (threadIdx.x == 0) halo_used = inputs_used = numbered = too_many = unlisted = astray = 0;
    __syncthreads();
    const Descriptor& last = e.descriptors[e.partitions - 1];
    const i64 n_states = last.stored + last.n;
    const u32 own = threadIdx.x % STATES * SPREAD + threadIdx.x / STATES;   // the offset of this entry
    const u32 local = state_of(header, own);
    const u32 s = local == NOWHERE ? 0 : local;
    const i64 row = ACTIONS ? (i64)s * ACTIONS : (i64)t.action_ptr[s];
    const i64 row_end = local == NOWHERE ? row : ACTIONS ? row + ACTIONS : (i64)t.action_ptr[s + 1];
    double contraction = 0.0, normalised_contraction = 0.0;
    bool lists = true;
    for (i64 j = row; j < row_end; ++j) {
#if HAS_TAU
        double g = factor_of(e, (double)t.durations[j]) * (1.0 + 1e-14);
#else
        double g = e.discount;
#endif
        const double mass = g * p.row_sum;
        contraction = fmax(contraction, mass);
        // Rounded up, a discount next to 1 may be no contraction: nothing is proved by it then.
        const double normalised = mass < 1.0 ? mass / (1.0 - mass) : infinity();
        normalised_contraction = fmax(normalised_contraction, normalised);
        const i64 lo = WIDTH ? j * WIDTH : (i64)t.successor_ptr[j], hi = WIDTH ? lo + WIDTH : (i64)t.successor_ptr[j + 1];
        for (i64 k = lo; k < hi; ++k) {
            u32 x = (u32)t.successors[k], other, offset;
            if (x < t.n) {
                tile_of(p, x, other, offset);
                if (other == tile) continue;
#if LOCAL
                if (!insert(halo, HALO_HASH, &halo_used, HALO, (u32)(p.first + x))) too_many = 1;
#endif
                if (lists) lists = insert(inputs, INPUTS_HASH, &inputs_used, INPUTS, p.tile + other);
            } else {
                const i64 state = x - t.n < t.halo_size ? (i64)t.halo[x - t.n] : -1;
                if (state < 0 || state >= n_states) {
                    astray = 1;
                    continue;
                }
#if LOCAL
                if (!insert(halo, HALO_HASH, &halo_used, HALO, (u32)placed(e, state))) too_many = 1;
#endif
                if (lists) {
                    const Descriptor& owner = e.descriptors[partition_with(e, state)];
                    tile_of(owner, (u32)(state - owner.stored), other, offset);
                    lists = insert(inputs, INPUTS_HASH, &inputs_used, INPUTS, owner.tile + other);
                }
            }
        }
    }
    if (!lists) unlisted = 1;
    __syncthreads();
    if (astray) {
        if (threadIdx.x == 0) faults[3] = 1;
        return;
    }
#if LOCAL
    if (too_many) {
        if (threadIdx.x == 0) atomicMax(faults, halo_used);
        return;
    }
    u32* tile_halo = record.halo;
    sort_keys(halo, HALO_HASH);
    for (u32 i = threadIdx.x; i < halo_used; i += TILE) tile_halo[i] = halo[i];
#endif
    const bool all = unlisted;
    u32* tile_inputs = record.inputs;
    if (threadIdx.x == 0) {
        header.slot = slot;
        header.first = p.first;
        header.partition = (u32)q;
        header.tile = tile;
        header.halo = halo_used;
        header.inputs = all ? UNLISTED : inputs_used;
        e.headers[id] = header;
        numbered = 0;
    }
    __syncthreads();
    if (!all)
        for (u32 i = threadIdx.x; i < INPUTS_HASH; i += TILE)
            if (inputs[i] != HASH_EMPTY) tile_inputs[atomicAdd(&numbered, 1u)] = inputs[i];
#if !RAGGED
    const u32 at = threadIdx.x;
    for (int a = 0; a < ACTIONS; ++a) {
        const i64 j = row + a;
        const bool here = local != NOWHERE;
        record.rewards[a][at] = here ? t.rewards[j] : (REAL)0;
#if HAS_TAU
        record.durations[a][at] = here ? t.durations[j] : (TAU)1;
#endif
        for (int k = 0; k < WIDTH; ++k) {
            const i64 from = j * WIDTH + k;
            // No -0, whose sign a sweep would take for a weight.
#if WEIGHTS
            if (k < WEIGHTS) record.weights[a * WEIGHTS + k][at] = here ? fabs(t.probabilities[from]) : (REAL)0;
#endif
            u32 x = here ? (u32)t.successors[from] : 0;
            u32 value = own;
#if LOCAL
            if (here) {
                u32 other = NOWHERE, offset = 0;
                if (x < t.n) tile_of(p, x, other, offset);
                if (other == tile) value = offset;
                else {
                    const i64 state = x < t.n ? p.first + x : placed(e, t.halo[x - t.n]);
                    value = TILE + place_of(halo, halo_used, (u32)state);
                }
            }
#else
            value = (u32)(!here ? p.first : x < t.n ? p.first + x : placed(e, t.halo[x - t.n]));
#endif
            record.successors[a * WIDTH + k][at] = (Successor)value;
        }
    }
#endif
    double m[2] = {contraction, normalised_contraction};
    block_max(m);
    if (threadIdx.x == 0) {
        e.contraction[id] = m[0];
        e.normalised_contraction[id] = m[1];
        e.must_visit[id] = 1;
        e.last_change[id] = __longlong_as_double(0x7ff0000000000000ll);
        e.snapshot[id] = 0.0;
        e.top[id] = e.bottom[id] = minus_infinity();
        e.reported[id] = e.accumulated[id];
    }
}

// The list of boundary states, and their values as last reported.
extern "C" __global__ void lay_out_boundary(const Engine e, const Table* table, int q, char* slot) {
    const Descriptor& p = e.descriptors[q];
    u32* count = (u32*)(slot + AT_BOUNDARY_COUNT);
    u32* boundary = (u32*)(slot + AT_BOUNDARY);
    double* reported_values = (double*)(slot + AT_REPORTED);
    i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    bool is = i < p.n && table->boundary[i];
    u32 chosen = __ballot_sync(0xffffffffu, is), base = 0;
    int lane = threadIdx.x & 31;
    if (lane == 0 && chosen) base = atomicAdd(count, (u32)__popc(chosen));
    base = __shfl_sync(0xffffffffu, base, 0) + __popc(chosen & ((1u << lane) - 1));
    if (is && base < BOUNDARY_ROOM) {
        boundary[base] = (u32)i;
        reported_values[base] = e.values[p.first + i];
    }
}

// Ragged rows stay as they are: copy the table's arrays into the slot, and a descriptor with their new addresses; states
// of the halo take their numbers in device order.
extern "C" __global__ void keep_table(const Engine e, const Table* table, int q, char* slot, const u32* faults,
                                      i64 room) {
#if RAGGED
    if (faults[1]) return;
    const Table& t = *table;
    const i64 rows = ACTIONS ? t.n * ACTIONS : (i64)t.action_ptr[t.n];
    const i64 transitions = WIDTH ? rows * WIDTH : (i64)t.successor_ptr[rows];
    const void* from[9] = {t.action_ptr, t.successor_ptr, t.successors, t.probabilities, t.rewards, t.durations,
                           t.terminal, t.halo, t.boundary};
    i64 bytes[9] = {4 * (t.n + 1), 4 * (rows + 1), (i64)sizeof(INDEX) * transitions, (i64)sizeof(REAL) * transitions,
                    (i64)sizeof(REAL) * rows, (i64)sizeof(TAU) * rows, 8 * t.n, (i64)sizeof(HALO_STATE) * t.halo_size,
                    t.n};
    char* to = slot + AT_TABLE + 256;
    const i64 first = (i64)blockIdx.x * blockDim.x + threadIdx.x, step = (i64)gridDim.x * blockDim.x;
    u64* descriptor = (u64*)(slot + AT_TABLE);
    for (int f = 0; f < 9; ++f) {
        if (!from[f]) bytes[f] = 0;
        if (first == 0) descriptor[f] = bytes[f] ? (u64)to : 0;
        if (to + bytes[f] > slot + AT_TABLE + room) return;   // cannot be: the room is that of the largest table
        if (REORDERED && f == 7)
            for (i64 i = first; i < t.halo_size; i += step) ((HALO_STATE*)to)[i] = (HALO_STATE)placed(e, t.halo[i]);
        else
            for (i64 i = first; i < bytes[f]; i += step) to[i] = ((const char*)from[f])[i];
        to += (bytes[f] + 255) / 256 * 256;
    }
    if (first == 0) {
        descriptor[9] = (u64)t.n;
        descriptor[10] = (u64)t.halo_size;
    }
#endif
}
