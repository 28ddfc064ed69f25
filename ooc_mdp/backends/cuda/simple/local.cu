// Between the value vector of the model and the local values of one partition: own states, then halo states.
//
// Which thread owns what: thread i local state i. Bytes a state: 8 in and 8 or 16 out; a halo state costs 8 more for its
// number, and its value comes from anywhere. Why not within the sweeps: they run many times between the two.

// Own and halo values into both buffers (a sweep writes own states only).
extern "C" __global__ void gather(const Table* table, const double* values, double* a, double* b) {
    const Table& t = *table;
    i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < t.n) a[i] = values[t.first + i];
    else if (i < t.n + t.h) a[i] = b[i] = values[t.halo[i - t.n]];
}

// report: [0] boundary rise, [1] boundary fall (bits of non-negative doubles), [2] encoding of the largest changed
// boundary value, [3] of the largest value, [4] of minus the smallest.
extern "C" __global__ void scatter(const Table* table, const double* in, double* values, u64* report) {
    const Table& t = *table;
    i64 s = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    double up = 0.0, down = 0.0;
    u64 changed = 0, largest = 0, smallest = 0;
    if (s < t.n) {
        double now = in[s], change = now - values[t.first + s];
        if (t.boundary[s] && change != 0.0) {
            if (change > 0) up = change; else down = -change;
            changed = encoded(now);
        }
        largest = encoded(now);
        smallest = encoded(-now);
        values[t.first + s] = now;
    }
    raise_to_block_max((u64)__double_as_longlong(up), report);
    raise_to_block_max((u64)__double_as_longlong(down), report + 1);
    raise_to_block_max(changed, report + 2);
    raise_to_block_max(largest, report + 3);
    raise_to_block_max(smallest, report + 4);
}

// report: [0] largest rise, [1] largest fall in the last backup of each own state (bits of non-negative doubles).
extern "C" __global__ void largest_change(const Table* table, const double* change, u64* report) {
    const i64 s = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    const double delta = s < table->n ? change[s] : 0.0;
    raise_to_block_max((u64)__double_as_longlong(delta > 0.0 ? delta : 0.0), report);
    raise_to_block_max((u64)__double_as_longlong(delta < 0.0 ? -delta : 0.0), report + 1);
}

// maxima: the largest |change| of the states of each block (Inamoto, Higami and Kobayashi, section 5), by a tree in shared
// memory, 8 bytes a thread. Blocks may be of any size.
extern "C" __global__ void largest_of_blocks(const Table* table, const double* change, double* maxima) {
    extern __shared__ double found[];
    const i64 s = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    found[threadIdx.x] = s < table->n ? fabs(change[s]) : 0.0;
    for (unsigned left = blockDim.x; left > 1; left = (left + 1) / 2) {
        const unsigned other = threadIdx.x + (left + 1) / 2;
        __syncthreads();
        if (other < left) found[threadIdx.x] = fmax(found[threadIdx.x], found[other]);
    }
    if (threadIdx.x == 0) maxima[blockIdx.x] = found[0];
}

// The values of some states of the model.
extern "C" __global__ void read_states(const i64* states, i64 count, const double* values, double* out) {
    const i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = values[states[i]];
}

extern "C" __global__ void write_states(const i64* states, i64 count, const double* in, double* values) {
    const i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) values[states[i]] = in[i];
}
