// Sweeps of many resident partitions at once, a tile of states a block, one or two states a thread.
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
// any tile in place of both. Values that come from outside (`take_values`) change a tile as a visit does: between two
// batches, by as much as they differ from those that were here, and `moved` is raised after them. Of a tile's own values
// that were not its backups nothing is known: left = infinity until it is visited (`forget_tiles`).
//
// Iterations are in place: a thread may read a neighbour's value of this iteration or of the last. Both are covered by
// the bound, and information travels faster than with two copies; runs need not repeat bit by bit.
//
// A state's number in its tile, in C order of the box, is its *lane*. A thread of a sweep has STATES of them, SPREAD
// lanes apart, so that threads next to each other read values next to each other; two hide each other's latency, and
// share what a visit costs a thread.
//
// Layout of a slot (LOCAL and DIRECT): a record a tile (Record), of planes of TILE entries in the order of threads: entry
// STATES * thread + i is lane thread + i * SPREAD, so that a thread's states come in one load, and neighbouring threads
// read neighbouring bytes: weights [A * W], successors [A * K], rewards [A], durations [A]; W = K - 1 where the last
// probability of a row is one minus the others (exactly: they are multiples of 2^-24). LOCAL successors are 16 bits:
// lane of the tile, or TILE + place in the tile's halo, which is in ascending order. DIRECT ones are states (32 bits), read from the value vector.
// RAGGED rows stay as PartitionTable has them.
//
// Compiled once a store with: LOCAL, RAGGED, ACTIONS and WIDTH (0: ragged), WEIGHTS, TILE (lanes), STATES and THREADS
// (of a sweep), BLOCKS (of which a multiprocessor should hold so many), AHEAD (whether registers hold rows as doubles),
// STAGED (bytes of shared memory to which the next tile's rows are brought, or 0) and LISTED (states of its halo there),
// BOX (states of a full tile), DIMS, TILE_SHAPE, HALO and INPUTS (room for a tile's lists), HALO_HASH and INPUTS_HASH
// (powers of two, larger), HAS_TAU, the types REAL, INDEX, TAU, HALO_STATE, CHOICE; RECORD (bytes of a record), BOUNDARY_ROOM,
// and where each part of a slot begins, AT_...: constants, which the instructions that load hold in themselves.

typedef unsigned long long u64;
typedef long long i64;
typedef unsigned int u32;
typedef unsigned short u16;

#define EVERYTHING 0xffffffffu
#define NOWHERE 0xffffffffu
#define MAX_ROUNDS 64
#define ROUND_UP (1.0 + 1e-12)
#define SPREAD (TILE / STATES)
#define IDLE_THREADS (THREADS > SPREAD)   // they have no states

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
static_assert(STATES == 1 || (STATES == 2 && LOCAL && IN_REGISTERS), "a thread has two states where their rows fit");
static_assert(TILE % 32 == 0 && THREADS % 32 == 0 && THREADS >= SPREAD, "blocks are whole warps");

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
    u32* work;                 // [tiles of the batch] selected tiles; see take_values
    double* report;            // [set_size, 10]
    u64* backups;              // [partitions]
    u64* measured;             // [5]
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

// What a slot holds of a tile, in one piece, so that one copy can bring it: rows in planes, then the tiles that it reads,
// then LIST of the states of its halo.
template <u32 LIST> struct __align__(128) RecordOf {
#if !RAGGED
#if WEIGHTS
    REAL weights[ACTIONS * WEIGHTS][TILE];
#endif
    REAL rewards[ACTIONS][TILE];
#if HAS_TAU
    TAU durations[ACTIONS][TILE];
#endif
    Successor successors[ACTIONS * WIDTH][TILE];
#endif
    u32 inputs[INPUTS];
#if LOCAL
    u32 halo[LIST];
#endif

#if !RAGGED
    __device__ const REAL* weights_of() const {
#if WEIGHTS
        return weights[0];
#else
        return nullptr;
#endif
    }
#endif
};
typedef RecordOf<HALO> Record;
static_assert(sizeof(Record) == RECORD, "as the host reckons");

// ---------------------------------------------------------------------------------------------- geometry of tiles

__device__ constexpr int tile_shape[DIMS] = TILE_SHAPE;

// Tile and lane of a state of a partition.
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

__device__ __forceinline__ Record& record_of(const Head& h) { return ((Record*)(h.slot + AT_TILES))[h.tile]; }

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

// State i of this thread: its lane, or one beyond the tile.
__device__ __forceinline__ u32 lane_of(u32 thread, int i) {
    return !IDLE_THREADS || thread < SPREAD ? thread + i * SPREAD : TILE;
}

