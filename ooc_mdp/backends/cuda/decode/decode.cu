// A partition's chunks decompressed and decoded on the device: LZ4 in blosc 1 frames, then the store's encodings.
//
// decode_streams   one warp a stream. Blosc cuts a field into blocks and a block into one stream for each byte of its
//                  values (bytes are shuffled: first bytes of all values, second bytes ...), so that streams land in
//                  scratch as blosc's shuffled blocks. A short last block is one stream with the same layout.
// plane_sums,      the second differences of a plane are summed twice along its states, modulo 2^32: sums of runs of
// plane_starts     128 states, then what precedes each run. A run whose differences d start from value v and step s
//                  ends at step s + S and value v + L s + V, where S and V are what it would reach from 0.
// write_values     unshuffles on the way from scratch and writes the table's arrays: values as they are, row
//                  differences and weights (a thread a row), planes (a warp a run of 128 states and action).
//
//     scratch   | blocks of each field, shuffled | sums of runs | arrays of the table |
//
// Arithmetic is the CPU's (store/compiled_encodings.py), integer but for an exact scaling by 2^-24, so results are equal
// bit for bit. Frames passed their checksum before; still nothing is read or written outside its field: what does not
// fit sets a bit in `faults` and leaves its stream.
//
// Bytes a decoded byte: one read of what is compressed; one write and one read of the shuffled block; one write. LZ4 is
// the limit by far: a stream is a chain of dependent steps (token, literals, match), so streams in flight count, not
// bandwidth. Recent output is kept in shared memory, because matches mostly reach back a few kilobytes and a read of
// what was just written to device memory would wait for the second-level cache.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define FIELDS 10
#define ALL 0xffffffffu
#ifndef RING
#define RING 32768u
#endif
#define PIECE (RING / 16)       // of a long match that is copied between two barriers
#define REACH (RING - PIECE)    // how far back the ring is read, while 64 bytes or a piece are written
#define LONGEST 128u        // match that is copied together with others
#define RUN 128u            // states of a run: 4 a lane
#define HEADER 16u
#define WARPS 8u            // of a block of plane_sums and write_values
#define VALUES 4096u        // values, or rows, that a block of write_values handles
#define UNIT 5.9604644775390625e-08  // 2^-24
#define ONE_IN_UNITS (1 << 24)

enum Form { AS_IS, ROW_DIFFERENCES, WEIGHTS, WEIGHT_PLANES, BIT_PLANES };

struct Field {
    u64 data;         // in the frames: a frame, or values
    u64 data_bytes;
    u64 blocks;       // in scratch: decompressed blocks
    u64 sums;         // in scratch: pairs (S, V) of runs
    u64 values;       // in scratch: the table's array
    u64 count;        // stored values
    u64 last_pointer; // what the last value must be, of pointers
    u32 frame_values; // stored values of the frame, padding included
    u32 block_bytes;  // 0: data are values
    u32 streams;      // of a block that is not short
    u32 typesize;     // bytes of a stored value
    u32 value_bytes;  // bytes of a value of the table
    u32 shuffled;
    u32 form;
    u32 planes;
    u32 first_stream; // block of decode_streams
    u32 first_sum;    // warp of plane_sums
    u32 first_plane;  // block of plane_starts
    u32 first_write;  // block of write_values
};

struct Plan {
    Field fields[FIELDS];
    u64 n, rows, transitions;
    u32 actions, width;  // 0: as pointers say
    u32 n_fields;
    u32 action_ptr, successor_ptr;  // fields, or FIELDS
    u32 partition;
};

static_assert(PIECE >= 64, "nothing is read from the ring that is being overwritten");
static_assert(sizeof(Field) == 104 && sizeof(Plan) == 1088, "as decode/frames.py has them");

__device__ __forceinline__ void fail(u32* faults, const Plan* plan, u32 field) {
    atomicOr(&faults[0], 1u << field);
    atomicMax(&faults[1], plan->partition + 1);
}

