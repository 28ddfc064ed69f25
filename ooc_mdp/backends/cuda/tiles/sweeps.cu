// Rounds of visits to tiles, what they prove, and exact residuals: after tiles/rows.cuh.

// ----------------------------------------------------------------------------------------- what tiles read, and when

__device__ __forceinline__ double total_change_of(const Control& c, int rounds) {
    double sum = c.total_change;
#pragma unroll 1
    for (int r = 0; r < rounds; ++r) sum += __longlong_as_double((i64)__ldcg(&c.largest[r]));
    return sum;
}

// Sum of `accumulated` over a tile's inputs; `slack` bounds its rounding. `stride` threads share the work, from `begin`.
__device__ __forceinline__ double accumulated_inputs(const Engine& e, const TileHeader& h, const u32* inputs, int rounds,
                                                     u32 begin, u32 stride, double& slack) {
    double sum = 0.0;
    if (h.inputs == UNLISTED) {
        if (begin == 0) sum = total_change_of(*e.control, rounds);
        slack = (rounds + 2) * 2.3e-16;
    } else {
        for (u32 i = begin; i < h.inputs; i += stride) sum += load_acquire(e.accumulated + inputs[i]);
        slack = (h.inputs + 2) * 2.3e-16;
    }
    return sum;
}

__device__ __forceinline__ const u32* inputs_of(const TileHeader& h) {
    return record_of(h).inputs;
}

// How far the inputs may have changed since the tile's last visit; what rounding the two sums took away is put back.
__device__ __forceinline__ double input_change_of(const Engine& e, const TileHeader& h, u32 id, int rounds) {
    double slack, sum = accumulated_inputs(e, h, inputs_of(h), rounds, 0, 1, slack);
    return fmax(sum - e.snapshot[id], 0.0) + slack * sum;
}

__device__ __forceinline__ double weight_of(const Engine& e, u32 id) {
    return e.control->plain ? e.contraction[id] : e.normalised_contraction[id];
}

// --------------------------------------------------------------------------------------------------- the round

// Calls act(id, p, due) for each tile of the batch, of partition p, by whole warps, whose other threads have the id NOWHERE:
// whether the tile must be visited, or its inputs, or what its last visit left under a larger limit, hold its residual above this one.
template <class Act> __device__ __forceinline__ void for_tiles(const Engine& e, int round, Act&& act) {
    const Control& c = *e.control;
    const i64 total = (i64)c.batch_size * c.batch_tiles, step = (i64)gridDim.x * blockDim.x;
    const i64 padded = (total + 31) / 32 * 32;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < padded; i += step) {
        bool due = false;
        u32 id = NOWHERE;
        const Descriptor& p = e.descriptors[e.batch[i < total ? i / c.batch_tiles : 0]];
        if (i < total) {
            const u32 tile = (u32)(i % c.batch_tiles);
            if (tile < p.tiles) {
                id = p.tile + tile;
                due = e.must_visit[id];
                if (!due) {
                    const double change = input_change_of(e, e.headers[id], id, round);
                    due = fmax(change, e.last_change[id]) * weight_of(e, id) > c.limit;
                }
            }
        }
        act(id, p, due);
    }
}

// A place in a list for each thread of a warp that has one to add.
__device__ __forceinline__ u32 place_in(u32* count, bool one) {
    const u32 chosen = __ballot_sync(0xffffffffu, one), lane = threadIdx.x & 31;
    u32 base = 0;
    if (lane == 0 && chosen) base = atomicAdd(count, (u32)__popc(chosen));
    return __shfl_sync(0xffffffffu, base, 0) + __popc(chosen & ((1u << lane) - 1));
}

// Tiles that share a face have different colours: whether the sum of a tile's places along all axes is odd.
__device__ __forceinline__ u32 colour_of(const Descriptor& p, u32 tile) {
    u32 sum = p.colour;
#pragma unroll
    for (int d = DIMS - 1; d >= 0; --d) {
        const u32 across = (p.extent[d] + tile_shape[d] - 1) / tile_shape[d];
        sum += tile % across;
        tile /= across;
    }
    return sum & 1;
}