// The partition's state in a lane of a tile, or NOWHERE.
__device__ __forceinline__ u32 state_of(const Head& h, u32 lane) {
    u32 local = h.corner;
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

// A number's image in an order of unsigned numbers that is the numbers' own; above 0.
__device__ __forceinline__ u64 image(double x) {
    const u64 bits = (u64)__double_as_longlong(x);
    return (bits >> 63) ? ~bits : (bits | 0x8000000000000000ull);
}

// Upper bounds of the largest of each of N values a thread, in the threads of warp `by`. Every thread of the block must
// come here, and meet at another barrier before the next time.
template <int N>
__device__ __forceinline__ void block_bounds(double (&x)[N], int by) {
    __shared__ u32 warps[N][32];
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, count = THREADS / 32;
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

// What this thread has asked for so far is waited for apart from what it asks for next, by `wait_for_first_copies`.
__device__ __forceinline__ void end_first_copies() {
#ifndef EMULATED_CUDA
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

__device__ __forceinline__ void wait_for_first_copies() {
#ifndef EMULATED_CUDA
    asm volatile("cp.async.commit_group; cp.async.wait_group 1;" ::: "memory");
#endif
}

#if STAGED
// Copies by the bulk engine, and the barrier in shared memory that counts their bytes: a turn of it ends once all bytes
// that were announced have come. Whoever has waited for the turn sees them.
__device__ __forceinline__ void open_turns(u64* turns) {
#ifndef EMULATED_CUDA
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"((u32)__cvta_generic_to_shared(turns)) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

__device__ __forceinline__ void announce(u64* turns, u32 bytes) {
#ifndef EMULATED_CUDA
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 ::"r"((u32)__cvta_generic_to_shared(turns)), "r"(bytes) : "memory");
#endif
}

// Multiples of 16, aligned.
__device__ __forceinline__ void copy_bulk(void* to, const void* from, u32 bytes, u64* turns) {
#ifdef EMULATED_CUDA
    for (u32 i = 0; i < bytes; ++i) ((char*)to)[i] = ((const char*)from)[i];
#else
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from), "r"(bytes),
                 "r"((u32)__cvta_generic_to_shared(turns)) : "memory");
#endif
}

// Turns are told apart by whether their number is odd.
__device__ __forceinline__ void wait_for_turn(u64* turns, u32 odd) {
#ifndef EMULATED_CUDA
    u32 over = 0;
    while (!over)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(over) : "r"((u32)__cvta_generic_to_shared(turns)), "r"(odd) : "memory");
#endif
}
#endif

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

// What this thread and others before a barrier wrote is seen by whoever has acquired this value.
__device__ __forceinline__ void store_release(double* at, double x) {
#ifdef EMULATED_CUDA
    __threadfence();
    *at = x;
#else
    asm volatile("st.release.gpu.global.f64 [%0], %1;" ::"l"(at), "d"(x) : "memory");
#endif
}

__device__ __forceinline__ double minus_infinity() { return -__longlong_as_double(0x7ff0000000000000ll); }

// ------------------------------------------------------------------------------------------- rows of a thread's states

// A float32 becomes UNIT of itself as a double by a shift of its bits by 3, since exponents of doubles begin below
// those of floats, also if it is 0 or denormal; a conversion would take four times as long as any other instruction of
// an iteration. It is exact, and so is the product with 2^896 that undoes it; sums lose what is below
// 2^-1074 / UNIT = 2^-178. In iterations, `shift` is a 3 that the compiler does not know, unless AHEAD: it would else
// work out all doubles before the first iteration and keep them, in more registers than there are.
#define UNIT (sizeof(REAL) == 4 && !RAGGED ? 0x1p-896 : 1.0)
#define UNITS (sizeof(REAL) == 4 && !RAGGED ? 0x1p896 : 1.0)

__device__ __forceinline__ double widened(float x, u32 shift) {
    const u32 bits = __float_as_uint(x);
    return __hiloint2double((int)bits >> shift & (int)0x8fffffffu, (int)(bits << (32 - shift)));
}

// The same of numbers without a sign.
__device__ __forceinline__ double widened_weight(float x, u32 shift) {
    const u32 bits = __float_as_uint(x);
    return __hiloint2double((int)(bits >> shift), (int)(bits << (32 - shift)));
}

__device__ __forceinline__ double widened(double x, u32) { return x; }
__device__ __forceinline__ double widened_weight(double x, u32) { return x; }

struct Rows {   // of a state
#if RAGGED
    const Table* t;
    i64 first;
    i64 row, end;
    u32 own;
    __device__ int actions() const { return (int)(end - row); }
#elif IN_REGISTERS
    REAL weight[ACTIONS * WEIGHTS ? ACTIONS * WEIGHTS : 1];
#if LOCAL
    u32 successors[(ACTIONS * WIDTH + 1) / 2];   // two in a register
#else
    u32 successors[ACTIONS * WIDTH];
#endif
    REAL reward[ACTIONS];
#if HAS_TAU
    TAU duration[ACTIONS];
    double factor[ACTIONS];   // discounts, UNITS of them: by find_discounts
#endif
#else
    const REAL* w;
    const Successor* x;
    const REAL* r;
#if HAS_TAU
    const TAU* tau;
#endif
#endif
};

// STATES neighbouring numbers of a plane.
template <class T> struct Group { T at[STATES]; };

template <bool NEAR, class T> __device__ __forceinline__ T number_at(const T* at) {
    if constexpr (NEAR) return *at;
    else return __ldg(at);
}