// ---- LZ4 -----------------------------------------------------------------------------------------------------------

// Adds the bytes that continue a length: 255 each, but the last. False if they leave the stream or the length its room.
__device__ __forceinline__ bool extend(const u8* in, u32 n, u32& ip, u32& value, u32 most, u32 lane) {
    for (;;) {
        u32 at = ip + lane;
        u32 byte = at < n ? in[at] : 0u;
        u32 ends = __ballot_sync(ALL, byte != 255u);
        if (ends) {
            u32 last = __ffs(ends) - 1;
            value += 255u * last + __shfl_sync(ALL, byte, last);
            ip += last + 1;
            return ip <= n && value <= most;
        }
        value += 255u * 32u;
        ip += 32u;
        if (value > most) return false;
    }
}

// Where a warp stands in a stream; the same in all lanes.
struct Stream {
    const u8* in;
    u8* out;
    u8* ring;        // the last RING bytes of out
    u32 n, size;     // bytes of in and out
    u32 ip, op;
    u32 lane;
    u32 skew;        // of in, from a multiple of 4
    u32 segment;     // 128 bytes from in - skew + 128 segment on are in `here`, a word a lane; then `next` and `later`
    u32 here, next, later;

    __device__ __forceinline__ Stream(const u8* in, u32 n, u8* out, u32 size, u8* ring, u32 lane)
        : in(in), out(out), ring(ring), n(n), size(size), ip(0), op(0), lane(lane), skew((u32)((u64)in & 3)), segment(0) {
        here = words(0);
        next = words(1);
        later = words(2);
    }

    // A byte of the output, which lies at least 64 before what is written next.
    __device__ __forceinline__ u32 before(u32 at, u32 back) const {
        return back <= REACH ? ring[(at - back) % RING] : out[at - back];
    }

    // Words with a byte of the stream in them lie in the frame: a header precedes the stream, a checksum follows it.
    __device__ __forceinline__ u32 words(u32 number) const {
        u32 at = 128 * number + 4 * lane;
        return at < n + skew ? *(const u32*)(in - skew + at) : 0u;
    }

    // Byte ip + lane, any number beyond the end. Segments come from memory a while before they are needed.
    __device__ __forceinline__ u32 byte_ahead() {
        u32 first = ip + skew, number = first / 128;
        if (number != segment) {
            bool one = number == segment + 1;
            segment = number;
            here = one ? next : words(number);
            next = one ? later : words(number + 1);
            later = words(number + 2);
        }
        u32 at = first % 128 + lane;
        u32 low = __shfl_sync(ALL, here, at / 4), high = __shfl_sync(ALL, next, at / 4);
        return (at < 128 ? low : high) >> 8 * (at % 4) & 255u;
    }

    __device__ __forceinline__ void put(u32 at, u32 byte) {
        ring[at % RING] = (u8)byte;
        out[at] = (u8)byte;
    }
};

// One sequence of any length. False if it does not fit.
__device__ bool one_sequence(Stream& s) {
    u32 lane = s.lane;
    if (s.ip >= s.n) return false;
    u32 token = s.in[s.ip++];
    u32 literals = token >> 4;
    if (literals == 15 && !extend(s.in, s.n, s.ip, literals, s.size, lane)) return false;
    if (literals > s.n - s.ip || literals > s.size - s.op) return false;
    for (u32 i = lane; i < literals; i += 32) s.put(s.op + i, s.in[s.ip + i]);
    s.ip += literals;
    s.op += literals;
    __syncwarp();
    if (s.ip == s.n) return true;  // the last sequence has no match
    if (s.n - s.ip < 2) return false;
    u32 offset = s.in[s.ip] | (u32)s.in[s.ip + 1] << 8;
    s.ip += 2;
    u32 length = token & 15;
    if (length == 15 && !extend(s.in, s.n, s.ip, length, s.size, lane)) return false;
    length += 4;
    if (offset == 0 || offset > s.op || length > s.size - s.op) return false;
    // In pieces that do not overwrite in the ring what they read.
    while (length) {
        u32 piece = min(length, PIECE);
        u32 from = s.op - offset;
        if (offset < piece) {  // the last `offset` bytes, over and over
            u32 r = lane % offset, step = 32u % offset;
            for (u32 i = lane; i < piece; i += 32) {
                s.put(s.op + i, s.ring[(from + r) % RING]);
                r += step;
                if (r >= offset) r -= offset;
            }
        } else if (offset <= REACH) {
            for (u32 i = lane; i < piece; i += 32) s.put(s.op + i, s.ring[(from + i) % RING]);
        } else {
            for (u32 i = lane; i < piece; i += 32) s.put(s.op + i, s.out[from + i]);
        }
        __syncwarp();
        s.op += piece;
        length -= piece;
    }
    return true;
}