// Work list of a round: from the front those of one colour, from the back the others, which are visited after them. What is
// visited beside its neighbours sees values that are changing, and is visited again.
extern "C" __global__ void select_tiles(const Engine e, int round) {
    Control& c = *e.control;
    for_tiles(e, round, [&](u32 id, const Descriptor& p, bool due) {
        const bool second = due && colour_of(p, id - p.tile), first = due && !second;
        const u32 at = place_in(&c.count[round], first), behind = place_in(&c.behind[round], second);
        if (first) e.work_list[at] = id;
        if (second) e.work_list[e.tiles - 1 - behind] = id;
    });
}

#if STAGED
// What a visit needs of its tile, brought to shared memory during the visit before.
struct Staged {
    RecordOf<(LISTED + 3) / 4 * 4> record;   // with the first states of the halo
    double own[2][TILE];                     // own values at the visit's begin, and those of the next
    u64 barrier;
};
static_assert(sizeof(Staged) <= STAGED, "as the host reckons");

// Ask for the record of a tile, by one thread.
__device__ __forceinline__ void stage_record(const TileHeader& h, Staged& to) {
    const u32 bytes = (char*)to.record.halo - (char*)&to.record + (4 * min(h.halo, (u32)LISTED) + 15) / 16 * 16;
    announce(&to.barrier, bytes);
    copy_bulk(&to.record, &record_of(h), bytes, &to.barrier);
}

// A tile's own values, asked for by all threads, each those of its states.
__device__ __forceinline__ void stage_own(const Engine& e, const TileHeader& h, double* own) {
#pragma unroll
    for (int s = 0; s < STATES; ++s) {
        const u32 offset = offset_of(threadIdx.x, s), local = state_of(h, offset);
        if (local != NOWHERE) copy_async<8>(own + offset, e.values + h.first + local);
        else if (offset < TILE) own[offset] = 0.0;
    }
}
#endif

#define MAX_AHEAD (STAGED ? 8 : 4)
#define HALO_AHEAD ((HALO + THREADS - 1) / THREADS < MAX_AHEAD ? (HALO + THREADS - 1) / THREADS : MAX_AHEAD)

// Numbers of the first states of a tile's halo that this thread brings.
__device__ __forceinline__ void begin_halo(const TileHeader& h, u32 (&states)[HALO_AHEAD]) {
#if LOCAL
    const u32* halo = record_of(h).halo;
#pragma unroll
    for (int j = 0; j < HALO_AHEAD; ++j) {
        const u32 i = threadIdx.x + j * THREADS;
        states[j] = i < h.halo ? __ldg(halo + i) : NOWHERE;
    }
#endif
}

// The tile's values into shared memory: its own, and its halo's. Discounts are found while these are on their way.
// They come by way of the first-level cache, which `load_acquire` has emptied of what is older than `accumulated`.
__device__ __forceinline__ void ask_for_halo(const Engine& e, const TileHeader& h, const u32 (&states)[HALO_AHEAD],
                                             double* v) {
#if LOCAL
#pragma unroll
    for (int j = 0; j < HALO_AHEAD; ++j)
        if (states[j] != NOWHERE) copy_async<8>(v + TILE + threadIdx.x + j * THREADS, e.values + states[j]);
    const u32* halo = record_of(h).halo;
    for (u32 i = threadIdx.x + HALO_AHEAD * THREADS; i < h.halo; i += THREADS)
        copy_async<8>(v + TILE + i, e.values + __ldg(halo + i));
#endif
}

__device__ __forceinline__ void put_own(const double (&own)[STATES], double* v) {
#if LOCAL
#pragma unroll
    for (int s = 0; s < STATES; ++s)
        if (!IDLE_THREADS || threadIdx.x < SPREAD) v[offset_of(threadIdx.x, s)] = own[s];
#endif
}

