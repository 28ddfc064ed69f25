// Sweeps of a batch of resident partitions, a tile of states a block, one or two states a thread.
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
// What is proved. For each tile:  accumulated = sum over its visits of its largest change of a value;
//   last_change = largest change in the last iteration of its last visit;  snapshot = sum of `accumulated` over the tiles
//   that it reads, taken before it read their values;  input change = that sum now, less `snapshot`.
// Every value of the tile was a backup of values that differ from the present ones by at most last_change + input change,
// whatever the order in which threads and blocks ran. So its residual is at most contraction * (last_change + input
// change), contraction = max g rho, and the normalised one at most normalised_contraction * (last_change + input change),
// normalised_contraction = max g rho / (1 - g rho). Values are written before `accumulated` is raised, and `accumulated` is
// read before values are, both past the first-level cache, so a tile that reads an old value also has the old sum.
// Tiles that read too many others to list them (inputs = UNLISTED) take the sum over rounds of the largest change of
// any tile in place of both. Values that come from outside (`take_values`) change a tile as a visit does: between two
// batches, by as much as they differ from those that were here, and `accumulated` is raised after them. Of a tile's own
// values that were not its backups nothing is known: last_change = infinity until it is visited (`invalidate_tiles`).
//
// Iterations are in place: a thread may read a neighbour's value of this iteration or of the last. Both are covered by
// the bound, and information travels faster than with two copies; runs need not repeat bit by bit.
//
// A state's number in its tile, in C order of the box, is its *offset*. A thread of a sweep has STATES of them, SPREAD
// offsets apart, so that threads next to each other read values next to each other; two hide each other's latency, and
// share what a visit costs a thread.
//
// Layout of a slot (LOCAL and DIRECT): a record a tile (Record), of planes of TILE entries in the order of threads: entry
// STATES * thread + i is offset thread + i * SPREAD, so that a thread's states come in one load, and neighbouring threads
// read neighbouring bytes: weights [A * W], successors [A * K], rewards [A], durations [A]; W = K - 1 where the last
// probability of a row is one minus the others (exactly: they are multiples of 2^-24). LOCAL successors are 16 bits:
// offset in the tile, or TILE + place in the tile's halo, which is in ascending order. DIRECT ones are states (32
// bits), read from the value vector. RAGGED rows stay as PartitionTable has them.
//
// States, tiles and what is kept for each of them are numbered in device order: the partitions of each device of a group
// follow each other (`division.py`). Tables and hosts number states in store order, which is another where REORDERED.
// `values`, `policy` and what is kept for each tile are one piece of memory that all devices reach. `accumulated`, which
// every visit reads of its inputs, has a replica on each device, which `publish` keeps equal; the rest of Engine is a
// device's own.
//
// Compiled once a store with: MEMBERS (devices of the group), REORDERED, LOCAL, RAGGED, ACTIONS and WIDTH (0: ragged), WEIGHTS, TILE (offsets), STATES and THREADS
// (of a sweep), BLOCKS (of which a multiprocessor should hold so many), AHEAD (whether registers hold rows as doubles),
// STAGED (bytes of shared memory to which the next tile's rows are brought, or 0) and LISTED (states of its halo there),
// BOX (states of a full tile), DIMS, TILE_SHAPE, HALO and INPUTS (room for a tile's lists), HALO_HASH and INPUTS_HASH
// (powers of two, larger), DIMENSIONS (of the space in which a window is solved), HAS_TAU, the types REAL, INDEX, TAU,
// HALO_STATE, CHOICE; RECORD (bytes of a record), BOUNDARY_ROOM, and where each part of a slot begins, AT_...: constants,
// which the instructions that load hold in themselves.

#define UNLISTED 0xffffffffu
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
// How often loops over a state's rows and a row's transitions are unrolled: NVRTC takes minutes for all of thousands.
constexpr int UNROLLED_ROWS = ACTIONS * WIDTH <= 256 ? ACTIONS : 1;
constexpr int UNROLLED_TRANSITIONS = ACTIONS * WIDTH <= 256 ? WIDTH : 8;
static_assert(STATES == 1 || (STATES == 2 && LOCAL && IN_REGISTERS), "a thread has two states where their rows fit");
static_assert(TILE % 32 == 0 && THREADS % 32 == 0 && THREADS >= SPREAD, "blocks are whole warps");

struct Descriptor {     // of a partition
    i64 first;          // its first state, in device order
    double row_sum;     // largest row sum, rounded up
    u32 n;              // states
    u32 tile;           // its first tile, among those of all partitions
    u32 tiles;
    u32 extent[7];      // of the box of its states, C order
    i64 stored;         // its first state in store order
    u32 colour;         // of its first tile, 0 or 1
};