// 32 bytes of output, a byte a lane, that short sequences make.
struct Slice {
    u32 back;     // the byte is the one so far back ...
    u32 literal;  // ... or, if `copies` is false, this
    bool copies;

    // `begun` sequences begin before the slice, which begins at `base`; those of the slice are counted. `sequence` is in
    // each of `count` lanes: where its output starts, its token's place, its literals.
    __device__ __forceinline__ Slice(
        u32 base, u32 total, u32& begun, u32 count, u32 start, u32 sequence, u32 offset, u32 byte, u32 lane
    ) {
        bool begins = lane < count && start >= base && start < base + 32;
        u32 starts = __reduce_or_sync(ALL, begins ? 1u << (start - base) : 0u);
        u32 mine = begun + __popc(starts & (ALL >> (31 - lane))) - 1;
        begun += __popc(starts);
        u32 found = __shfl_sync(ALL, sequence, mine);
        back = __shfl_sync(ALL, offset, mine);
        u32 r = base + lane - (found >> 16);
        literal = __shfl_sync(ALL, byte, ((found & 255) + 1 + r) & 31);
        copies = r >= (found >> 8 & 255) && base + lane < total;
    }
};

// Values of lanes whose `link` is another lane's, through as many links as it takes: jumps double.
__device__ __forceinline__ u32 resolved(u32 value, bool linked, u32 link, u32 lane) {
    if (__any_sync(ALL, linked)) {
        if (!linked) link = lane;
        for (;;) {
            u32 further = __shfl_sync(ALL, link, link);
            if (__all_sync(ALL, further == link)) break;
            link = further;
        }
        value = __shfl_sync(ALL, value, link);
    }
    return value;
}