__device__ __forceinline__ void fill(const Engine& e, const TileHeader& h, const double (&own)[STATES],
                                     const u32 (&states)[HALO_AHEAD], double* v, Rows (&rows)[STATES]) {
    ask_for_halo(e, h, states, v);
    find_discounts(e, rows);
    put_own(own, v);
    wait_for_copies();
}

// The rows and lists that the visit of a tile will read, and its values: asked for by all threads of a block.
__device__ __forceinline__ void ask_for_tile(const Engine& e, const TileHeader& h) {
#if !RAGGED
    constexpr u32 piece = 2048, lists = 32;   // the warp that asks for the record does not ask for values
    constexpr u32 across = tile_shape[DIMS - 1], lines = (8 * across + 127) / 128 + (across > 1);
#if LOCAL
    const u32 whole = (char*)record_of(h).halo - (char*)&record_of(h) + (4 * h.halo + 15) / 16 * 16;
#else
    constexpr u32 whole = sizeof(Record);
#endif
    for (u32 i = threadIdx.x; i < lists + BOX / across * lines; i += THREADS) {
        const char* at = nullptr;
        u32 bytes = 0;
        if (i < lists) {
            for (u32 from = i * piece; from < whole; from += lists * piece)
                ask_for((const char*)&record_of(h) + from, min(piece, whole - from));
        } else {
            const u32 local = state_of(h, (i - lists) / lines * across), from = (i - lists) % lines * 16;
            if (local != NOWHERE) {
                at = (const char*)((u64)(e.values + h.first + local + min(from, h.room[DIMS - 1] - 1u)) & ~127ull);
                bytes = 128;
            }
        }
        if (bytes) ask_for(at, bytes);
    }
#endif
}

#define SUMMING ((INPUTS + 31) / 32 < THREADS / 32 ? (INPUTS + 31) / 32 : THREADS / 32)   // warps

// The visits of a round. What limits it is latency, and what the second-level cache can deliver, so everything that a
// visit reads is asked for as early as possible, and once: during a visit rows, lists and own values of the next come to
// shared memory (STAGED; else they are asked for into the second-level cache), whose header has come during the visit
// before, and the tile after that is claimed; and the last warp stores what a visit changed while the others begin
// the next.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) sweep_tiles(const Engine e, int round) {
    extern __shared__ __align__(128) double v[];   // LOCAL: own values, then the halo's; STAGED: then what is staged
    __shared__ u32 items[3];
    __shared__ TileHeader headers[3];
    __shared__ u32 three;           // 3
    __shared__ double factors[3], accumulated[3], sums[3][SUMMING], limit;
#if STAGED
    Staged& staged = *(Staged*)(v + (TILE + HALO + 15) / 16 * 16);
    const u32 stager = THREADS > 32 ? 32 : 0;   // a thread of a warp that neither claims tiles nor stores changes
    u32 odd = 0;                             // whether the visit is the block's second, fourth ...
#else
    __shared__ double before[STATES][THREADS];   // own values at the visit's begin
