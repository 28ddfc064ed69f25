// The rows of a thread's states in a tile, and their backups: for tiles/tiles.cuh, after tiles/memory.cuh.

// A float32 becomes UNIT of itself as a double by a shift of its bits by 3, since exponents of doubles begin below
// those of floats, also if it is 0 or denormal; a conversion would take four times as long as any other instruction of
// an iteration. It is exact, and so is the product with 2^896 that undoes it; sums lose what is below
// 2^-1074 / UNIT = 2^-178, which bounds.py allows for. In iterations, `shift` is a 3 that the compiler does not know,
// unless AHEAD: it would else work out all doubles before the first iteration and keep them, in more registers than
// there are.
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

template <bool IN_SHARED, class T> __device__ __forceinline__ T number_at(const T* at) {
    if constexpr (IN_SHARED) return *at;
    else return __ldg(at);
}

template <bool IN_SHARED, class T> __device__ __forceinline__ Group<T> group_at(const T* at) {
    Group<T> group;
    if constexpr (STATES == 1) {
        group.at[0] = number_at<IN_SHARED>(at);
    } else {
        static_assert(sizeof(T) <= 8, "two come in one load");
        if constexpr (sizeof(T) == 2) {
            const u32 both = number_at<IN_SHARED>((const u32*)at);
            group.at[0] = (T)both;
            group.at[STATES - 1] = (T)(both >> 16);
        } else if constexpr (sizeof(T) == 4) {
            const float2 both = number_at<IN_SHARED>((const float2*)at);
            group.at[0] = both.x;
            group.at[STATES - 1] = both.y;
        } else {
            const double2 both = number_at<IN_SHARED>((const double2*)at);
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
// Rows of the thread's states, from a tile's record; IN_SHARED says that it is in shared memory.
template <bool IN_SHARED, u32 LIST>
__device__ __forceinline__ void open_rows(const RecordOf<LIST>& record, Rows (&rows)[STATES]) {
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
        const Group<TAU> group = group_at<IN_SHARED>(tau + a * TILE);
#pragma unroll
        for (int s = 0; s < STATES; ++s) rows[s].duration[a] = group.at[s];
    }
#endif
#pragma unroll
    for (int i = 0; i < ACTIONS * WEIGHTS; ++i) {
        const Group<REAL> group = group_at<IN_SHARED>(w + i * TILE);
#pragma unroll
        for (int s = 0; s < STATES; ++s) rows[s].weight[i] = group.at[s];
    }
#pragma unroll
    for (int i = 0; i < ACTIONS * WIDTH; ++i) {
        const Group<Successor> group = group_at<IN_SHARED>(x + i * TILE);
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
        const Group<REAL> group = group_at<IN_SHARED>(r + a * TILE);
#pragma unroll
        for (int s = 0; s < STATES; ++s) rows[s].reward[a] = group.at[s];
    }
#else
    static_assert(!IN_SHARED, "rows of which each is read where it is needed stay in their slot");
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
__device__ __forceinline__ void open_rows(const Engine& e, const TileHeader& h, const u32 (&local)[STATES],
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
#pragma unroll UNROLLED_TRANSITIONS
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
#pragma unroll UNROLLED_ROWS
    for (int a = 0; a < ACTIONS; ++a) {
#endif
        const double q = worth_of(e, rows, v, a, shift);
        if (q > best) { best = q; choice = a; }
    }
    return best;
}