// The short sequences that lie whole in the next 32 bytes, all at once; most streams that take long are made of them.
// Short are up to 14 literals and matches of LONGEST bytes: one byte of length behind the offset at most.
//
//     byte     0  1  2  3  4  5  6  7 ...           every lane reads its byte as if it were a token: where would the
//     token?   *        *              *            next one be, and how much output lie between? The j-th real one is
//     next     3        7                           found by jumping j times from byte 0, in lane j, by doubling jumps.
//
// Then every byte of output finds its sequence and what it copies, 64 at a time: bytes of before, literals, or each
// other. Returns whether more such sequences may follow at once; `fits` becomes false where one does not.
__device__ __forceinline__ bool short_sequences(Stream& s, bool& fits) {
    u32 lane = s.lane;
    u32 left = s.n - s.ip;
    u32 byte = s.byte_ahead();
    u32 literals = byte >> 4, length = (byte & 15) + 4;
    u32 more_length = __shfl_sync(ALL, byte, (lane + 3 + literals) & 31);
    bool extended = length == 19;
    if (extended) length += more_length;
    u32 next = lane + 3 + literals + extended;
    bool is_short = literals < 15 && length <= LONGEST;
    bool inside = is_short && next <= 32 && next < left;
    u32 offset = __shfl_sync(ALL, byte, (lane + 1 + literals) & 31);
    offset |= __shfl_sync(ALL, byte, (lane + 2 + literals) & 31) << 8;
    // Next place, sequences and bytes of output on the way there, in 8, 8 and 16 bits. What is not inside stays where
    // it is; a next token at 32 is at 31, where none can be inside.
    u32 jump = inside ? min(next, 31u) | 1u << 8 | (literals + length) << 16 : lane;
    u32 first = __shfl_sync(ALL, jump, 0);
    u32 at = lane & 1 ? first : 0u;
    #pragma unroll
    for (u32 bit = 2; bit < 16; bit *= 2) {
        u32 twice = __shfl_sync(ALL, jump, jump & 31);
        jump = (jump & ~255u) + twice;
        u32 further = __shfl_sync(ALL, jump, at & 31);
        if (lane & bit) at = (at & ~255u) + further;
    }
    // At most 10 sequences lie inside, so that lane 15 is beyond the last.
    u32 last = __shfl_sync(ALL, at, 15);
    u32 count = last >> 8 & 255, total = last >> 16, stop = last & 255;
    bool more = stop >= 31 || __shfl_sync(ALL, (u32)is_short, stop);
    if (count == 0) return false;
    u32 start = at >> 16;
    offset = __shfl_sync(ALL, offset, at & 31);
    u32 sequence = (at & 31) | __shfl_sync(ALL, literals, at & 31) << 8 | start << 16;
    u32 consumed = __shfl_sync(ALL, next, __shfl_sync(ALL, at, count - 1) & 31);
    bool wrong = lane < count && (offset == 0 || offset > s.op + start + (sequence >> 8 & 255));
    if (__any_sync(ALL, wrong) || total > s.size - s.op) {
        fits = false;
        return false;
    }
    u32 begun = 0;
    for (u32 base = 0; base < total; base += 64) {
        u32 here = s.op + base + lane;
        Slice one(base, total, begun, count, start, sequence, offset, byte, lane);
        bool linked = one.copies && one.back <= lane;
        u32 value = one.copies && !linked ? s.before(here, one.back) : one.literal;
        if (total - base <= 32) {
            value = resolved(value, linked, lane - one.back, lane);
            if (base + lane < total) s.put(here, value);
        } else {
            Slice two(base + 32, total, begun, count, start, sequence, offset, byte, lane);
            bool inner = two.copies && two.back <= lane;
            bool outer = two.copies && !inner && two.back <= lane + 32;  // to a byte of the first slice
            u32 other = two.copies && !inner && !outer ? s.before(here + 32, two.back) : two.literal;
            value = resolved(value, linked, lane - one.back, lane);
            u32 passed = __shfl_sync(ALL, value, (lane + 32 - two.back) & 31);
            if (outer) other = passed;
            other = resolved(other, inner, lane - two.back, lane);
            s.put(here, value);
            if (base + 32 + lane < total) s.put(here + 32, other);
        }
        __syncwarp();
    }
    s.ip += consumed;
    s.op += total;
    return more;
}

// One stream of n bytes to exactly `size` bytes.
__device__ bool inflate(const u8* in, u32 n, u8* out, u32 size, u8* ring, u32 lane) {
    Stream s(in, n, out, size, ring, lane);
    while (s.ip < n) {
        bool fits = true;
        if (short_sequences(s, fits)) continue;
        if (!fits || !one_sequence(s)) return false;
    }
    return s.op == size;
}

__device__ __forceinline__ u32 word(const u8* at) { return at[0] | at[1] << 8 | at[2] << 16 | (u32)at[3] << 24; }