#endif
    Control& c = *e.control;
    const u32 front = c.count[round], count = front + c.behind[round];
    if (blockIdx.x >= count) return;
    const u32 most = LOCAL ? c.most : 1;
    const bool first_warp = threadIdx.x < 32;
    const int last_warp = THREADS / 32 - 1;

    // By the first warp: a tile's header, factor and `accumulated`, which are there after wait_for_copies and a barrier.
    auto bring = [&](int current, u32 id) {
        if (id != NOWHERE) {
            const u32 piece = 16 * threadIdx.x;
            if (piece < sizeof(TileHeader))
                copy_async<16>((char*)&headers[current] + piece, (const char*)&e.headers[id] + piece);
            if (threadIdx.x == 30) copy_async<8>(&accumulated[current], e.accumulated + id);   // only this block changes it
            if (threadIdx.x == 31)
                copy_async<8>(&factors[current], (c.plain ? e.contraction : e.normalised_contraction) + id);
        }
        if (threadIdx.x == 0) items[current] = id;
    };
    // By thread 0: the place of the next tile in the work list. Each block begins with one of its own.
    auto claim = [&]() { return gridDim.x + atomicAdd(&c.next[round], 1u); };
    auto tile_at = [&](u32 i) {
        return i < count ? e.work_list[i < front ? i : (u32)e.tiles - 1 - (i - front)] : NOWHERE;
    };

    if (first_warp) {
        u32 now = NOWHERE, coming = NOWHERE;
        if (threadIdx.x == 0) {
            now = tile_at(blockIdx.x);
            coming = tile_at(claim());
            limit = c.limit;
            three = 3;
#if STAGED
            init_barrier(&staged.barrier);
#endif
        }
        bring(0, __shfl_sync(0xffffffffu, now, 0));
        bring(1, __shfl_sync(0xffffffffu, coming, 0));
        wait_for_copies();
    }
    __syncthreads();
#if STAGED
    if (items[0] != NOWHERE) {
        if (threadIdx.x == stager) stage_record(headers[0], staged);
        stage_own(e, headers[0], staged.own[0]);
        wait_for_copies();
        __syncthreads();
    }