template <bool NEAR, class T> __device__ __forceinline__ Group<T> group_at(const T* at) {
    Group<T> group;
    if constexpr (STATES == 1) {
        group.at[0] = number_at<NEAR>(at);
    } else {
        static_assert(sizeof(T) <= 8, "two come in one load");
        if constexpr (sizeof(T) == 2) {
            const u32 both = number_at<NEAR>((const u32*)at);
            group.at[0] = (T)both;
            group.at[STATES - 1] = (T)(both >> 16);
        } else if constexpr (sizeof(T) == 4) {
            const float2 both = number_at<NEAR>((const float2*)at);
            group.at[0] = both.x;
            group.at[STATES - 1] = both.y;
        } else {
            const double2 both = number_at<NEAR>((const double2*)at);
            group.at[0] = both.x;
            group.at[STATES - 1] = both.y;
        }
    }
    return group;
}

// discount ** duration. What the product x = duration * log(discount) rounds away changes the result by at most
// 2^-53 |x| e^x <= 2^-54. Steps are short beside the horizon of the discount, as a rule, and then a few terms of the
// series are enough. For |x| < 2^-6 those after x^7 / 7! are less than 1.02 x^8 / 8! < 2^-63. Horner's scheme rounds a
// number near 1 last, by 2^-53 at most, and before that one of which |x| goes into the result: less than 2^-52 in all.
__device__ __forceinline__ bool is_short(double x) { return fabs(x) < 0x1p-6; }

__device__ __forceinline__ double short_factor(double x) {
    double sum = 1.0 / 5040;
    sum = sum * x + 1.0 / 720;
    sum = sum * x + 1.0 / 120;
    sum = sum * x + 1.0 / 24;
    sum = sum * x + 1.0 / 6;
    sum = sum * x + 0.5;
    sum = sum * x + 1.0;
    return sum * x + 1.0;
}

__device__ __forceinline__ double long_factor(const Engine& e, double duration) {
    return isinf(duration) ? 0.0 : e.discount > 0 ? exp(duration * e.log_discount) : duration > 0 ? 0.0 : 1.0;
}

__device__ __forceinline__ double factor_of(const Engine& e, double duration) {
    const double x = duration * e.log_discount;
    return is_short(x) ? short_factor(x) : long_factor(e, duration);
}

#if !RAGGED
// Rows of the thread's states, from a tile's record. NEAR: which is in shared memory.
template <bool NEAR, u32 LIST> __device__ __forceinline__ void open_rows(const RecordOf<LIST>& record, Rows (&rows)[STATES]) {
    const u32 thread = STATES * (IDLE_THREADS ? min(threadIdx.x, (u32)SPREAD - 1) : threadIdx.x);
    const REAL* w = record.weights_of() + thread;
    const Successor* x = record.successors[0] + thread;
    const REAL* r = record.rewards[0] + thread;
#if HAS_TAU
    const TAU* tau = record.durations[0] + thread;
#endif
#if IN_REGISTERS
#if HAS_TAU
#pragma unroll
    for (int a = 0; a < ACTIONS; ++a) {
        const Group<TAU> group = group_at<NEAR>(tau + a * TILE);
#pragma unroll
        for (int s = 0; s < STATES; ++s) rows[s].duration[a] = group.at[s];
    }
#endif
#pragma unroll
    for (int i = 0; i < ACTIONS * WEIGHTS; ++i) {
        const Group<REAL> group = group_at<NEAR>(w + i * TILE);
#pragma unroll
        for (int s = 0; s < STATES; ++s) rows[s].weight[i] = group.at[s];
    }
#pragma unroll
    for (int i = 0; i < ACTIONS * WIDTH; ++i) {
        const Group<Successor> group = group_at<NEAR>(x + i * TILE);
#pragma unroll
        for (int s = 0; s < STATES; ++s) {
#if LOCAL
            rows[s].successors[i / 2] = i % 2 ? rows[s].successors[i / 2] | (u32)group.at[s] << 16 : group.at[s];
#else
            rows[s].successors[i] = group.at[s];
#endif
        }
    }
#pragma unroll
    for (int a = 0; a < ACTIONS; ++a) {
        const Group<REAL> group = group_at<NEAR>(r + a * TILE);
#pragma unroll
        for (int s = 0; s < STATES; ++s) rows[s].reward[a] = group.at[s];
    }
#else
    static_assert(!NEAR, "rows of which each is read where it is needed stay in their slot");
    rows[0].w = w;
    rows[0].x = x;
    rows[0].r = r;
#if HAS_TAU
    rows[0].tau = tau;
#endif
#endif
}
#endif