// A warp copies n bytes.
__device__ void copy(const u8* in, u8* out, u32 n, u32 lane) {
    u32 skew = (u32)((u64)in & 3);
    u32 words = (u64)out % 4 ? 0 : n / 4;
    if (skew == 0) {
        for (u32 i = lane; i < words; i += 32) ((u32*)out)[i] = ((const u32*)in)[i];
    } else if (words) {
        // Words that hold the bytes: whole ones within the frame, since a header precedes and a checksum follows.
        const u32* from = (const u32*)(in - skew);
        for (u32 i = lane; i < words; i += 32) ((u32*)out)[i] = __funnelshift_r(from[i], from[i + 1], 8 * skew);
    }
    for (u32 i = 4 * words + lane; i < n; i += 32) out[i] = in[i];
}

extern "C" __global__ void __launch_bounds__(32) decode_streams(const u8* buffer, u32 frames, u8* scratch, u32* faults) {
    __shared__ u8 ring[RING];
    const Plan* plan = (const Plan*)buffer;
    u32 lane = threadIdx.x;
    u32 f = 0;
    while (f + 1 < plan->n_fields && blockIdx.x >= plan->fields[f + 1].first_stream) ++f;
    const Field& field = plan->fields[f];
    u32 number = blockIdx.x - field.first_stream;
    u32 block = number / field.streams, stream = number % field.streams;
    u64 start = (u64)block * field.block_bytes;
    u64 left = (u64)field.frame_values * field.typesize - start;
    u32 size = left < field.block_bytes ? (u32)left : field.block_bytes;
    u32 streams = size < field.block_bytes ? 1u : field.streams;
    u32 each = size / streams;
    const u8* frame = buffer + frames + field.data;
    u32 end = (u32)field.data_bytes;
    u64 place = HEADER + 4ull * block;
    if (place + 4 > end) { fail(faults, plan, f); return; }
    u32 at = word(frame + place);
    u32 n = 0;
    for (u32 s = 0; s <= stream; ++s) {
        if (at > end || end - at < 4 || at < HEADER) { fail(faults, plan, f); return; }
        n = word(frame + at);
        at += 4;
        if (n > end - at) { fail(faults, plan, f); return; }
        if (s < stream) at += n;
    }
    u8* out = scratch + field.blocks + start + (u64)stream * each;
    if (n == each) copy(frame + at, out, n, lane);
    else if (!inflate(frame + at, n, out, each, ring, lane) && lane == 0) fail(faults, plan, f);
}

// ---- stored values -------------------------------------------------------------------------------------------------

// Values of a field as its chunk has them.
struct Stored {
    const u8* base;
    u64 block_bytes;
    u32 per_block, whole_blocks, last_plane;
    bool shuffled;

    __device__ __forceinline__ Stored(const Plan* plan, u32 f, const u8* frames, const u8* scratch) {
        const Field& field = plan->fields[f];
        block_bytes = field.block_bytes;
        base = block_bytes ? scratch + field.blocks : frames + field.data;
        shuffled = block_bytes && field.shuffled;
        per_block = shuffled ? field.block_bytes / field.typesize : 1u;
        whole_blocks = field.frame_values / per_block;
        last_plane = field.frame_values - whole_blocks * per_block;
    }

    template <class T> __device__ __forceinline__ T at(u32 i) const {
        if (!shuffled) return ((const T*)base)[i];
        u32 block = i / per_block;
        const u8* byte = base + block * block_bytes + (i - block * per_block);
        u32 plane = block < whole_blocks ? per_block : last_plane;
        T value = 0;
        #pragma unroll
        for (u32 k = 0; k < sizeof(T); ++k) value |= (T)((T)byte[(u64)k * plane] << 8 * k);
        return value;
    }
};

__device__ __forceinline__ u32 difference(u32 zigzag) { return (zigzag >> 1) ^ (0u - (zigzag & 1u)); }

// The differences of 4 states, 0 beyond the last.
__device__ __forceinline__ void differences(const Stored& stored, u64 plane, u64 n, u64 first, u32 d[4]) {
    #pragma unroll
    for (u32 e = 0; e < 4; ++e) d[e] = first + e < n ? difference(stored.at<u32>((u32)(plane * n + first + e))) : 0u;
}