#endif
    for (int current = 0;;) {
        const u32 id = items[current];
        if (id == NOWHERE) break;
        const int next = current == 2 ? 0 : current + 1;
        u32 coming = 0;   // in thread 0: where the tile after the next stands, then its number
        if (threadIdx.x == 0) coming = claim();
        const TileHeader& h = headers[current];
        u32 halo[HALO_AHEAD];
        u32 local[STATES];
        double now[STATES];   // no other block changes them
        Rows rows[STATES];
#if STAGED
        const u32* inputs = staged.record.inputs;
        wait_for_phase(&staged.barrier, odd);
#pragma unroll
        for (int j = 0; j < HALO_AHEAD; ++j) {
            const u32 i = threadIdx.x + j * THREADS;
            halo[j] = i < h.halo ? staged.record.halo[i] : NOWHERE;
        }
#pragma unroll
        for (int s = 0; s < STATES; ++s) {
            const u32 offset = offset_of(threadIdx.x, s);
            local[s] = state_of(h, offset);
            now[s] = local[s] != NOWHERE ? staged.own[odd][offset] : 0.0;
        }
        open_rows<true>(staged.record, rows);
#else
        const u32* inputs = inputs_of(h);
        begin_halo(h, halo);
#pragma unroll
        for (int s = 0; s < STATES; ++s) {
            local[s] = state_of(h, offset_of(threadIdx.x, s));
            now[s] = local[s] != NOWHERE ? __ldcg(e.values + (State)(h.first + local[s])) : 0.0;
        }
        open_rows(e, h, local, rows);
        if (items[next] != NOWHERE) ask_for_tile(e, headers[next]);
#endif
        if (threadIdx.x < 32 * SUMMING) {
            double slack, sum = accumulated_inputs(e, h, inputs, round, threadIdx.x, 32 * SUMMING, slack);
            for (int d = 16; d; d >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, d);
            if (threadIdx.x % 32 == 0) sums[current][threadIdx.x / 32] = sum;
        }
        __syncthreads();   // sums of `accumulated` before values; what is staged has been read
        if (threadIdx.x == 0) coming = tile_at(coming);
#if STAGED
        ask_for_halo(e, h, halo, v);
        end_first_copies();
        if (items[next] != NOWHERE) {
            if (threadIdx.x == stager) stage_record(headers[next], staged);
            stage_own(e, headers[next], staged.own[odd ^ 1]);
        }
        find_discounts(e, rows);
        put_own(now, v);
        wait_for_first_copies();
#else
        fill(e, h, now, halo, v, rows);
#pragma unroll
        for (int s = 0; s < STATES; ++s) before[s][threadIdx.x] = now[s];
#endif
        __syncthreads();
        if (first_warp) bring(next == 2 ? 0 : next + 1, __shfl_sync(0xffffffffu, coming, 0));
        double change;
        int choice[STATES] = {};
        u32 iterations = 0, more = 0;
        do {
            double best[STATES];
            const u32 shift = AHEAD ? 3 : *(volatile u32*)&three;   // see widened
#pragma unroll
            for (int s = 0; s < STATES; ++s) {
                // Rows at an offset without a state are there, and keep it at 0.
                if (!LOCAL && local[s] == NOWHERE) best[s] = now[s];
                else best[s] = backup(e, rows[s], v, choice[s], shift);
            }
            change = 0.0;
#pragma unroll
            for (int s = 0; s < STATES; ++s) {
                if (IDLE_THREADS && threadIdx.x >= SPREAD) continue;
                change = fmax(change, fabs(best[s] - now[s]));
                now[s] = best[s];
#if LOCAL
                ((volatile double*)v)[offset_of(threadIdx.x, s)] = best[s];
#endif
            }
            ++iterations;
            more = __syncthreads_or(change * *(volatile double*)&factors[current] > *(volatile double*)&limit);
        } while (more && iterations < most);
        double largest[4] = {0.0, change, minus_infinity(), minus_infinity()};
#pragma unroll
        for (int s = 0; s < STATES; ++s) {
            if (local[s] == NOWHERE) continue;
            const State state = (State)(h.first + local[s]);
            __stcg(e.values + state, now[s]);
            e.policy[state] = (CHOICE)choice[s];
#if STAGED
            const double before = staged.own[odd][offset_of(threadIdx.x, s)];
            largest[0] = fmax(largest[0], fabs(now[s] - before));
#else
            largest[0] = fmax(largest[0], fabs(now[s] - before[s][threadIdx.x]));
#endif
            largest[2] = fmax(largest[2], now[s]);
            largest[3] = fmax(largest[3], -now[s]);
        }
        if (STAGED || first_warp) wait_for_copies();
        block_bounds(largest, last_warp);
        if (threadIdx.x == 32 * last_warp) {
            // The block's values, which the barriers above have ordered before, then `accumulated`; it is waited for, so
            // first.
            const double change_of_tile = largest[0] * ROUND_UP;
            publish(e, id, (accumulated[current] + change_of_tile) * (1.0 + 4e-16));
            double snapshot = 0.0;
            for (int w = 0; w < SUMMING; ++w) snapshot += sums[current][w];
            e.snapshot[id] = snapshot;
            e.last_change[id] = largest[1];
            e.must_visit[id] = more;
            e.top[id] = largest[2];
            e.bottom[id] = largest[3];
            note_change(e, round, change_of_tile);
            u64 states = 1;
            for (int d = 0; d < DIMS; ++d) states *= h.room[d];
            atomicAdd(e.backups + h.partition, iterations * states);
        }
        current = next;
#if STAGED
        odd ^= 1;
#endif
    }
}

