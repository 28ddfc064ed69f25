// Values that other solvers read, and values of theirs: after tiles/memory.cuh.

// Lists lie in the host's page-locked memory, and are read and written there: 16 bytes a state over the link, once. Their
// states are numbered in store order.

extern "C" __global__ void read_values(const Engine e, const i64* states, double* to, u32 count) {
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) to[i] = e.values[placed(e, states[i])];
}

// The number in device order of a point of the grid, counted in C order. `grid` holds the number of axes and, of each, the
// last first, its points, its blocks, and where these begin and the last one ends.
__device__ __forceinline__ i64 state_at(const Engine& e, i64 point) {
    i64 partition = 0, partitions = 1, local = 0, states = 1;
    const i64* axis = e.grid + 1;
    for (i64 d = 0; d < e.grid[0]; ++d) {
        const i64 points = axis[0], blocks = axis[1], *edges = axis + 2, x = point % points;
        i64 block = 0;
        for (i64 end = blocks; block + 1 < end;) {
            const i64 middle = (block + end) >> 1;
            if (edges[middle] <= x) block = middle; else end = middle;
        }
        partition += block * partitions;
        local += (x - edges[block]) * states;
        partitions *= blocks;
        states *= edges[block + 1] - edges[block];
        point /= points;
        axis = edges + blocks + 1;
    }
    return e.descriptors[partition].first + local;
}

// Of points from `first` on, to the host's page-locked memory.
extern "C" __global__ void values_at_points(const Engine e, i64 first, double* to, u32 count) {
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) to[i] = e.values[state_at(e, first + i)];
}

extern "C" __global__ void policy_at_points(const Engine e, i64 first, CHOICE* to, u32 count) {
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) to[i] = e.policy[state_at(e, first + i)];
}

// Lists of states, one partition each: list l is states[ptr[l]] ... of partitions[l]. A kernel works on lists which[m];
// values[starts[m]] ... are theirs. Block b has list b / parts, and every parts-th 256 of it.
extern "C" __global__ void gather_values(const Engine e, const u32* partitions, const i64* ptr, const i64* states,
                                         const u32* which, const i64* starts, double* values, u32 parts) {
    const u32 m = blockIdx.x / parts, list = which[m];
    const i64 begin = ptr[list], count = ptr[list + 1] - begin;
    const Descriptor& p = e.descriptors[partitions[list]];
    double* to = values + starts[m];
    for (i64 i = (i64)(blockIdx.x % parts) * blockDim.x + threadIdx.x; i < count; i += (i64)parts * blockDim.x)
        to[i] = e.values[placed_in(p, states[begin + i])];
}

// States take other values; work_list[tile], 0 before, becomes a bound of the largest change in the tile, and
// results [3 m], 0 before, encodings of the largest rise, fall and changed value in list m.
extern "C" __global__ void take_values(const Engine e, const u32* partitions, const i64* ptr, const i64* states,
                                       const u32* which, const i64* starts, const double* values, u32 parts,
                                       u64* results) {
    const u32 m = blockIdx.x / parts, list = which[m];
    const i64 begin = ptr[list], count = ptr[list + 1] - begin;
    const Descriptor& p = e.descriptors[partitions[list]];
    const double* from = values + starts[m];
    double most[3] = {0.0, 0.0, minus_infinity()};
    for (i64 i = (i64)(blockIdx.x % parts) * blockDim.x + threadIdx.x; i < count; i += (i64)parts * blockDim.x) {
        const i64 state = placed_in(p, states[begin + i]);
        const double now = from[i], change = now - e.values[state];
        if (change == 0.0) continue;
        e.values[state] = now;
        u32 tile, offset;
        tile_of(p, (u32)(state - p.first), tile, offset);
        atomicMax(e.work_list + p.tile + tile, rounded_up_half(fabs(change)));
        most[0] = fmax(most[0], change);
        most[1] = fmax(most[1], -change);
        most[2] = fmax(most[2], now);
    }
    block_max(most);
    if (threadIdx.x == 0 && most[2] > minus_infinity())
        for (int i = 0; i < 3; ++i) atomicMax(results + 3 * m + i, encoded(most[i]));
}

// After all values are written: the tiles of these partitions, one a block, have changed by so much. What that adds to
// `total_change` counts as that of a round, which `end_batch` takes in.
extern "C" __global__ void raise_accumulated(const Engine e, const u32* partitions, const u32* which) {
    const Descriptor& p = e.descriptors[partitions[which[blockIdx.x]]];
    double largest[1] = {0.0};
    for (u32 tile = threadIdx.x; tile < p.tiles; tile += blockDim.x) {
        const u32 bound = e.work_list[p.tile + tile];
        if (!bound) continue;
        const double change = number_of(bound) * ROUND_UP;
        publish(e, p.tile + tile, (e.accumulated[p.tile + tile] + change) * (1.0 + 4e-16));
        largest[0] = fmax(largest[0], change);
    }
    block_max(largest);
    if (threadIdx.x == 0) note_change(e, 0, largest[0]);
}