// From step and value 0.
__device__ __forceinline__ uint2 reached(const u32 d[4]) {
    u32 step = 0, value = 0;
    #pragma unroll
    for (u32 e = 0; e < 4; ++e) { step += d[e]; value += step; }
    return make_uint2(step, value);
}

// What lies before each lane of a warp, lanes being segments of `length` states; `all` is what all of them reach.
__device__ __forceinline__ uint2 before(uint2 own, u32 length, u32 lane, uint2& all) {
    uint2 sum = own;
    #pragma unroll
    for (u32 d = 1; d < 32; d *= 2) {
        u32 step = __shfl_up_sync(ALL, sum.x, d), value = __shfl_up_sync(ALL, sum.y, d);
        if (lane >= d) {  // d lanes are behind `sum` already
            sum.y += value + d * length * step;
            sum.x += step;
        }
    }
    all = make_uint2(__shfl_sync(ALL, sum.x, 31), __shfl_sync(ALL, sum.y, 31));
    uint2 previous = make_uint2(__shfl_up_sync(ALL, sum.x, 1), __shfl_up_sync(ALL, sum.y, 1));
    return lane ? previous : make_uint2(0u, 0u);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) plane_sums(const u8* buffer, u32 frames, u8* scratch, u32* faults) {
    const Plan* plan = (const Plan*)buffer;
    u32 lane = threadIdx.x % 32;
    u32 warp = blockIdx.x * WARPS + threadIdx.x / 32;
    u32 f = 0;
    while (f + 1 < plan->n_fields && warp >= plan->fields[f + 1].first_sum) ++f;
    const Field& field = plan->fields[f];
    u32 runs = (u32)((plan->n + RUN - 1) / RUN);
    u32 number = warp - field.first_sum;
    if (number >= field.planes * runs) return;
    Stored stored(plan, f, buffer + frames, scratch);
    u32 d[4];
    differences(stored, number / runs, plan->n, (u64)(number % runs) * RUN + 4 * lane, d);
    uint2 all;
    before(reached(d), 4, lane, all);
    if (lane == 0) ((uint2*)(scratch + field.sums))[number] = all;
}

// Each run's sums become the step and value before it. A warp a plane.
extern "C" __global__ void __launch_bounds__(32) plane_starts(const u8* buffer, u32 frames, u8* scratch, u32* faults) {
    const Plan* plan = (const Plan*)buffer;
    u32 lane = threadIdx.x;
    u32 f = 0;
    while (f + 1 < plan->n_fields && blockIdx.x >= plan->fields[f + 1].first_plane) ++f;
    const Field& field = plan->fields[f];
    u32 runs = (u32)((plan->n + RUN - 1) / RUN);
    uint2* sums = (uint2*)(scratch + field.sums) + (u64)(blockIdx.x - field.first_plane) * runs;
    uint2 carried = make_uint2(0u, 0u);
    uint2 next = lane < runs ? sums[lane] : make_uint2(0u, 0u);
    for (u32 first = 0; first < runs; first += 32) {
        uint2 own = next, all;
        u32 ahead = first + 32 + lane;
        next = ahead < runs ? sums[ahead] : make_uint2(0u, 0u);
        uint2 start = before(own, RUN, lane, all);
        if (first + lane < runs)
            sums[first + lane] =
                make_uint2(carried.x + start.x, carried.y + start.y + lane * RUN * carried.x);
        carried.y += all.y + 32 * RUN * carried.x;
        carried.x += all.x;
    }
}

// ---- the table's arrays --------------------------------------------------------------------------------------------

