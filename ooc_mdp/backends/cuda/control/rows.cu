// Rows of a discretised control problem: follow the trajectory out of a vertex's cell, then interpolate where it ends.
//
// The counterpart of problems/control/integration.py, statement by statement; there stands what is computed and why.
// The problem's own functions and constants (D axes, A actions, PERIODIC, CLIPPED, Parameters, dynamics, ...), made
// by problems/control/cuda/source.py, take the place of the line "@problem@".
//
// Ownership: thread a + A i computes action a of the i-th state and writes its D + 1 transitions, reward and duration;
// threads share nothing, so results do not depend on the launch shape. Compiled without fused multiply-add, results
// differ from the CPU's only by the last bits of sin, exp, pow and the like, which can choose another cell for a few
// rows of a large grid.
// Bytes a row: 8 in, 16 (D + 1) + 16 out; a hundred and more floating-point operations for each of them, so the
// writes are not staged through shared memory. Arrays are indexed by unrolled loops only, and so live in registers:
// that is why insertion sorts are written as exchanges of neighbours.

typedef long long i64;

template <int N> struct Numbers { double at[N]; };

// What Python has and CUDA has not, or has otherwise.
__device__ __forceinline__ double infinity() { return __longlong_as_double(0x7ff0000000000000LL); }
__device__ __forceinline__ double not_a_number() { return __longlong_as_double(0x7ff8000000000000LL); }
__device__ __forceinline__ bool is_nan(double x) { return x != x; }
__device__ __forceinline__ bool is_infinite(double x) { return fabs(x) == infinity(); }
__device__ __forceinline__ bool is_finite(double x) { return fabs(x) < infinity(); }
// Python's min and max keep the first of equals, and of what cannot be compared.
__device__ __forceinline__ double smaller(double a, double b) { return b < a ? b : a; }
__device__ __forceinline__ double larger(double a, double b) { return b > a ? b : a; }
// NumPy's spread what is not a number.
__device__ __forceinline__ double numpy_minimum(double a, double b) { return a <= b || a != a ? a : b; }
__device__ __forceinline__ double numpy_maximum(double a, double b) { return a >= b || a != a ? a : b; }
__device__ __forceinline__ double sign_of(double x) { return x > 0.0 ? 1.0 : x < 0.0 ? -1.0 : x; }
__device__ __forceinline__ double to_degrees(double x) { return x * (180.0 / 3.141592653589793); }
__device__ __forceinline__ double to_radians(double x) { return x * (3.141592653589793 / 180.0); }
// % and // as CPython defines them: the remainder has the divisor's sign.
__device__ __forceinline__ double floored_remainder(double a, double b) {
    double r = fmod(a, b);
    if (r == 0.0) return copysign(0.0, b);
    return (r < 0.0) != (b < 0.0) ? r + b : r;
}
__device__ __forceinline__ double floored_quotient(double a, double b) {
    double r = fmod(a, b);
    double q = (a - r) / b;
    if (r != 0.0 && (r < 0.0) != (b < 0.0)) q -= 1.0;
    if (q == 0.0) return copysign(0.0, a / b);
    double whole = floor(q);
    return q - whole > 0.5 ? whole + 1.0 : whole;
}
// x**n by squaring, as Numba does for constant integers.
template <int N> __device__ __forceinline__ double whole_power(double x) {
    double result = 1.0, square = x;
    #pragma unroll
    for (int n = N < 0 ? -N : N; n; n >>= 1) {
        if (n & 1) result *= square;
        square *= square;
    }
    return N < 0 ? 1.0 / result : result;
}

@problem@

struct Setup {
    i64 points[D], stride[D];
    double low[D], high[D], span[D], h[D];
    double max_step, max_duration, time_unit;
    Parameters p;
};

typedef Numbers<D> State;

__device__ __forceinline__ bool periodic(int i) { return (PERIODIC >> i) & 1u; }
__device__ __forceinline__ bool clipped(int i) { return (CLIPPED >> i) & 1u; }

__device__ __forceinline__ State ahead(const State& x, double h, const State& k) {
    State out;
    #pragma unroll
    for (int i = 0; i < D; ++i) out.at[i] = x.at[i] + h * k.at[i];
    return out;
}

__device__ __forceinline__ State wrapped(const State& x, const Setup& s) {
    State out = x;
    #pragma unroll
    for (int i = 0; i < D; ++i)
        if (periodic(i)) out.at[i] = x.at[i] - s.span[i] * floor((x.at[i] - s.low[i]) / s.span[i]);
    return out;
}

__device__ __forceinline__ State step(
    const State& x, const Numbers<U>& control, const Setup& s, double dt, const State& k1) {
    State k2 = dynamics(ahead(x, 0.5 * dt, k1), control, s.p);
    State k3 = dynamics(ahead(x, 0.5 * dt, k2), control, s.p);
    State k4 = dynamics(ahead(x, dt, k3), control, s.p);
    State out;
    #pragma unroll
    for (int i = 0; i < D; ++i) {
        double moved = x.at[i] + dt / 6.0 * (k1.at[i] + 2.0 * k2.at[i] + 2.0 * k3.at[i] + k4.at[i]);
        if (clipped(i)) moved = smaller(larger(moved, s.low[i]), s.high[i]);
        out.at[i] = moved;
    }
    return out;
}

