// Sweeps of many resident partitions at once, a tile of states a block, a state a thread.
//
//   V(s) <- max_a { sign r(s,a) + g(s,a) sum_k p_k V(succ_k) }
//
// A *tile* is a small box of a partition's states (a run of them where the partition is no box). A visit of a tile
// brings its own values and its halo (outside states that it reads) into shared memory, keeps its rows in registers,
// and backs its states up until no value of the tile changes by more than a limit, or `most` times; then own values
// go back. One launch of `sweep` visits all tiles of a work list; `select` made it, from the tiles whose inputs have
// changed since their last visit (sufficient subsets, Wingate 2004, section 8.5). Rounds of the two follow each other
// on the device; the host looks at the bounds of each partition once a batch of rounds (`report`).
//
// What is proved. For each tile:  moved = sum over its visits of its largest change of a value;
//   left = largest change in the last iteration of its last visit;  seen = sum of `moved` over the tiles that it reads,
//   taken before it read their values;  drift = that sum now, less `seen`.
// Every value of the tile was a backup of values that differ from the present ones by at most left + drift, whatever
// the order in which threads and blocks ran, so its residual is at most gain * (left + drift), gain = max g rho, and
// the normalised one at most steep * (left + drift), steep = max g rho / (1 - g rho). Values are written before
// `moved` is raised, and `moved` is read before values are, both past the first-level cache, so a tile that reads an
// old value also has the old sum.
// Tiles that read too many others to list them (inputs = EVERYTHING) take the sum over rounds of the largest change of
// any tile in place of both.
//
// Iterations are in place: a thread may read a neighbour's value of this iteration or of the last. Both are covered by
// the bound, and information travels faster than with two copies; runs need not repeat bit by bit.
//
// Layout of a slot (LOCAL and DIRECT): planes of `pitch` entries, entry = tile * TILE + thread, so that neighbouring
// threads read neighbouring bytes: weights [A * W], successors [A * K], rewards [A], durations [A]; W = K - 1 where
// the last probability of a row is one minus the others (exactly: they are multiples of 2^-24). LOCAL successors are
// 16 bits: thread of the tile, or TILE + place in the tile's halo. DIRECT ones are states (32 bits), read from
// the value vector. RAGGED rows stay as PartitionTable has them.
//
// Compiled once a store with: LOCAL, RAGGED, ACTIONS and WIDTH (0: ragged), WEIGHTS, TILE (threads), BLOCKS (of which
// a multiprocessor should hold so many), BOX (states of a full tile), DIMS, TILE_SHAPE, HALO and INPUTS (room for a tile's lists), HALO_HASH and INPUTS_HASH (powers of two, larger),
// HAS_TAU, and the types REAL, INDEX, TAU, HALO_STATE, CHOICE.

typedef unsigned long long u64;
typedef long long i64;
typedef unsigned int u32;
typedef unsigned short u16;

#define EVERYTHING 0xffffffffu
#define NOWHERE 0xffffffffu
#define MAX_ROUNDS 64
#define ROUND_UP (1.0 + 1e-12)
#define PLANES (ACTIONS * (WEIGHTS + 1 + WIDTH + (HAS_TAU ? 1 : 0)))

#if RAGGED
typedef i64 State;      // a state's number, or -1
#else
typedef u32 State;
#endif
#if LOCAL
typedef u16 Successor;
#else
typedef u32 Successor;
#endif
#if ACTIONS * WIDTH <= 24 && !RAGGED
#define IN_REGISTERS 1
#else
#define IN_REGISTERS 0
#endif
// Weights that are multiples of 2^-24 are held as whole numbers of it: these become doubles by one addition, where a
// conversion takes four times as long and would limit the iterations.
#if IN_REGISTERS && WEIGHTS < WIDTH
typedef u32 Weight;
#define WHOLE_WEIGHTS 1
#define ONE (1u << 24)
#define UNIT 5.9604644775390625e-08
#else
typedef REAL Weight;
#define WHOLE_WEIGHTS 0
#define ONE ((REAL)1)
#endif

struct Place {          // a partition
    i64 first;          // its first state
    double row_sum;     // largest row sum, rounded up
    u32 n;              // states
    u32 tile;           // its first tile, among those of all partitions
    u32 tiles;
    u32 extent[7];      // of the box of its states, C order
};

struct __align__(16) Head {   // a tile of a resident partition: what a visit must know before it can read anything else
    char* slot;
    i64 first;          // first state of the partition
    u32 partition;
    u32 tile;           // its number in the partition
    u32 halo;           // states of its halo
    u32 inputs;         // tiles that it reads, or EVERYTHING
    u32 corner;         // its first state, in the partition
    u32 stride[DIMS];   // from a state to the next along each axis
    u16 room[DIMS];     // states along each axis
};

struct Control {
    double limit;       // residual at which a tile is left alone, plain or normalised
    double everything;  // sum over finished rounds of the largest change
    u32 plain;
    u32 most;           // iterations of a tile's visit
    u32 set_size;       // partitions in the batch
    u32 set_tiles;      // most tiles of one of them
    u32 count[MAX_ROUNDS];
    u32 next[MAX_ROUNDS];
    u64 largest[MAX_ROUNDS];  // bits of the largest change in each round
};