template <class T>
__device__ void write_as_is(const Plan* plan, u32 f, u64 first, const Stored& stored, u8* scratch, u32* faults) {
    const Field& field = plan->fields[f];
    T* out = (T*)(scratch + field.values);
    u64 end = min(first + VALUES, field.count);
    bool pointers = f == plan->action_ptr || f == plan->successor_ptr;
    for (u64 i = first + threadIdx.x; i < end; i += blockDim.x) {
        T value = stored.at<T>((u32)i);
        out[i] = value;
        if (pointers) {
            bool last = i + 1 == field.count;
            u64 next = last ? field.last_pointer : (u64)stored.at<T>((u32)i + 1);
            if ((i == 0 && value != 0) || (last ? value != next : value > next)) fail(faults, plan, f);
        }
    }
}

// Where a row's transitions lie, and whose it is; pointers are read as stored, since their array may not be written yet.
struct Rows {
    const Plan* plan;
    Stored action_ptr, successor_ptr;

    __device__ __forceinline__ Rows(const Plan* plan, const u8* frames, const u8* scratch)
        : plan(plan), action_ptr(plan, plan->action_ptr % FIELDS, frames, scratch),
          successor_ptr(plan, plan->successor_ptr % FIELDS, frames, scratch) {}

    __device__ __forceinline__ u64 begin(u64 row) const {
        if (plan->width) return row * plan->width;
        u64 at = successor_ptr.at<u32>((u32)row);
        return at < plan->transitions ? at : plan->transitions;
    }

    // The last state whose rows begin at or before this one.
    __device__ __forceinline__ u64 state(u64 row) const {
        if (plan->actions) return row / plan->actions;
        u64 lo = 0, hi = plan->n;
        while (hi - lo > 1) {
            u64 middle = (lo + hi) / 2;
            if (action_ptr.at<u32>((u32)middle) <= row) lo = middle; else hi = middle;
        }
        return lo;
    }
};

template <class T>
__device__ void write_row_differences(const Plan* plan, u32 f, u64 first, const Stored& stored, const u8* frames, u8* scratch) {
    T* out = (T*)(scratch + plan->fields[f].values);
    Rows rows(plan, frames, scratch);
    u64 end = min(first + VALUES, plan->rows);
    for (u64 j = first + threadIdx.x; j < end; j += blockDim.x) {
        u32 value = (u32)rows.state(j);
        u64 hi = rows.begin(j + 1);
        for (u64 k = rows.begin(j); k < hi; ++k) {
            value += stored.at<T>((u32)k);
            out[k] = (T)value;
        }
    }
}

template <class Real>
__device__ void write_weights(
    const Plan* plan, u32 f, u64 first, const Stored& stored, const u8* frames, u8* scratch, u32* faults
) {
    const Field& field = plan->fields[f];
    Real* out = (Real*)(scratch + field.values);
    Rows rows(plan, frames, scratch);
    u64 end = min(first + VALUES, plan->rows);
    for (u64 j = first + threadIdx.x; j < end; j += blockDim.x) {
        u64 lo = rows.begin(j), hi = rows.begin(j + 1);
        if (hi <= lo || lo < j || hi - 1 - j > field.count) { fail(faults, plan, f); continue; }
        i64 left = ONE_IN_UNITS;
        for (u64 k = lo; k + 1 < hi; ++k) {
            u32 weight = stored.at<u32>((u32)(k - j));
            left -= weight;
            out[k] = (Real)((double)weight * UNIT);
        }
        out[hi - 1] = (Real)((double)left * UNIT);
    }
}

// 4 consecutive values of a plane in each lane.
__device__ __forceinline__ void plane_values(
    const Plan* plan, const Field& field, const Stored& stored, const u8* scratch, u32 plane, u32 run, u32 lane, u32 v[4]
) {
    u32 runs = (u32)((plan->n + RUN - 1) / RUN);
    uint2 start = ((const uint2*)(scratch + field.sums))[(u64)plane * runs + run], all;
    u32 d[4];
    differences(stored, plane, plan->n, (u64)run * RUN + 4 * lane, d);
    uint2 mine = before(reached(d), 4, lane, all);
    u32 step = start.x + mine.x, value = start.y + mine.y + 4 * lane * start.x;
    #pragma unroll
    for (u32 e = 0; e < 4; ++e) { step += d[e]; value += step; v[e] = value; }
}