// Bounds of each partition of the batch, its range of values, and what its boundary values did since the last report.
//   report: [0] plain residual, [1] normalised, [2] tiles still due, [3] boundary rise, [4] fall, [5] largest boundary
//   value that changed, [6] largest value, [7] smallest, [8] backups of a state, [9] a tile's largest change
extern "C" __global__ void report_partitions(const Engine e, int rounds) {
    const Control& c = *e.control;
    if (blockIdx.x >= c.batch_size) return;
    const u32 q = e.batch[blockIdx.x];
    const Descriptor& p = e.descriptors[q];
    double m[9];
    m[0] = m[1] = m[3] = m[4] = 0.0;
    m[2] = m[5] = m[6] = m[7] = minus_infinity();
    double due = 0.0;
    double loose = 0.0;   // the largest change of a tile since the last report
    for (u32 tile = threadIdx.x; tile < p.tiles; tile += blockDim.x) {
        u32 id = p.tile + tile;
        double d = e.last_change[id] + input_change_of(e, e.headers[id], id, rounds);
        m[0] = fmax(m[0], e.contraction[id] > 0 ? d * e.contraction[id] * ROUND_UP : 0.0);
        m[1] = fmax(m[1], e.normalised_contraction[id] > 0 ? d * e.normalised_contraction[id] * ROUND_UP : 0.0);
        if (e.must_visit[id] || fmax(d - e.last_change[id], e.last_change[id]) * weight_of(e, id) > c.limit) due += 1.0;
        m[6] = fmax(m[6], e.top[id]);
        m[7] = fmax(m[7], e.bottom[id]);
        loose = fmax(loose, (e.accumulated[id] - e.reported[id]) * ROUND_UP);
        e.reported[id] = e.accumulated[id];
    }
    char* slot = e.headers[p.tile].slot;
    u32 count = *(const u32*)(slot + AT_BOUNDARY_COUNT);
    if (count <= BOUNDARY_ROOM) {
        const u32* boundary = (const u32*)(slot + AT_BOUNDARY);
        double* reported_values = (double*)(slot + AT_REPORTED);
        for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
            double now = e.values[p.first + boundary[i]], change = now - reported_values[i];
            if (change != 0.0) {
                m[3] = fmax(m[3], change);
                m[4] = fmax(m[4], -change);
                m[5] = fmax(m[5], now);
                reported_values[i] = now;
            }
        }
    } else if (loose > 0) {   // no room for the list: no boundary value changed by more than its tile did
        m[3] = m[4] = loose;
        m[5] = m[6];
    }
    m[8] = loose;
    m[2] = due;   // a sum, below
    for (int d = 16; d; d >>= 1) m[2] += __shfl_xor_sync(0xffffffffu, m[2], d);
    __shared__ double sums[32];
    if ((threadIdx.x & 31) == 0) sums[threadIdx.x >> 5] = m[2];
    __syncthreads();
    block_max(m);
    if (threadIdx.x == 0) {
        double* out = e.report + 10 * blockIdx.x;
        m[2] = 0.0;
        for (int w = 0; w < blockDim.x >> 5; ++w) m[2] += sums[w];
        for (int i = 0; i < 8; ++i) out[i] = m[i];
        out[7] = -m[7];
        out[8] = (double)e.backups[q];
        out[9] = m[8];
        e.backups[q] = 0;
    }
}

// After the reports of a batch: what all rounds changed is kept for the next.
extern "C" __global__ void end_batch(const Engine e, int rounds) {
    Control& c = *e.control;
    c.total_change = total_change_of(c, rounds) * (1.0 + 4e-16);
    for (int r = 0; r < MAX_ROUNDS; ++r) { c.count[r] = c.behind[r] = c.next[r] = 0; c.largest[r] = 0; }
    ++c.batches;
}

// Marks every tile of the batch's partitions due for the round that follows.
extern "C" __global__ void mark_tiles_due(const Engine e) {
    if (blockIdx.x >= e.control->batch_size) return;
    const Descriptor& p = e.descriptors[e.batch[blockIdx.x]];
    for (u32 tile = threadIdx.x; tile < p.tiles; tile += blockDim.x) e.must_visit[p.tile + tile] = 1;
}

// Invalidates what is known of a partition's tiles: its values have changed otherwise than by visits. Its boundary values
// count as reported.
extern "C" __global__ void invalidate_tiles(const Engine e, int q) {
    const Descriptor& p = e.descriptors[q];
    const u32 first = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
    for (u32 tile = first; tile < p.tiles; tile += step) {
        const u32 id = p.tile + tile;
        e.must_visit[id] = 1;
        e.last_change[id] = __longlong_as_double(0x7ff0000000000000ll);
        e.reported[id] = e.accumulated[id];
    }
    char* slot = e.headers[p.tile].slot;
    const u32 count = *(const u32*)(slot + AT_BOUNDARY_COUNT);
    const u32* boundary = (const u32*)(slot + AT_BOUNDARY);
    if (count <= BOUNDARY_ROOM)
        for (u32 i = first; i < count; i += step) ((double*)(slot + AT_REPORTED))[i] = e.values[p.first + boundary[i]];
}