struct Engine {
    Control* control;
    const Place* places;
    i64 partitions;
    Head* heads;               // [tiles]
    double *moved, *seen, *left, *gain, *steep, *top, *bottom, *told;   // [tiles]
    u32* again;                // [tiles] whether the tile must be visited whatever its inputs
    double* values;
    CHOICE* policy;
    const u32* set;            // [set_size] partitions of the batch
    u32* work;                 // [tiles of the batch] selected tiles
    double* report;            // [set_size, 10]
    u64* backups;              // [partitions]
    u64* measured;             // [5]
    i64 pitch;
    i64 weights, successors, rewards, durations, halo, inputs, boundary_count, boundary, published,
        table;                 // offsets in a slot
    i64 boundary_room;
    double discount, log_discount, sign;
};

struct Table {          // a PartitionTable on the device
    const u32* action_ptr;
    const u32* successor_ptr;
    const INDEX* successors;
    const REAL* probabilities;
    const REAL* rewards;
#if HAS_TAU
    const TAU* durations;
#else
    const void* durations;
#endif
    const double* terminal;
    const HALO_STATE* halo;
    const unsigned char* boundary;
    i64 n, halo_size;
};

// ---------------------------------------------------------------------------------------------- geometry of tiles

__device__ constexpr int tile_shape[DIMS] = TILE_SHAPE;

// Tile and thread of a state of a partition.
__device__ __forceinline__ void tile_of(const Place& p, u32 local, u32& tile, u32& lane) {
    u32 at[DIMS];
#pragma unroll
    for (int d = DIMS - 1; d >= 0; --d) {
        at[d] = d ? local % p.extent[d] : local;
        local /= p.extent[d];
    }
    tile = 0;
    lane = 0;
#pragma unroll
    for (int d = 0; d < DIMS; ++d) {
        tile = tile * ((p.extent[d] + tile_shape[d] - 1) / tile_shape[d]) + at[d] / tile_shape[d];
        lane = lane * tile_shape[d] + at[d] % tile_shape[d];
    }
}

// Where the states of a tile lie.
__device__ __forceinline__ void set_box(const Place& p, u32 tile, Head& h) {
    u32 stride = 1;
    h.corner = 0;
#pragma unroll
    for (int d = DIMS - 1; d >= 0; --d) {
        u32 across = (p.extent[d] + tile_shape[d] - 1) / tile_shape[d], begin = (tile % across) * tile_shape[d];
        tile /= across;
        h.corner += begin * stride;
        h.stride[d] = stride;
        h.room[d] = (u16)min((u32)tile_shape[d], p.extent[d] - begin);
        stride *= p.extent[d];
    }
}

// The partition's state of this thread of a tile, or NOWHERE.
__device__ __forceinline__ u32 state_of(const Head& h) {
    u32 lane = threadIdx.x, local = h.corner;
    bool inside = lane < BOX;
#pragma unroll
    for (int d = DIMS - 1; d >= 0; --d) {
        u32 at = d ? lane % tile_shape[d] : lane;
        lane /= tile_shape[d];
        inside = inside && at < h.room[d];
        local += at * h.stride[d];
    }
    return inside ? local : NOWHERE;
}

// The partition of a state.
__device__ __forceinline__ u32 partition_with(const Engine& e, i64 state) {
    i64 lo = 0, hi = e.partitions - 1;
    while (lo < hi) {
        i64 middle = (lo + hi + 1) >> 1;
        if (e.places[middle].first <= state) lo = middle; else hi = middle - 1;
    }
    return (u32)lo;
}

// ---------------------------------------------------------------------------------------------------- reductions

__device__ __forceinline__ double warp_max(double x) {
#pragma unroll
    for (int d = 16; d; d >>= 1) x = fmax(x, __shfl_xor_sync(0xffffffffu, x, d));
    return x;
}

// The largest of each of N values a thread, in the first warp. Every thread of the block must come here.
template <int N>
__device__ __forceinline__ void block_max(double (&x)[N]) {
    __shared__ double warps[N][32];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, count = (blockDim.x + 31) >> 5;
#pragma unroll
    for (int i = 0; i < N; ++i) {
        x[i] = warp_max(x[i]);
        if (lane == 0) warps[i][warp] = x[i];
    }
    __syncthreads();
    if (warp == 0) {
#pragma unroll
        for (int i = 0; i < N; ++i) x[i] = warp_max(lane < count ? warps[i][lane] : warps[i][0]);
    }
    __syncthreads();
}

// A number's upper 32 bits, rounded up, in an order of unsigned numbers that is the numbers' own. At most 2^-20 of a
// number is added, nothing to 0; one instruction then finds the largest of a warp.
__device__ __forceinline__ u32 above(double x) {
    const i64 bits = __double_as_longlong(x);
    const u32 high = (u32)((u64)bits >> 32);
    return bits < 0 ? ~high : (high + ((u32)bits != 0)) | 0x80000000u;
}

__device__ __forceinline__ double number_of(u32 bound) {
    return __longlong_as_double((i64)((u64)(bound >> 31 ? bound & 0x7fffffffu : ~bound) << 32));
}

// Upper bounds of the largest of each of N values a thread, in the threads of warp `by`. Every thread of the block must
// come here, and meet at another barrier before the next time.
template <int N>
__device__ __forceinline__ void block_bounds(double (&x)[N], int by) {
    __shared__ u32 warps[N][32];
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, count = TILE / 32;
#pragma unroll
    for (int i = 0; i < N; ++i) {
        const u32 bound = __reduce_max_sync(0xffffffffu, above(x[i]));
        if (lane == 0) warps[i][warp] = bound;
    }
    __syncthreads();
    if (warp == by) {
#pragma unroll
        for (int i = 0; i < N; ++i) x[i] = number_of(__reduce_max_sync(0xffffffffu, warps[i][lane < count ? lane : 0]));
    }
}