// Rows of the thread's states in a tile, of which `local` are the partition's numbers.
__device__ __forceinline__ void open_rows(const Engine& e, const Head& h, const u32 (&local)[STATES],
                                          Rows (&rows)[STATES]) {
#if RAGGED
    rows[0].t = (const Table*)(h.slot + AT_TABLE);
    rows[0].first = h.first;
    rows[0].own = local[0];
    const u32 s = local[0] == NOWHERE ? 0 : local[0];
    rows[0].row = ACTIONS ? (i64)s * ACTIONS : (i64)rows[0].t->action_ptr[s];
    rows[0].end = ACTIONS ? rows[0].row + ACTIONS : (i64)rows[0].t->action_ptr[s + 1];
    if (local[0] == NOWHERE) rows[0].end = rows[0].row;
#else
    open_rows<false>(record_of(h), rows);
#endif
}

// Once rows are there: their discounts.
__device__ __forceinline__ void find_discounts(const Engine& e, Rows (&rows)[STATES]) {
#if IN_REGISTERS && HAS_TAU
    bool all_short = true;
#pragma unroll
    for (int i = 0; i < ACTIONS * STATES; ++i) {
        Rows& row = rows[i % STATES];
        const double x = (double)row.duration[i / STATES] * e.log_discount;
        all_short = all_short && is_short(x);
        row.factor[i / STATES] = UNITS * short_factor(x);
    }
    if (!all_short) {
#pragma unroll
        for (int i = 0; i < ACTIONS * STATES; ++i) {
            Rows& row = rows[i % STATES];
            row.factor[i / STATES] = UNITS * factor_of(e, (double)row.duration[i / STATES]);
        }
    }
#endif
}

// Value of the row's expected successor and its discount, UNIT of it; `v` holds the tile's own values and its halo.
__device__ __forceinline__ double expected(const Engine& e, const Rows& rows, const volatile double* v, int a,
                                           u32 shift) {
    double total = 0.0;
#if RAGGED
    i64 j = rows.row + a;
    i64 lo = WIDTH ? j * WIDTH : (i64)rows.t->successor_ptr[j];
    i64 hi = WIDTH ? lo + WIDTH : (i64)rows.t->successor_ptr[j + 1];
    for (i64 k = lo; k < hi; ++k) {
        i64 x = (i64)rows.t->successors[k];
        i64 state = x < rows.t->n ? rows.first + x : (i64)rows.t->halo[x - rows.t->n];
        total += (double)rows.t->probabilities[k] * __ldcg(e.values + state);
    }
#else
    REAL last = 1;
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
        Successor x = rows.x[(a * WIDTH + k) * TILE];
#endif
        REAL p = last;
        if (k < WEIGHTS) {
#if IN_REGISTERS
            p = rows.weight[a * WEIGHTS + (k < WEIGHTS ? k : 0)];
#else
            p = rows.w[(a * WEIGHTS + k) * TILE];
#endif
            last -= p;
        }
#if LOCAL
        total += widened_weight(p, shift) * v[x];
#else
        total += widened_weight(p, shift) * __ldcg(e.values + x);
#endif
    }
#endif
    return total;
}

// UNIT of a row's reward.
__device__ __forceinline__ double reward_of(const Rows& rows, int a, u32 shift) {
#if RAGGED
    return (double)rows.t->rewards[rows.row + a];
#elif IN_REGISTERS
    return widened(rows.reward[a], shift);
#else
    return widened(rows.r[a * TILE], shift);
#endif
}

// UNITS of a row's discount.
__device__ __forceinline__ double discount_of(const Engine& e, const Rows& rows, int a) {
#if !HAS_TAU
    return UNITS * e.discount;
#elif RAGGED
    return factor_of(e, (double)rows.t->durations[rows.row + a]);
#elif IN_REGISTERS
    return rows.factor[a];
#else
    return UNITS * factor_of(e, (double)rows.tau[a * TILE]);
#endif
}

// What an action is worth.
__device__ __forceinline__ double worth_of(const Engine& e, const Rows& rows, const volatile double* v, int a,
                                           u32 shift = 3) {
    return UNITS * e.sign * reward_of(rows, a, shift) + discount_of(e, rows, a) * expected(e, rows, v, a, shift);
}

__device__ __forceinline__ double backup(const Engine& e, const Rows& rows, const volatile double* v, int& choice,
                                         u32 shift) {
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
        const double q = worth_of(e, rows, v, a, shift);
        if (q > best) { best = q; choice = a; }
    }
    return best;
}

// ----------------------------------------------------------------------------------------- what tiles read, and when

__device__ __forceinline__ double everything(const Control& c, int rounds) {
    double sum = c.everything;
#pragma unroll 1
    for (int r = 0; r < rounds; ++r) sum += __longlong_as_double((i64)__ldcg(&c.largest[r]));
    return sum;
}

// Sum of `moved` over a tile's inputs; `slack` bounds its rounding. `stride` threads share the work, from `begin`.
__device__ __forceinline__ double moved_inputs(const Engine& e, const Head& h, const u32* inputs, int rounds, u32 begin,
                                               u32 stride, double& slack) {
    double sum = 0.0;
    if (h.inputs == EVERYTHING) {
        if (begin == 0) sum = everything(*e.control, rounds);
        slack = (rounds + 2) * 2.3e-16;
    } else {
        for (u32 i = begin; i < h.inputs; i += stride) sum += load_acquire(e.moved + inputs[i]);
        slack = (h.inputs + 2) * 2.3e-16;
    }
    return sum;
}