template <class Real>
__device__ void write_weight_planes(const Plan* plan, u32 f, u32 action, u32 run, const Stored& stored, u8* scratch) {
    const Field& field = plan->fields[f];
    Real* out = (Real*)(scratch + field.values);
    u32 lane = threadIdx.x % 32, others = plan->width - 1;
    u64 first = (u64)run * RUN + 4 * lane;
    u64 stride = (u64)plan->actions * plan->width;
    u64 at = first * stride + (u64)action * plan->width;
    i64 left[4] = {ONE_IN_UNITS, ONE_IN_UNITS, ONE_IN_UNITS, ONE_IN_UNITS};
    for (u32 k = 0; k < others; ++k) {
        u32 v[4];
        plane_values(plan, field, stored, scratch, action * others + k, run, lane, v);
        #pragma unroll
        for (u32 e = 0; e < 4; ++e) {
            left[e] -= v[e];
            if (first + e < plan->n) out[at + e * stride + k] = (Real)((double)v[e] * UNIT);
        }
    }
    #pragma unroll
    for (u32 e = 0; e < 4; ++e)
        if (first + e < plan->n) out[at + e * stride + others] = (Real)((double)left[e] * UNIT);
}

__device__ __forceinline__ void write_bit_planes(
    const Plan* plan, u32 f, u32 action, u32 run, const Stored& stored, u8* scratch
) {
    const Field& field = plan->fields[f];
    u32* out = (u32*)(scratch + field.values);
    u32 lane = threadIdx.x % 32, v[4];
    u64 first = (u64)run * RUN + 4 * lane;
    plane_values(plan, field, stored, scratch, action, run, lane, v);
    #pragma unroll
    for (u32 e = 0; e < 4; ++e)
        if (first + e < plan->n) out[(first + e) * plan->actions + action] = v[e];
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) write_values(const u8* buffer, u32 frames, u8* scratch, u32* faults) {
    const Plan* plan = (const Plan*)buffer;
    u32 f = 0;
    while (f + 1 < plan->n_fields && blockIdx.x >= plan->fields[f + 1].first_write) ++f;
    const Field& field = plan->fields[f];
    const u8* given = buffer + frames;
    Stored stored(plan, f, given, scratch);
    u32 block = blockIdx.x - field.first_write;
    u64 first = (u64)block * VALUES;
    if (field.form == AS_IS) {
        if (field.typesize == 1) write_as_is<u8>(plan, f, first, stored, scratch, faults);
        else if (field.typesize == 2) write_as_is<u16>(plan, f, first, stored, scratch, faults);
        else if (field.typesize == 4) write_as_is<u32>(plan, f, first, stored, scratch, faults);
        else write_as_is<u64>(plan, f, first, stored, scratch, faults);
    } else if (field.form == ROW_DIFFERENCES) {
        if (field.typesize == 1) write_row_differences<u8>(plan, f, first, stored, given, scratch);
        else if (field.typesize == 2) write_row_differences<u16>(plan, f, first, stored, given, scratch);
        else write_row_differences<u32>(plan, f, first, stored, given, scratch);
    } else if (field.form == WEIGHTS) {
        if (field.value_bytes == 4) write_weights<float>(plan, f, first, stored, given, scratch, faults);
        else write_weights<double>(plan, f, first, stored, given, scratch, faults);
    } else {
        u32 runs = (u32)((plan->n + RUN - 1) / RUN);
        u32 warp = block * WARPS + threadIdx.x / 32;
        u32 action = warp / runs, run = warp % runs;
        if (action >= plan->actions) return;
        if (field.form == BIT_PLANES) write_bit_planes(plan, f, action, run, stored, scratch);
        else if (field.value_bytes == 4) write_weight_planes<float>(plan, f, action, run, stored, scratch);
        else write_weight_planes<double>(plan, f, action, run, stored, scratch);
    }
}