// Copies to shared memory that are waited for later, by the threads that asked for them; 8 or 16 bytes, aligned.
template <int BYTES>
__device__ __forceinline__ void copy_beside(void* to, const void* from) {
#ifdef EMULATED_CUDA
    for (int i = 0; i < BYTES; ++i) ((char*)to)[i] = ((const char*)from)[i];
#else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from), "n"(BYTES)
                 : "memory");
#endif
}

__device__ __forceinline__ void wait_for_copies() {
#ifndef EMULATED_CUDA
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// Ask for bytes that will be read soon: into the second-level cache. A multiple of 16, aligned.
__device__ __forceinline__ void ask_for(const void* at, u32 bytes) {
#ifdef EMULATED_CUDA
#elif __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(at), "r"(bytes));
#else
    for (u32 i = 0; i < bytes; i += 128) asm volatile("prefetch.global.L2 [%0];" ::"l"((const char*)at + i));
#endif
}

// What another block wrote before it raised this value is seen by whoever reads after this, the block's other threads
// behind a barrier included.
__device__ __forceinline__ double load_acquire(const double* at) {
#ifdef EMULATED_CUDA
    return *at;
#else
    double x;
    asm volatile("ld.acquire.gpu.global.f64 %0, [%1];" : "=d"(x) : "l"(at) : "memory");
    return x;
#endif
}

__device__ __forceinline__ double minus_infinity() { return -__longlong_as_double(0x7ff0000000000000ll); }

// ------------------------------------------------------------------------------------- rows of one state, one thread

struct Rows {
#if RAGGED
    const Table* t;
    const double* values;
    i64 first;
    i64 row, end;
    u32 own;
    __device__ int actions() const { return (int)(end - row); }
#else
    const REAL* w;
    const Successor* x;
    const REAL* r;
    i64 pitch;
    const double* values;
#if HAS_TAU
    const TAU* tau;
#endif
#if IN_REGISTERS
    Weight weight[ACTIONS * WEIGHTS ? ACTIONS * WEIGHTS : 1];
#if LOCAL
    u32 successors[(ACTIONS * WIDTH + 1) / 2];   // two in a register
#else
    u32 successors[ACTIONS * WIDTH];
#endif
    REAL reward[ACTIONS];
#if HAS_TAU
    double factor[ACTIONS];
#endif
#endif
#endif
};

// discount ** duration. exp needs a fraction of pow's instructions; what the product rounds away changes the result by
// at most 2^-53 |x| e^x <= 2^-54, x = duration * log(discount).
__device__ __forceinline__ double factor_of(const Engine& e, double duration) {
    return isinf(duration) ? 0.0 : e.discount > 0 ? exp(duration * e.log_discount) : duration > 0 ? 0.0 : 1.0;
}

__device__ __forceinline__ void open_rows(const Engine& e, const Head& h, u32 local, Rows& rows) {
#if RAGGED
    rows.t = (const Table*)(h.slot + e.table);
    rows.values = e.values;
    rows.first = h.first;
    rows.own = local;
    u32 s = local == NOWHERE ? 0 : local;
    rows.row = ACTIONS ? (i64)s * ACTIONS : (i64)rows.t->action_ptr[s];
    rows.end = ACTIONS ? rows.row + ACTIONS : (i64)rows.t->action_ptr[s + 1];
    if (local == NOWHERE) rows.end = rows.row;
#else
    i64 at = (i64)h.tile * TILE + threadIdx.x;
    rows.pitch = e.pitch;
    rows.values = e.values;
    rows.w = (const REAL*)(h.slot + e.weights) + at;
    rows.x = (const Successor*)(h.slot + e.successors) + at;
    rows.r = (const REAL*)(h.slot + e.rewards) + at;
#if HAS_TAU
    rows.tau = (const TAU*)(h.slot + e.durations) + at;
#endif
#if IN_REGISTERS
#pragma unroll
    for (int i = 0; i < ACTIONS * WEIGHTS; ++i) {
        REAL p = __ldg(rows.w + i * rows.pitch);
#if WHOLE_WEIGHTS
        rows.weight[i] = (u32)(p * (REAL)ONE);
#else
        rows.weight[i] = p;
#endif
    }
#pragma unroll
    for (int i = 0; i < ACTIONS * WIDTH; ++i) {
        u32 x = __ldg(rows.x + i * rows.pitch);
#if LOCAL
        rows.successors[i / 2] = i % 2 ? rows.successors[i / 2] | x << 16 : x;
#else
        rows.successors[i] = x;
#endif
    }
#pragma unroll
    for (int a = 0; a < ACTIONS; ++a) rows.reward[a] = __ldg(rows.r + a * rows.pitch);
#if HAS_TAU
#pragma unroll
    for (int a = 0; a < ACTIONS; ++a) rows.factor[a] = factor_of(e, (double)__ldg(rows.tau + a * rows.pitch));
#endif
#endif
#endif
}

// Value of the row's expected successor and its discount; `v` holds the tile's own values and its halo.
__device__ __forceinline__ double expected(const Rows& rows, const volatile double* v, int a) {
    double total = 0.0;
#if RAGGED
    i64 j = rows.row + a;
    i64 lo = WIDTH ? j * WIDTH : (i64)rows.t->successor_ptr[j];
    i64 hi = WIDTH ? lo + WIDTH : (i64)rows.t->successor_ptr[j + 1];
    for (i64 k = lo; k < hi; ++k) {
        i64 x = (i64)rows.t->successors[k];
        i64 state = x < rows.t->n ? rows.first + x : (i64)rows.t->halo[x - rows.t->n];
        total += (double)rows.t->probabilities[k] * __ldcg(rows.values + state);
    }
#else
    Weight last = ONE;
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) {
#if IN_REGISTERS
        const int i = a * WIDTH + k;
#if LOCAL
        u32 x = i % 2 ? rows.successors[i / 2] >> 16 : rows.successors[i / 2] & 0xffffu;
#else
        u32 x = rows.successors[i];
#endif
#else
        Successor x = rows.x[(a * WIDTH + k) * rows.pitch];
#endif
        Weight p = last;
        if (k < WEIGHTS) {
#if IN_REGISTERS
            p = rows.weight[a * WEIGHTS + (k < WEIGHTS ? k : 0)];
#else
            p = rows.w[(a * WEIGHTS + k) * rows.pitch];
#endif
            last -= p;
        }
#if WHOLE_WEIGHTS
        const double weight = __longlong_as_double(0x4330000000000000ll | p) - 4503599627370496.0;   // 2^52 + p, less 2^52
#else
        const double weight = (double)p;
#endif
#if LOCAL
        total += weight * v[x];
#else
        total += weight * __ldcg(rows.values + x);
#endif
    }
#if WHOLE_WEIGHTS
    total *= UNIT;
#endif
#endif
    return total;
}