// ---------------------------------------------------------------------------------------------- exact residuals

// A tile brought in by all threads of a block, to be looked at and not changed: the states of each thread, their values
// and rows; and all values that the tile reads, in `v`.
__device__ __forceinline__ void bring_tile(const Engine& e, const TileHeader& h, double* v, u32 (&local)[STATES],
                                           double (&own)[STATES], Rows (&rows)[STATES]) {
    u32 halo[HALO_AHEAD];
#pragma unroll
    for (int i = 0; i < STATES; ++i) {
        local[i] = state_of(h, offset_of(threadIdx.x, i));
        own[i] = local[i] == NOWHERE ? 0.0 : e.values[h.first + local[i]];
    }
    open_rows(e, h, local, rows);
    begin_halo(h, halo);
    __syncthreads();   // nobody reads the values of the tile before
    fill(e, h, own, halo, v, rows);
    __syncthreads();
}

// Exact residuals of one partition at the present values, the largest over its states: measured [0] rise, [1] fall of
// the normalised residual, [2] rise, [3] fall of the plain one (signed; falls are those of the policy's action), [4] B + V
// where |B| > significant; all in the order-preserving encoding. A state without policy gets its greedy action.
extern "C" __global__ void __launch_bounds__(THREADS) measure_tiles(const Engine e, int q, double significant,
                                                                    int fresh) {
    extern __shared__ double v[];
    const Descriptor& p = e.descriptors[q];
    for (u32 tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
        const TileHeader& h = e.headers[p.tile + tile];
        u32 numbers[STATES];
        double own[STATES];
        Rows states[STATES];
        bring_tile(e, h, v, numbers, own, states);
        double m[5] = {minus_infinity(), minus_infinity(), minus_infinity(), minus_infinity(), minus_infinity()};
#pragma unroll
        for (int i = 0; i < STATES; ++i) {
            const u32 local = numbers[i];
            if (local == NOWHERE) continue;
            const Rows& rows = states[i];
            const i64 s = p.first + local;
            const double now = own[i];
            double best = minus_infinity(), normalised = best, kept = 0.0, kept_normalised = 0.0;
#if RAGGED
            const int actions = rows.actions();
#else
            const int actions = ACTIONS;
#endif
            int chosen = fresh ? -1 : (int)e.policy[s], greedy = 0;
            for (int a = 0; a < actions; ++a) {
                double g = UNIT * discount_of(e, rows, a), q_value = worth_of(e, rows, v, a);
                double scaled = (q_value - now) / (1.0 - g * p.row_sum);
                if (q_value > best) { best = q_value; greedy = a; }
                normalised = fmax(normalised, scaled);
                if (a == chosen || (chosen < 0 && greedy == a)) { kept = q_value - now; kept_normalised = scaled; }
            }
#if RAGGED
            if (!actions) {
                best = rows.t->terminal ? e.sign * rows.t->terminal[local] : 0.0;
                normalised = kept = kept_normalised = best - now;
                greedy = -1;
            }
#endif
            if (fresh) e.policy[s] = (CHOICE)greedy;
            double residual = best - now;
            m[0] = fmax(m[0], normalised);
            m[1] = fmax(m[1], -kept_normalised);
            m[2] = fmax(m[2], residual);
            m[3] = fmax(m[3], -kept);
            if (fabs(residual) > significant) m[4] = fmax(m[4], best);
        }
        block_max(m);
        if (threadIdx.x == 0) {
            for (int i = 0; i < 5; ++i) atomicMax(e.measured + i, encoded(m[i]));
        }
    }
}