// Whether the process has ended at x; `seen` is x with periodic components wrapped.
__device__ __forceinline__ bool look(const State& x, const Setup& s, State& seen) {
    seen = wrapped(x, s);
    bool out = false;
    #pragma unroll
    for (int i = 0; i < D; ++i)
        if (!periodic(i) && !clipped(i) && (x.at[i] < s.low[i] || x.at[i] > s.high[i])) out = true;
    return out || is_terminal(seen, s.p);
}

// Where the action leads from `start`, the reward on the way and how long it takes: no number after MAX_STEPS steps.
__device__ __forceinline__ State follow(
    const State& start, const Numbers<U>& control, const Setup& s, double& reward, double& duration) {
    State x = start, seen;
    bool ended = look(start, s, seen);
    double time = 0.0, earned = 0.0;
    double paid = reward_rate(seen, control, s.p);
    int steps = 0;
    while (!ended && time < s.max_duration) {
        State k1 = dynamics(x, control, s.p);
        double fastest = 0.0;
        #pragma unroll
        for (int i = 0; i < D; ++i) fastest = larger(fastest, fabs(k1.at[i]) / s.h[i]);
        double dt = smaller(s.max_step, s.max_duration - time);
        if (fastest * dt > MAX_STEP_CELLS) dt = MAX_STEP_CELLS / fastest;
        x = step(x, control, s, dt, k1);
        time += dt;
        ended = look(x, s, seen);
        double pays = reward_rate(seen, control, s.p);
        earned += 0.5 * dt * (paid + pays);
        paid = pays;
        bool left = false;
        #pragma unroll
        for (int i = 0; i < D; ++i) left = left || fabs(x.at[i] - start.at[i]) >= s.h[i];
        if (++steps == MAX_STEPS || left) break;
    }
    if (ended) earned += terminal_reward(wrapped(x, s), s.p);
    duration = ended ? infinity() : (double)(float)(time / s.time_unit);
    if (steps == MAX_STEPS) duration = not_a_number();
    reward = (double)(float)earned;
    return x;
}

// Vertices and weights of x in its cell, vertices ascending, weights multiples of WEIGHT_UNIT that sum to 1.
__device__ __forceinline__ void interpolate(const State& x, const Setup& s, i64* vertices, double* weights) {
    double fraction[D];
    i64 lower[D], add[D];   // add[j]: to the vertex's number, for going up along the axis of fraction[j]
    #pragma unroll
    for (int i = 0; i < D; ++i) {
        double u = (x.at[i] - s.low[i]) / s.h[i];
        i64 n = s.points[i], k;
        if (periodic(i)) {
            u -= (double)n * floor(u / (double)n);
            k = (i64)floor(u);
            k = k < n - 1 ? k : n - 1;
            k = k > 0 ? k : 0;   // for what is not a number, so that successors are states whatever comes
        } else {
            k = (i64)floor(u);
            k = k > 0 ? k : 0;
            k = k < n - 2 ? k : n - 2;
        }
        lower[i] = k;
        fraction[i] = smaller(larger(u - (double)k, 0.0), 1.0);
        add[i] = periodic(i) && k == n - 1 ? s.stride[i] - n * s.stride[i] : s.stride[i];
        #pragma unroll
        for (int j = i; j > 0; --j) {
            if (fraction[j - 1] < fraction[j]) {
                double f = fraction[j]; fraction[j] = fraction[j - 1]; fraction[j - 1] = f;
                i64 v = add[j]; add[j] = add[j - 1]; add[j - 1] = v;
            }
        }
    }
    i64 vertex = 0;
    #pragma unroll
    for (int i = 0; i < D; ++i) vertex += lower[i] * s.stride[i];
    #pragma unroll
    for (int j = 0; j <= D; ++j) {
        if (j > 0) vertex += add[j - 1];
        double above = j == 0 ? 1.0 : fraction[j - 1];
        vertices[j] = vertex;
        weights[j] = above - (j < D ? fraction[j] : 0.0);
        #pragma unroll
        for (int q = j; q > 0; --q) {
            if (vertices[q - 1] > vertices[q]) {
                i64 v = vertices[q]; vertices[q] = vertices[q - 1]; vertices[q - 1] = v;
                double w = weights[q]; weights[q] = weights[q - 1]; weights[q - 1] = w;
            }
        }
    }
    double others = 0.0;
    #pragma unroll
    for (int j = 0; j < D; ++j) {
        weights[j] = floor(weights[j] / WEIGHT_UNIT) * WEIGHT_UNIT;
        others += weights[j];
    }
    weights[D] = 1.0 - others;
}

template <class Successor>
__global__ void control_rows(
    const i64* states, i64 n, const Setup s,
    Successor* successors, double* probabilities, double* rewards, double* durations) {
    i64 row = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= n * A) return;
    i64 rest = states[row / A];
    const Numbers<U> control = CONTROLS[row % A];
    State start;
    #pragma unroll
    for (int i = 0; i < D; ++i) {
        i64 k = rest / s.stride[i];
        rest -= k * s.stride[i];
        start.at[i] = s.low[i] + (double)k * s.h[i];
    }
    const State x = follow(start, control, s, rewards[row], durations[row]);
    i64 vertices[D + 1];
    double weights[D + 1];
    interpolate(x, s, vertices, weights);
    #pragma unroll
    for (int j = 0; j <= D; ++j) {
        successors[row * (D + 1) + j] = (Successor)vertices[j];
        probabilities[row * (D + 1) + j] = weights[j];
    }
}