__device__ __forceinline__ double reward_of(const Rows& rows, int a) {
#if RAGGED
    return (double)rows.t->rewards[rows.row + a];
#elif IN_REGISTERS
    return (double)rows.reward[a];
#else
    return (double)rows.r[a * rows.pitch];
#endif
}

__device__ __forceinline__ double discount_of(const Engine& e, const Rows& rows, int a) {
#if !HAS_TAU
    return e.discount;
#elif RAGGED
    return factor_of(e, (double)rows.t->durations[rows.row + a]);
#elif IN_REGISTERS
    return rows.factor[a];
#else
    return factor_of(e, (double)rows.tau[a * rows.pitch]);
#endif
}

__device__ __forceinline__ double backup(const Engine& e, const Rows& rows, const volatile double* v, int& choice) {
    double best = minus_infinity();
#if RAGGED
    int actions = rows.actions();
    choice = actions ? 0 : -1;
    if (!actions) best = rows.t->terminal ? e.sign * rows.t->terminal[rows.own] : 0.0;
    for (int a = 0; a < actions; ++a) {
#else
    choice = 0;
#pragma unroll
    for (int a = 0; a < ACTIONS; ++a) {
#endif
        double q = e.sign * reward_of(rows, a) + discount_of(e, rows, a) * expected(rows, v, a);
        if (q > best) { best = q; choice = a; }
    }
    return best;
}

// ----------------------------------------------------------------------------------------- what tiles read, and when

__device__ __forceinline__ double everything(const Control& c, int rounds) {
    double sum = c.everything;
    for (int r = 0; r < rounds; ++r) sum += __longlong_as_double((i64)__ldcg(&c.largest[r]));
    return sum;
}

// Sum of `moved` over a tile's inputs; `slack` bounds its rounding. `stride` threads share the work, from `begin`.
__device__ __forceinline__ double moved_inputs(const Engine& e, const Head& h, int rounds, u32 begin, u32 stride,
                                               double& slack) {
    double sum = 0.0;
    if (h.inputs == EVERYTHING) {
        if (begin == 0) sum = everything(*e.control, rounds);
        slack = (rounds + 2) * 2.3e-16;
    } else {
        const u32* inputs = (const u32*)(h.slot + e.inputs) + (i64)h.tile * INPUTS;
        for (u32 i = begin; i < h.inputs; i += stride) sum += load_acquire(e.moved + inputs[i]);
        slack = (h.inputs + 2) * 2.3e-16;
    }
    return sum;
}

// How far the inputs may have moved since the tile's last visit; what rounding the two sums took away is put back.
__device__ __forceinline__ double drift_of(const Engine& e, const Head& h, u32 id, int rounds) {
    double slack, sum = moved_inputs(e, h, rounds, 0, 1, slack);
    return fmax(sum - e.seen[id], 0.0) + slack * sum;
}

__device__ __forceinline__ double weight_of(const Engine& e, u32 id) {
    return e.control->plain ? e.gain[id] : e.steep[id];
}

// --------------------------------------------------------------------------------------------------- the round

// Work list of a round: tiles that must be visited, or whose residual the inputs may have raised above the limit.
extern "C" __global__ void select_tiles(const Engine e, int round) {
    Control& c = *e.control;
    i64 total = (i64)c.set_size * c.set_tiles;
    i64 step = (i64)gridDim.x * blockDim.x;
    i64 padded = (total + 31) / 32 * 32;   // whole warps go round, for the ballot
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < padded; i += step) {
        bool due = false;
        u32 id = 0;
        if (i < total) {
            const Place& p = e.places[e.set[i / c.set_tiles]];
            u32 tile = (u32)(i % c.set_tiles);
            if (tile < p.tiles) {
                id = p.tile + tile;
                due = e.again[id];
                if (!due) due = drift_of(e, e.heads[id], id, round) * weight_of(e, id) > c.limit;
            }
        }
        u32 chosen = __ballot_sync(0xffffffffu, due);
        int lane = threadIdx.x & 31;
        u32 base = 0;
        if (lane == 0 && chosen) base = atomicAdd(&c.count[round], (u32)__popc(chosen));
        base = __shfl_sync(0xffffffffu, base, 0);
        if (due) e.work[base + __popc(chosen & ((1u << lane) - 1))] = id;
    }
}