__device__ __forceinline__ const u32* inputs_of(const Head& h) {
    return record_of(h).inputs;
}

// How far the inputs may have moved since the tile's last visit; what rounding the two sums took away is put back.
__device__ __forceinline__ double drift_of(const Engine& e, const Head& h, u32 id, int rounds) {
    double slack, sum = moved_inputs(e, h, inputs_of(h), rounds, 0, 1, slack);
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

#if STAGED
// What a visit needs of its tile, brought to shared memory during the visit before.
struct Staged {
    RecordOf<(LISTED + 3) / 4 * 4> record;   // with the first states of the halo
    double own[2][TILE];                     // own values at the visit's begin, and those of the next
    u64 turns;
};
static_assert(sizeof(Staged) <= STAGED, "as the host reckons");

// Ask for the record of a tile, by one thread.
__device__ __forceinline__ void stage_record(const Head& h, Staged& to) {
    const u32 bytes = (char*)to.record.halo - (char*)&to.record + (4 * min(h.halo, (u32)LISTED) + 15) / 16 * 16;
    announce(&to.turns, bytes);
    copy_bulk(&to.record, &record_of(h), bytes, &to.turns);
}

// A tile's own values, asked for by all threads, each those of its states.
__device__ __forceinline__ void stage_own(const Engine& e, const Head& h, double* own) {
#pragma unroll
    for (int s = 0; s < STATES; ++s) {
        const u32 lane = lane_of(threadIdx.x, s), local = state_of(h, lane);
        if (local != NOWHERE) copy_beside<8>(own + lane, e.values + h.first + local);
        else if (lane < TILE) own[lane] = 0.0;
    }
}
#endif

#define MOST_AHEAD (STAGED ? 8 : 4)
#define HALO_AHEAD ((HALO + THREADS - 1) / THREADS < MOST_AHEAD ? (HALO + THREADS - 1) / THREADS : MOST_AHEAD)

// Numbers of the first states of a tile's halo that this thread brings.
__device__ __forceinline__ void begin_halo(const Head& h, u32 (&states)[HALO_AHEAD]) {
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
// They come by way of the first-level cache, which `load_acquire` has emptied of what is older than `moved`.
__device__ __forceinline__ void ask_for_halo(const Engine& e, const Head& h, const u32 (&states)[HALO_AHEAD], double* v) {
#if LOCAL
#pragma unroll
    for (int j = 0; j < HALO_AHEAD; ++j)
        if (states[j] != NOWHERE) copy_beside<8>(v + TILE + threadIdx.x + j * THREADS, e.values + states[j]);
    const u32* halo = record_of(h).halo;
    for (u32 i = threadIdx.x + HALO_AHEAD * THREADS; i < h.halo; i += THREADS)
        copy_beside<8>(v + TILE + i, e.values + __ldg(halo + i));
#endif
}

__device__ __forceinline__ void put_own(const double (&own)[STATES], double* v) {
#if LOCAL
#pragma unroll
    for (int s = 0; s < STATES; ++s)
        if (!IDLE_THREADS || threadIdx.x < SPREAD) v[lane_of(threadIdx.x, s)] = own[s];
#endif
}

__device__ __forceinline__ void fill(const Engine& e, const Head& h, const double (&own)[STATES],
                                     const u32 (&states)[HALO_AHEAD], double* v, Rows (&rows)[STATES]) {
    ask_for_halo(e, h, states, v);
    find_discounts(e, rows);
    put_own(own, v);
    wait_for_copies();
}

// The rows and lists that the visit of a tile will read, and its values: asked for by all threads of a block.
__device__ __forceinline__ void ask_for_tile(const Engine& e, const Head& h) {
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
// shared memory (STAGED; else they are asked for into the second-level cache), whose head has come during the visit
// before, and the tile after that is claimed; and the last warp publishes what a visit changed while the others begin
// the next.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) sweep_tiles(const Engine e, int round) {
    extern __shared__ __align__(128) double v[];   // LOCAL: own values, then the halo's; STAGED: then what is staged
    __shared__ u32 items[3];
    __shared__ Head heads[3];
    __shared__ u32 three;           // 3
    __shared__ double factors[3], moved[3], sums[3][SUMMING], limit;
#if STAGED
    Staged& near = *(Staged*)(v + (TILE + HALO + 15) / 16 * 16);
    const u32 stager = THREADS > 32 ? 32 : 0;   // a thread of a warp that neither claims tiles nor publishes changes
    u32 odd = 0;                             // whether the visit is the block's second, fourth ...
#else
    __shared__ double before[STATES][THREADS];   // own values at the visit's begin
#endif
    Control& c = *e.control;
    const u32 count = c.count[round];
    if (blockIdx.x >= count) return;
    const u32 most = LOCAL ? c.most : 1;
    const bool first_warp = threadIdx.x < 32;
    const int last_warp = THREADS / 32 - 1;

    // By the first warp: a tile's head, factor and `moved`, which are there after wait_for_copies and a barrier.
    auto bring = [&](int turn, u32 id) {
        if (id != NOWHERE) {
            const u32 piece = 16 * threadIdx.x;
            if (piece < sizeof(Head)) copy_beside<16>((char*)&heads[turn] + piece, (const char*)&e.heads[id] + piece);
            if (threadIdx.x == 30) copy_beside<8>(&moved[turn], e.moved + id);   // no other block changes it
            if (threadIdx.x == 31) copy_beside<8>(&factors[turn], (c.plain ? e.gain : e.steep) + id);
        }
        if (threadIdx.x == 0) items[turn] = id;
    };
    // By thread 0: the place of the next tile in the work list. Each block begins with one of its own.
    auto claim = [&]() { return gridDim.x + atomicAdd(&c.next[round], 1u); };
    auto take = [&](u32 i) { return i < count ? e.work[i] : NOWHERE; };

    if (first_warp) {
        u32 now = NOWHERE, coming = NOWHERE;
        if (threadIdx.x == 0) {
            now = take(blockIdx.x);
            coming = take(claim());
            limit = c.limit;
            three = 3;
#if STAGED
            open_turns(&near.turns);
#endif
        }
        bring(0, __shfl_sync(0xffffffffu, now, 0));
        bring(1, __shfl_sync(0xffffffffu, coming, 0));
        wait_for_copies();
    }
    __syncthreads();
#if STAGED
    if (items[0] != NOWHERE) {
        if (threadIdx.x == stager) stage_record(heads[0], near);
        stage_own(e, heads[0], near.own[0]);
        wait_for_copies();
        __syncthreads();
    }
#endif
    for (int turn = 0;;) {
        const u32 id = items[turn];
        if (id == NOWHERE) break;
        const int next = turn == 2 ? 0 : turn + 1;
        u32 coming = 0;   // in thread 0: where the tile after the next stands, then its number
        if (threadIdx.x == 0) coming = claim();
        const Head& h = heads[turn];
        u32 halo[HALO_AHEAD];
        u32 local[STATES];
        double now[STATES];   // no other block changes them
        Rows rows[STATES];
#if STAGED
        const u32* inputs = near.record.inputs;
        wait_for_turn(&near.turns, odd);
#pragma unroll
        for (int j = 0; j < HALO_AHEAD; ++j) {
            const u32 i = threadIdx.x + j * THREADS;
            halo[j] = i < h.halo ? near.record.halo[i] : NOWHERE;
        }
#pragma unroll
        for (int s = 0; s < STATES; ++s) {
            const u32 lane = lane_of(threadIdx.x, s);
            local[s] = state_of(h, lane);
            now[s] = local[s] != NOWHERE ? near.own[odd][lane] : 0.0;
        }
        open_rows<true>(near.record, rows);
#else
        const u32* inputs = inputs_of(h);
        begin_halo(h, halo);
#pragma unroll
        for (int s = 0; s < STATES; ++s) {
            local[s] = state_of(h, lane_of(threadIdx.x, s));
            now[s] = local[s] != NOWHERE ? __ldcg(e.values + (State)(h.first + local[s])) : 0.0;
        }
        open_rows(e, h, local, rows);
        if (items[next] != NOWHERE) ask_for_tile(e, heads[next]);
#endif
        if (threadIdx.x < 32 * SUMMING) {
            double slack, sum = moved_inputs(e, h, inputs, round, threadIdx.x, 32 * SUMMING, slack);
            for (int d = 16; d; d >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, d);
            if (threadIdx.x % 32 == 0) sums[turn][threadIdx.x / 32] = sum;
        }
        __syncthreads();   // sums of `moved` before values; what is staged has been read
        if (threadIdx.x == 0) coming = take(coming);
#if STAGED
        ask_for_halo(e, h, halo, v);
        end_first_copies();
        if (items[next] != NOWHERE) {
            if (threadIdx.x == stager) stage_record(heads[next], near);
            stage_own(e, heads[next], near.own[odd ^ 1]);
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
                // Rows of a lane without a state are there, and keep it at 0.
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
                ((volatile double*)v)[lane_of(threadIdx.x, s)] = best[s];
#endif
            }
            ++iterations;
            more = __syncthreads_or(change * *(volatile double*)&factors[turn] > *(volatile double*)&limit);
        } while (more && iterations < most);
        double largest[4] = {0.0, change, minus_infinity(), minus_infinity()};
#pragma unroll
        for (int s = 0; s < STATES; ++s) {
            if (local[s] == NOWHERE) continue;
            const State state = (State)(h.first + local[s]);
            __stcg(e.values + state, now[s]);
            e.policy[state] = (CHOICE)choice[s];
#if STAGED
            const double before = near.own[odd][lane_of(threadIdx.x, s)];
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
            // The block's values, which the barriers above have ordered before, then `moved`; it is waited for, so first.
            const double change_of_tile = largest[0] * ROUND_UP;
            store_release(e.moved + id, (moved[turn] + change_of_tile) * (1.0 + 4e-16));
            double seen = 0.0;
            for (int w = 0; w < SUMMING; ++w) seen += sums[turn][w];
            e.seen[id] = seen;
            e.left[id] = largest[1];
            e.again[id] = more;
            e.top[id] = largest[2];
            e.bottom[id] = largest[3];
            atomicMax(&c.largest[round], (u64)__double_as_longlong(change_of_tile));
            u64 states = 1;
            for (int d = 0; d < DIMS; ++d) states *= h.room[d];
            atomicAdd(e.backups + h.partition, iterations * states);
        }
        turn = next;
#if STAGED
        odd ^= 1;
#endif
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
    u32 count = *(const u32*)(slot + AT_BOUNDARY_COUNT);
    if (count <= BOUNDARY_ROOM) {
        const u32* boundary = (const u32*)(slot + AT_BOUNDARY);
        double* published = (double*)(slot + AT_PUBLISHED);
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

// Nothing is known of a partition's tiles any more: its values have changed otherwise than by visits. Its boundary values
// are known to others as they are.
extern "C" __global__ void forget_tiles(const Engine e, int q) {
    const Place& p = e.places[q];
    const u32 first = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
    for (u32 tile = first; tile < p.tiles; tile += step) {
        const u32 id = p.tile + tile;
        e.again[id] = 1;
        e.left[id] = __longlong_as_double(0x7ff0000000000000ll);
        e.told[id] = e.moved[id];
    }
    char* slot = e.heads[p.tile].slot;
    const u32 count = *(const u32*)(slot + AT_BOUNDARY_COUNT);
    const u32* boundary = (const u32*)(slot + AT_BOUNDARY);
    if (count <= BOUNDARY_ROOM)
        for (u32 i = first; i < count; i += step) ((double*)(slot + AT_PUBLISHED))[i] = e.values[p.first + boundary[i]];
}

// ------------------------------------------------------------------------------------------ values from and to outside

// Lists lie in the host's page-locked memory, and are read and written there: 16 bytes a state over the link, once.

extern "C" __global__ void read_values(const Engine e, const i64* states, double* to, u32 count) {
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) to[i] = e.values[states[i]];
}

// Lists of states, one partition each: list l is states[ptr[l]] ... of partitions[l]. A kernel works on the lists which[m];
// values[starts[m]] ... are theirs. Block b has list b / parts, and every parts-th 256 of it.
extern "C" __global__ void gather_values(const Engine e, const u32* partitions, const i64* ptr, const i64* states,
                                         const u32* which, const i64* starts, double* values, u32 parts) {
    const u32 m = blockIdx.x / parts, list = which[m];
    const i64 begin = ptr[list], count = ptr[list + 1] - begin;
    double* to = values + starts[m];
    for (i64 i = (i64)(blockIdx.x % parts) * blockDim.x + threadIdx.x; i < count; i += (i64)parts * blockDim.x)
        to[i] = e.values[states[begin + i]];
}

// States take other values; work[tile], 0 before, becomes a bound of the largest change in the tile, and found [3 m],
// 0 before, image of the largest rise, fall and changed value in list m.
extern "C" __global__ void take_values(const Engine e, const u32* partitions, const i64* ptr, const i64* states,
                                       const u32* which, const i64* starts, const double* values, u32 parts,
                                       u64* found) {
    const u32 m = blockIdx.x / parts, list = which[m];
    const i64 begin = ptr[list], count = ptr[list + 1] - begin;
    const Place& p = e.places[partitions[list]];
    const double* from = values + starts[m];
    double most[3] = {0.0, 0.0, minus_infinity()};
    for (i64 i = (i64)(blockIdx.x % parts) * blockDim.x + threadIdx.x; i < count; i += (i64)parts * blockDim.x) {
        const i64 state = states[begin + i];
        const double now = from[i], change = now - e.values[state];
        if (change == 0.0) continue;
        e.values[state] = now;
        u32 tile, lane;
        tile_of(p, (u32)(state - p.first), tile, lane);
        atomicMax(e.work + p.tile + tile, above(fabs(change)));
        most[0] = fmax(most[0], change);
        most[1] = fmax(most[1], -change);
        most[2] = fmax(most[2], now);
    }
    block_max(most);
    if (threadIdx.x == 0 && most[2] > minus_infinity())
        for (int i = 0; i < 3; ++i) atomicMax(found + 3 * m + i, image(most[i]));
}

// After all values are written: the tiles of these partitions, one a block, have moved so far. What that adds to
// `everything` counts as that of a round, which `end_batch` takes in.
extern "C" __global__ void raise_moved(const Engine e, const u32* partitions, const u32* which) {
    const Place& p = e.places[partitions[which[blockIdx.x]]];
    double largest[1] = {0.0};
    for (u32 tile = threadIdx.x; tile < p.tiles; tile += blockDim.x) {
        const u32 bound = e.work[p.tile + tile];
        if (!bound) continue;
        const double change = number_of(bound) * ROUND_UP;
        e.moved[p.tile + tile] = (e.moved[p.tile + tile] + change) * (1.0 + 4e-16);
        largest[0] = fmax(largest[0], change);
    }
    block_max(largest);
    if (threadIdx.x == 0) atomicMax(&e.control->largest[0], (u64)__double_as_longlong(largest[0]));
}

// Exact residuals of one partition at the present values, the largest over its states: measured [0] rise, [1] fall of
// the normalised residual, [2] rise, [3] fall of the plain one (signed; falls are those of the policy's action), [4] B + V
// where |B| > significant; all as images in the order of unsigned numbers. A state without policy gets its greedy action.
extern "C" __global__ void __launch_bounds__(THREADS) measure_tiles(const Engine e, int q, double significant,
                                                                    int fresh) {
    extern __shared__ double v[];
    const Place& p = e.places[q];
    for (u32 tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
        const Head& h = e.heads[p.tile + tile];
        u32 numbers[STATES], halo[HALO_AHEAD];
        double own[STATES];
#pragma unroll
        for (int i = 0; i < STATES; ++i) {
            numbers[i] = state_of(h, lane_of(threadIdx.x, i));
            own[i] = numbers[i] == NOWHERE ? 0.0 : e.values[h.first + numbers[i]];
        }
        Rows states[STATES];
        open_rows(e, h, numbers, states);
        begin_halo(h, halo);
        __syncthreads();
        fill(e, h, own, halo, v, states);
        __syncthreads();
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
            for (int i = 0; i < 5; ++i) atomicMax(e.measured + i, image(m[i]));
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
// faults[0]: largest halo of a tile, where it exceeds HALO.
extern "C" __global__ void __launch_bounds__(TILE) lay_out(const Engine e, const Table* table, int q, char* slot,
                                                           u32* faults) {
    extern __shared__ u32 shared[];
    const Table& t = *table;
    const Place p = e.places[q];
    __shared__ u32 halo_used, inputs_used, numbered, too_many, unlisted;
    u32* inputs = shared;                            // [INPUTS_HASH]
    u32* halo = shared + INPUTS_HASH;                // [HALO_HASH]
    __shared__ Head head;
    const u32 tile = blockIdx.x;
    const u32 id = p.tile + tile;
    Record& record = ((Record*)(slot + AT_TILES))[tile];
    if (threadIdx.x == 0) set_box(p, tile, head);
    for (u32 i = threadIdx.x; i < INPUTS_HASH; i += TILE) inputs[i] = HASH_EMPTY;
#if LOCAL
    for (u32 i = threadIdx.x; i < HALO_HASH; i += TILE) halo[i] = HASH_EMPTY;
#endif
    if (threadIdx.x == 0) halo_used = inputs_used = numbered = too_many = unlisted = 0;
    __syncthreads();
    const u32 own = threadIdx.x % STATES * SPREAD + threadIdx.x / STATES;   // the lane of this entry
    const u32 local = state_of(head, own);
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
    u32* tile_halo = record.halo;
    sort_keys(halo, HALO_HASH);
    for (u32 i = threadIdx.x; i < halo_used; i += TILE) tile_halo[i] = halo[i];
#endif
    const bool all = unlisted;
    u32* tile_inputs = record.inputs;
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
                u32 other = NOWHERE, lane = 0;
                if (x < t.n) tile_of(p, x, other, lane);
                if (other == tile) value = lane;
                else value = TILE + place_of(halo, halo_used, x < t.n ? (u32)(p.first + x) : (u32)t.halo[x - t.n]);
            }
#else
            value = here ? (x < t.n ? (u32)(p.first + x) : (u32)t.halo[x - t.n]) : (u32)p.first;
#endif
            record.successors[a * WIDTH + k][at] = (Successor)value;
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
    u32* count = (u32*)(slot + AT_BOUNDARY_COUNT);
    u32* boundary = (u32*)(slot + AT_BOUNDARY);
    double* published = (double*)(slot + AT_PUBLISHED);
    i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    bool is = i < p.n && table->boundary[i];
    u32 chosen = __ballot_sync(0xffffffffu, is), base = 0;
    int lane = threadIdx.x & 31;
    if (lane == 0 && chosen) base = atomicAdd(count, (u32)__popc(chosen));
    base = __shfl_sync(0xffffffffu, base, 0) + __popc(chosen & ((1u << lane) - 1));
    if (is && base < BOUNDARY_ROOM) {
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
    char* to = slot + AT_TABLE + 256;
    const i64 first = (i64)blockIdx.x * blockDim.x + threadIdx.x, step = (i64)gridDim.x * blockDim.x;
    u64* descriptor = (u64*)(slot + AT_TABLE);
    for (int f = 0; f < 9; ++f) {
        if (!from[f]) bytes[f] = 0;
        if (first == 0) descriptor[f] = bytes[f] ? (u64)to : 0;
        if (to + bytes[f] > slot + AT_TABLE + room) return;   // cannot be: the room is that of the largest table
        for (i64 i = first; i < bytes[f]; i += step) to[i] = ((const char*)from[f])[i];
        to += (bytes[f] + 255) / 256 * 256;
    }
    if (first == 0) {
        descriptor[9] = (u64)t.n;
        descriptor[10] = (u64)t.halo_size;
    }
#endif
}