// Of a tile of a resident partition: what a visit must know before it can read anything else.
struct __align__(16) TileHeader {
    char* slot;
    i64 first;          // first state of the partition
    u32 partition;
    u32 tile;           // its number in the partition
    u32 halo;           // states of its halo
    u32 inputs;         // tiles that it reads, or UNLISTED
    u32 corner;         // its first state, in the partition
    u32 stride[DIMS];   // from a state to the next along each axis
    u16 room[DIMS];     // states along each axis
};

struct Control {
    double limit;         // residual at which a tile is left alone, plain or normalised
    u32 plain;
    u32 most;             // iterations of a tile's visit
    u32 batch_size;       // partitions in the batch
    u32 batch_tiles;      // most tiles of one of them
    double total_change;  // sum over finished rounds of the largest change of any tile: the inputs of unlisted ones
    u32 count[MAX_ROUNDS];    // tiles at the front of a round's work list
    u32 behind[MAX_ROUNDS];   // and at its back
    u32 next[MAX_ROUNDS];     // that blocks have claimed beside their first ones
    u64 largest[MAX_ROUNDS];  // bits of the largest change in each round
    u32 batches;              // that have ended
};

struct Engine {
    Control* control;
    const Descriptor* descriptors;
    i64 partitions;
    i64 tiles;
    TileHeader* headers;       // [tiles]
    double *accumulated, *snapshot, *last_change, *contraction, *normalised_contraction;   // [tiles]
    double *top, *bottom;      // [tiles] largest value, and minus the smallest
    double* reported;          // [tiles] `accumulated` as last reported
    u32* must_visit;           // [tiles] whether the tile must be visited whatever its inputs
    u32* traps;                // [tiles] 0, or 1 + the halves of the window there in which a trap was found
    double* values;            // [states], in device order
    CHOICE* policy;
    const u32* batch;          // [batch_size] partitions of the batch
    u32* work_list;            // [tiles] selected tiles, from both ends; see take_values
    double* report;            // [batch_size, 10]
    u64* backups;              // [partitions]
    u64* measured;             // [5]
    const i64* grid;           // of the states, see `state_at`
    double discount, log_discount, sign;
#if MEMBERS > 1
    double* replicas[MEMBERS];    // `accumulated` of each device
    Control* controls[MEMBERS];
#endif
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

// Tile and offset of a state of a partition.
__device__ __forceinline__ void tile_of(const Descriptor& p, u32 local, u32& tile, u32& offset) {
    u32 at[DIMS];
#pragma unroll
    for (int d = DIMS - 1; d >= 0; --d) {
        at[d] = d ? local % p.extent[d] : local;
        local /= p.extent[d];
    }
    tile = 0;
    offset = 0;
#pragma unroll
    for (int d = 0; d < DIMS; ++d) {
        tile = tile * ((p.extent[d] + tile_shape[d] - 1) / tile_shape[d]) + at[d] / tile_shape[d];
        offset = offset * tile_shape[d] + at[d] % tile_shape[d];
    }
}

__device__ __forceinline__ Record& record_of(const TileHeader& h) { return ((Record*)(h.slot + AT_TILES))[h.tile]; }

// Where the states of a tile lie.
__device__ __forceinline__ void set_box(const Descriptor& p, u32 tile, TileHeader& h) {
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

// State i of this thread: its offset, or one beyond the tile.
__device__ __forceinline__ u32 offset_of(u32 thread, int i) {
    return !IDLE_THREADS || thread < SPREAD ? thread + i * SPREAD : TILE;
}

// The partition's state at an offset of a tile, or NOWHERE.
__device__ __forceinline__ u32 state_of(const TileHeader& h, u32 offset) {
    u32 local = h.corner;
    bool inside = offset < BOX;
#pragma unroll
    for (int d = DIMS - 1; d >= 0; --d) {
        u32 at = d ? offset % tile_shape[d] : offset;
        offset /= tile_shape[d];
        inside = inside && at < h.room[d];
        local += at * h.stride[d];
    }
    return inside ? local : NOWHERE;
}

// The partition of a state, in store order.
__device__ __forceinline__ u32 partition_with(const Engine& e, i64 state) {
    i64 lo = 0, hi = e.partitions - 1;
    while (lo < hi) {
        i64 middle = (lo + hi + 1) >> 1;
        if (e.descriptors[middle].stored <= state) lo = middle; else hi = middle - 1;
    }
    return (u32)lo;
}

// The number in device order of a partition's state, and of any state, from that in store order.
__device__ __forceinline__ i64 placed_in(const Descriptor& p, i64 state) {
    return REORDERED ? p.first + (state - p.stored) : state;
}

__device__ __forceinline__ i64 placed(const Engine& e, i64 state) {
    return REORDERED ? placed_in(e.descriptors[partition_with(e, state)], state) : state;
}