// The tile's values into shared memory: its own, and its halo's, whose first state a thread is known already.
__device__ __forceinline__ void fill(const Engine& e, const Head& h, double own, u32 first, double* v) {
#if LOCAL
    v[threadIdx.x] = own;
    if (threadIdx.x < h.halo) v[TILE + threadIdx.x] = __ldcg(e.values + first);
    const u32* halo = (const u32*)(h.slot + e.halo) + (i64)h.tile * HALO;
    for (u32 i = threadIdx.x + TILE; i < h.halo; i += TILE) v[TILE + i] = __ldcg(e.values + halo[i]);
#endif
}

__device__ __forceinline__ u32 first_of_halo(const Engine& e, const Head& h) {
#if LOCAL
    return threadIdx.x < h.halo ? ((const u32*)(h.slot + e.halo))[(i64)h.tile * HALO + threadIdx.x] : 0;
#else
    return 0;
#endif
}

// The rows and lists that the visit of a tile will read, and its values: asked for by all threads of a block.
__device__ __forceinline__ void ask_for_tile(const Engine& e, const Head& h) {
#if !RAGGED
    const i64 tile = (i64)h.tile * TILE;
    for (int i = threadIdx.x; i < PLANES + 2; i += TILE) {
        const char* at = h.slot;
        u32 bytes = TILE * sizeof(REAL);
        if (i < ACTIONS * WEIGHTS) {
            at += e.weights + (i * e.pitch + tile) * (i64)sizeof(REAL);
        } else if (i < ACTIONS * (WEIGHTS + 1)) {
            at += e.rewards + ((i - ACTIONS * WEIGHTS) * e.pitch + tile) * (i64)sizeof(REAL);
        } else if (i < ACTIONS * (WEIGHTS + 1 + WIDTH)) {
            at += e.successors + ((i - ACTIONS * (WEIGHTS + 1)) * e.pitch + tile) * (i64)sizeof(Successor);
            bytes = TILE * sizeof(Successor);
        } else if (i < PLANES) {
            at += e.durations + ((i - ACTIONS * (WEIGHTS + 1 + WIDTH)) * e.pitch + tile) * (i64)sizeof(TAU);
            bytes = TILE * sizeof(TAU);
        } else if (i == PLANES) {
            at += e.inputs + (i64)h.tile * (4 * INPUTS);
            bytes = h.inputs == EVERYTHING ? 0 : (4 * h.inputs + 15) / 16 * 16;
        } else {
#if LOCAL
            at += e.halo + (i64)h.tile * (4 * HALO);
            bytes = (4 * h.halo + 15) / 16 * 16;
#else
            bytes = 0;
#endif
        }
        if (bytes) ask_for(at, bytes);
    }
    if (threadIdx.x % 16 == 0 || threadIdx.x % tile_shape[DIMS - 1] == 0) {
        const u32 local = state_of(h);
        if (local != NOWHERE) ask_for((const void*)((u64)(e.values + h.first + local) & ~127ull), 128);
    }
#endif
}

// The visits of a round. What limits it is latency, so everything that a visit reads is asked for as early as possible:
// while a tile is swept, the head of the next one and the number of the one after that are on their way, then the
// next one's rows; and the last warp publishes what a visit changed while the others begin the next.
extern "C" __global__ void __launch_bounds__(TILE, BLOCKS) sweep_tiles(const Engine e, int round) {
    extern __shared__ double v[];   // LOCAL: own values, then the halo's
    __shared__ u32 items[2];
    __shared__ Head heads[2];
    __shared__ double factors[2], sums[2], limit;
    __shared__ double before[TILE];
    Control& c = *e.control;
    const u32 count = c.count[round];
    if (blockIdx.x >= count) return;
    const u32 most = LOCAL ? c.most : 1;
    const bool first_warp = threadIdx.x < 32;
    const int last_warp = TILE / 32 - 1;

    // By the first warp: a tile's head and factor, which are there after wait_for_copies and a barrier.
    auto bring = [&](int turn, u32 id) {
        if (id != NOWHERE) {
            const u32 piece = 16 * threadIdx.x;
            if (piece < sizeof(Head)) copy_beside<16>((char*)&heads[turn] + piece, (const char*)&e.heads[id] + piece);
            if (threadIdx.x == 31) copy_beside<8>(&factors[turn], (c.plain ? e.gain : e.steep) + id);
        }
        if (threadIdx.x == 0) items[turn] = id;
    };
    auto take = [&](u32 i) { return i < count ? e.work[i] : NOWHERE; };

    u32 coming = NOWHERE;   // in the first warp: the tile after the one that is swept
    if (first_warp) {
        u32 now = NOWHERE;
        if (threadIdx.x == 0) {
            const u32 i = atomicAdd(&c.next[round], 2u);
            now = take(i);
            coming = take(i + 1);
        }
        if (threadIdx.x == 0) limit = c.limit;
        bring(0, __shfl_sync(0xffffffffu, now, 0));
        wait_for_copies();
    }
    __syncthreads();
    for (int turn = 0;; turn ^= 1) {
        const u32 id = items[turn];
        if (id == NOWHERE) break;
        u32 further = 0;
        if (first_warp) {
            bring(turn ^ 1, __shfl_sync(0xffffffffu, coming, 0));
            if (threadIdx.x == 0) further = atomicAdd(&c.next[round], 1u);
        }
        const Head& h = heads[turn];
        const u32 halo = first_of_halo(e, h);
        const u32 local = state_of(h);
        const bool here = local != NOWHERE;
        const State state = here ? (State)(h.first + local) : (State)-1;
        const double old = here ? __ldcg(e.values + state) : 0.0;   // which no other block changes
        Rows rows;
        open_rows(e, h, local, rows);
        if (first_warp) {
            double slack, sum = moved_inputs(e, h, round, threadIdx.x, 32, slack);
            for (int d = 16; d; d >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, d);
            if (threadIdx.x == 0) sums[turn] = sum;
        }
        const u32 live = __syncthreads_count(here);   // sums of `moved` before values
        fill(e, h, old, halo, v);
        if (first_warp) {
            if (threadIdx.x == 0) coming = take(further);
            wait_for_copies();
        }
        before[threadIdx.x] = old;
        double now = old, change = 0.0;
        int choice = 0;
        u32 iterations = 0, more = 0;
        __syncthreads();
        if (items[turn ^ 1] != NOWHERE) ask_for_tile(e, heads[turn ^ 1]);
        do {
            if (here) {
                double best = backup(e, rows, v, choice);
                change = fabs(best - now);
                now = best;
#if LOCAL
                ((volatile double*)v)[threadIdx.x] = best;
#endif
            }
            ++iterations;
            more = __syncthreads_or(change * *(volatile double*)&factors[turn] > *(volatile double*)&limit);
        } while (more && iterations < most);
        if (here) {
            __stcg(e.values + state, now);
            e.policy[state] = (CHOICE)choice;
        }
        const u32 partition = h.partition;   // heads[turn] may be another's behind the next barrier
        double largest[4] = {fabs(now - before[threadIdx.x]), change, here ? now : minus_infinity(),
                             here ? -now : minus_infinity()};
        block_bounds(largest, last_warp);
        if (threadIdx.x == 32 * last_warp) {
            const double moved = largest[0] * ROUND_UP, moved_before = __ldcg(e.moved + id);
            e.seen[id] = sums[turn];
            e.left[id] = largest[1];
            e.again[id] = more;
            e.top[id] = largest[2];
            e.bottom[id] = largest[3];
            atomicMax(&c.largest[round], (u64)__double_as_longlong(moved));
            atomicAdd(e.backups + partition, (u64)iterations * live);
            __threadfence();   // the block's values, which the barriers above have ordered before, then `moved`
            __stcg(e.moved + id, (moved_before + moved) * (1.0 + 4e-16));
        }
    }
}

// Bounds of each partition of the batch, its range of values, and what its boundary values did since the last report.
//   report: [0] plain residual, [1] normalised, [2] tiles still due, [3] boundary rise, [4] fall, [5] largest boundary
//   value that changed, [6] largest value, [7] smallest, [8] backups of a state, [9] how far a tile moved at most
extern "C" __global__ void report_partitions(const Engine e, int rounds) {
    const Control& c = *e.control;
    if (blockIdx.x >= c.set_size) return;
    const u32 q = e.set[blockIdx.x];
    const Place& p = e.places[q];
    double m[9];
    m[0] = m[1] = m[3] = m[4] = 0.0;
    m[2] = m[5] = m[6] = m[7] = minus_infinity();
    double due = 0.0;
    double loose = 0.0;   // how far a tile has moved since the last report
    for (u32 tile = threadIdx.x; tile < p.tiles; tile += blockDim.x) {
        u32 id = p.tile + tile;
        double d = e.left[id] + drift_of(e, e.heads[id], id, rounds);
        m[0] = fmax(m[0], e.gain[id] > 0 ? d * e.gain[id] * ROUND_UP : 0.0);
        m[1] = fmax(m[1], e.steep[id] > 0 ? d * e.steep[id] * ROUND_UP : 0.0);
        if (e.again[id] || (d - e.left[id]) * weight_of(e, id) > c.limit) due += 1.0;
        m[6] = fmax(m[6], e.top[id]);
        m[7] = fmax(m[7], e.bottom[id]);
        loose = fmax(loose, (e.moved[id] - e.told[id]) * ROUND_UP);
        e.told[id] = e.moved[id];
    }
    char* slot = e.heads[p.tile].slot;
    u32 count = *(const u32*)(slot + e.boundary_count);
    if (count <= e.boundary_room) {
        const u32* boundary = (const u32*)(slot + e.boundary);
        double* published = (double*)(slot + e.published);
        for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
            double now = e.values[p.first + boundary[i]], change = now - published[i];
            if (change != 0.0) {
                m[3] = fmax(m[3], change);
                m[4] = fmax(m[4], -change);
                m[5] = fmax(m[5], now);
                published[i] = now;
            }
        }
    } else if (loose > 0) {   // no room for the list: no boundary value moved further than its tile did
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

// After the reports of a batch: what all rounds moved is kept for the next.
extern "C" __global__ void end_batch(const Engine e, int rounds) {
    Control& c = *e.control;
    c.everything = everything(c, rounds) * (1.0 + 4e-16);
    for (int r = 0; r < MAX_ROUNDS; ++r) { c.count[r] = 0; c.next[r] = 0; c.largest[r] = 0; }
}

// Every tile of the batch's partitions must be visited in the round that follows.
extern "C" __global__ void wake_tiles(const Engine e) {
    if (blockIdx.x >= e.control->set_size) return;
    const Place& p = e.places[e.set[blockIdx.x]];
    for (u32 tile = threadIdx.x; tile < p.tiles; tile += blockDim.x) e.again[p.tile + tile] = 1;
}

// Exact residuals of one partition at the present values, the largest over its states: measured [0] rise, [1] fall of
// the normalised residual, [2] rise, [3] fall of the plain one (signed; falls are those of the policy's action), [4] B + V
// where |B| > significant; all as images in the order of unsigned numbers. A state without policy gets its greedy action.
extern "C" __global__ void __launch_bounds__(TILE) measure_tiles(const Engine e, int q, double significant,
                                                                 int fresh) {
    extern __shared__ double v[];
    const Place& p = e.places[q];
    for (u32 tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
        const Head& h = e.heads[p.tile + tile];
        const u32 local = state_of(h);
        Rows rows;
        open_rows(e, h, local, rows);
        __syncthreads();
        fill(e, h, local == NOWHERE ? 0.0 : e.values[h.first + local], first_of_halo(e, h), v);
        __syncthreads();
        double m[5] = {minus_infinity(), minus_infinity(), minus_infinity(), minus_infinity(), minus_infinity()};
        if (local != NOWHERE) {
            const i64 s = p.first + local;
            const double now = e.values[s];
            double best = minus_infinity(), normalised = best, kept = 0.0, kept_normalised = 0.0;
#if RAGGED
            const int actions = rows.actions();
#else
            const int actions = ACTIONS;
#endif
            int chosen = fresh ? -1 : (int)e.policy[s], greedy = 0;
            for (int a = 0; a < actions; ++a) {
                double g = discount_of(e, rows, a);
                double q_value = e.sign * reward_of(rows, a) + g * expected(rows, v, a);
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
            m[0] = normalised;
            m[1] = -kept_normalised;
            m[2] = residual;
            m[3] = -kept;
            if (fabs(residual) > significant) m[4] = best;
        }
        block_max(m);
        if (threadIdx.x == 0) {
            for (int i = 0; i < 5; ++i) {
                const u64 bits = (u64)__double_as_longlong(m[i]);
                atomicMax(e.measured + i, (bits >> 63) ? ~bits : (bits | 0x8000000000000000ull));
            }
        }
    }
}

// ------------------------------------------------------------------------------------------------ into a slot

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

__device__ __forceinline__ u32 place_of(const u32* keys, const u16* numbers, u32 size, u32 key) {
    u32 at = (key * 2654435761u) & (size - 1);
    while (keys[at] != key) at = (at + 1) & (size - 1);
    return numbers[at];
}

// Lay a decoded table out in its slot: a block a tile. Dynamic shared memory: keys of halo and inputs, and numbers.
// faults[0]: largest halo of a tile, where it exceeds HALO.
extern "C" __global__ void __launch_bounds__(TILE) lay_out(const Engine e, const Table* table, int q, char* slot,
                                                           u32* faults) {
    extern __shared__ u32 shared[];
    const Table& t = *table;
    const Place p = e.places[q];
    __shared__ u32 halo_used, inputs_used, numbered, too_many, unlisted;
    u32* inputs = shared;                            // [INPUTS_HASH]
    u32* halo = shared + INPUTS_HASH;                // [HALO_HASH]
    u16* numbers = (u16*)(halo + HALO_HASH);         // [HALO_HASH]
    __shared__ Head head;
    const u32 tile = blockIdx.x;
    const u32 id = p.tile + tile;
    if (threadIdx.x == 0) set_box(p, tile, head);
    for (u32 i = threadIdx.x; i < INPUTS_HASH; i += TILE) inputs[i] = HASH_EMPTY;
#if LOCAL
    for (u32 i = threadIdx.x; i < HALO_HASH; i += TILE) halo[i] = HASH_EMPTY;
#endif
    if (threadIdx.x == 0) halo_used = inputs_used = numbered = too_many = unlisted = 0;
    __syncthreads();
    const u32 local = state_of(head);
    const u32 s = local == NOWHERE ? 0 : local;
    const i64 row = ACTIONS ? (i64)s * ACTIONS : (i64)t.action_ptr[s];
    const i64 row_end = local == NOWHERE ? row : ACTIONS ? row + ACTIONS : (i64)t.action_ptr[s + 1];
    double gain = 0.0, steep = 0.0;
    bool lists = true;
    for (i64 j = row; j < row_end; ++j) {
#if HAS_TAU
        double g = factor_of(e, (double)t.durations[j]) * (1.0 + 1e-14);
#else
        double g = e.discount;
#endif
        gain = fmax(gain, g * p.row_sum);
        steep = fmax(steep, g * p.row_sum / (1.0 - g * p.row_sum));
        const i64 lo = WIDTH ? j * WIDTH : (i64)t.successor_ptr[j], hi = WIDTH ? lo + WIDTH : (i64)t.successor_ptr[j + 1];
        for (i64 k = lo; k < hi; ++k) {
            u32 x = (u32)t.successors[k], other, lane;
            if (x < t.n) {
                tile_of(p, x, other, lane);
                if (other == tile) continue;
#if LOCAL
                if (!insert(halo, HALO_HASH, &halo_used, HALO, (u32)(p.first + x))) too_many = 1;
#endif
                if (lists) lists = insert(inputs, INPUTS_HASH, &inputs_used, INPUTS, p.tile + other);
            } else {
                i64 state = (i64)t.halo[x - t.n];
#if LOCAL
                if (!insert(halo, HALO_HASH, &halo_used, HALO, (u32)state)) too_many = 1;
#endif
                if (lists) {
                    const Place& far = e.places[partition_with(e, state)];
                    tile_of(far, (u32)(state - far.first), other, lane);
                    lists = insert(inputs, INPUTS_HASH, &inputs_used, INPUTS, far.tile + other);
                }
            }
        }
    }
    if (!lists) unlisted = 1;
    __syncthreads();
#if LOCAL
    if (too_many) {
        if (threadIdx.x == 0) atomicMax(faults, halo_used);
        return;
    }
    u32* tile_halo = (u32*)(slot + e.halo) + (i64)tile * HALO;
    for (u32 i = threadIdx.x; i < HALO_HASH; i += TILE)
        if (halo[i] != HASH_EMPTY) {
            u32 number = atomicAdd(&numbered, 1u);
            numbers[i] = (u16)number;
            tile_halo[number] = halo[i];
        }
    __syncthreads();
#endif
    const bool all = unlisted;
    u32* tile_inputs = (u32*)(slot + e.inputs) + (i64)tile * INPUTS;
    if (threadIdx.x == 0) {
        head.slot = slot;
        head.first = p.first;
        head.partition = (u32)q;
        head.tile = tile;
        head.halo = halo_used;
        head.inputs = all ? EVERYTHING : inputs_used;
        e.heads[id] = head;
        numbered = 0;
    }
    __syncthreads();
    if (!all)
        for (u32 i = threadIdx.x; i < INPUTS_HASH; i += TILE)
            if (inputs[i] != HASH_EMPTY) tile_inputs[atomicAdd(&numbered, 1u)] = inputs[i];
#if !RAGGED
    const i64 at = (i64)tile * TILE + threadIdx.x;
    REAL* weights = (REAL*)(slot + e.weights) + at;
    Successor* successors = (Successor*)(slot + e.successors) + at;
    REAL* rewards = (REAL*)(slot + e.rewards) + at;
    for (int a = 0; a < ACTIONS; ++a) {
        const i64 j = row + a;
        const bool here = local != NOWHERE;
        rewards[a * e.pitch] = here ? t.rewards[j] : (REAL)0;
#if HAS_TAU
        ((TAU*)(slot + e.durations) + at)[a * e.pitch] = here ? t.durations[j] : (TAU)1;
#endif
        for (int k = 0; k < WIDTH; ++k) {
            const i64 from = j * WIDTH + k;
            if (k < WEIGHTS) weights[(a * WEIGHTS + k) * e.pitch] = here ? t.probabilities[from] : (REAL)0;
            u32 x = here ? (u32)t.successors[from] : 0;
            u32 value = threadIdx.x;
#if LOCAL
            if (here) {
                u32 other = NOWHERE, lane = 0;
                if (x < t.n) tile_of(p, x, other, lane);
                if (other == tile) value = lane;
                else value = TILE + place_of(halo, numbers, HALO_HASH, x < t.n ? (u32)(p.first + x) : (u32)t.halo[x - t.n]);
            }
#else
            value = here ? (x < t.n ? (u32)(p.first + x) : (u32)t.halo[x - t.n]) : (u32)p.first;
#endif
            successors[(a * WIDTH + k) * e.pitch] = (Successor)value;
        }
    }
#endif
    double m[2] = {gain, steep};
    block_max(m);
    if (threadIdx.x == 0) {
        e.gain[id] = m[0];
        e.steep[id] = m[1];
        e.again[id] = 1;
        e.left[id] = __longlong_as_double(0x7ff0000000000000ll);
        e.seen[id] = 0.0;
        e.top[id] = e.bottom[id] = minus_infinity();
        e.told[id] = e.moved[id];
    }
}

// The list of boundary states, and their values as the others know them.
extern "C" __global__ void lay_out_boundary(const Engine e, const Table* table, int q, char* slot) {
    const Place& p = e.places[q];
    u32* count = (u32*)(slot + e.boundary_count);
    u32* boundary = (u32*)(slot + e.boundary);
    double* published = (double*)(slot + e.published);
    i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    bool is = i < p.n && table->boundary[i];
    u32 chosen = __ballot_sync(0xffffffffu, is), base = 0;
    int lane = threadIdx.x & 31;
    if (lane == 0 && chosen) base = atomicAdd(count, (u32)__popc(chosen));
    base = __shfl_sync(0xffffffffu, base, 0) + __popc(chosen & ((1u << lane) - 1));
    if (is && base < e.boundary_room) {
        boundary[base] = (u32)i;
        published[base] = e.values[p.first + i];
    }
}

// Ragged rows stay as they are: copy the table's arrays into the slot, and a descriptor with their new addresses.
extern "C" __global__ void keep_table(const Engine e, const Table* table, int q, char* slot, i64 room) {
#if RAGGED
    const Table& t = *table;
    const i64 rows = ACTIONS ? t.n * ACTIONS : (i64)t.action_ptr[t.n];
    const i64 transitions = WIDTH ? rows * WIDTH : (i64)t.successor_ptr[rows];
    const void* from[9] = {t.action_ptr, t.successor_ptr, t.successors, t.probabilities, t.rewards, t.durations,
                           t.terminal, t.halo, t.boundary};
    i64 bytes[9] = {4 * (t.n + 1), 4 * (rows + 1), (i64)sizeof(INDEX) * transitions, (i64)sizeof(REAL) * transitions,
                    (i64)sizeof(REAL) * rows, (i64)sizeof(TAU) * rows, 8 * t.n, (i64)sizeof(HALO_STATE) * t.halo_size,
                    t.n};
    char* to = slot + e.table + 256;
    const i64 first = (i64)blockIdx.x * blockDim.x + threadIdx.x, step = (i64)gridDim.x * blockDim.x;
    u64* descriptor = (u64*)(slot + e.table);
    for (int f = 0; f < 9; ++f) {
        if (!from[f]) bytes[f] = 0;
        if (first == 0) descriptor[f] = bytes[f] ? (u64)to : 0;
        if (to + bytes[f] > slot + e.table + room) return;   // cannot be: the room is that of the largest table
        for (i64 i = first; i < bytes[f]; i += step) to[i] = ((const char*)from[f])[i];
        to += (bytes[f] + 255) / 256 * 256;
    }
    if (first == 0) {
        descriptor[9] = (u64)t.n;
        descriptor[10] = (u64)t.halo_size;
    }
#endif
}
