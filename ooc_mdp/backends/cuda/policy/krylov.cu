// Solves for what a policy's values miss: appended to policy/rows.cu and one of the equations, policy/discounted.cuh or
// policy/relative.cuh, which has product_of (A x of a state) and missing_of (b - A V of a state).
//
//     A z = b - A V,  V <- V + z         (BiCGSTAB, van der Vorst 1992)
//
// An iteration reads rows twice, as a sweep does once, and moves 168 bytes of each state more. Blocks stride over chunks,
// so that a sum has few parts, one for each block: sums are taken in an order that depends on the number of blocks and of
// devices alone, and a solver's steps repeat.
//
// The scalars never leave the device. The last block of a kernel to finish adds up the blocks' sums. On one device it
// takes the decisions, too. In a group it writes the device's sums to every device, and once devices have met, each adds
// them up in the devices' order and takes the same decisions (krylov_settle).
//
// z is apart from V, which stays as it is until the host has seen what z is good for. Vectors and scalars stay as they are
// until krylov_begin, so that the host may leave the solver after any iteration and continue.
//
// Compiled with what rows.cu is compiled with.

#define GROWN 1e8          // times its first largest residual: a solver's sums have lost what matters

enum { RUNNING, REACHED, BROKEN, LOST };   // LOST: z has numbers that are none
// Kernels that something is decided after. Each has sums of its own: a device may write those of its next kernel while
// another still adds up those of the last.
enum { BEGIN, DIRECTION, MINIMISE, STEP, DECISIONS };

// ----------------------------------------------------------------------------------------------------- iterations

// What is decided after a kernel, by its totals: in that kernel on one device, in each device's krylov_settle in a group.
// `step` is alpha / omega, which STEP needs.
template <int AFTER>
__device__ __forceinline__ void decide(const Evaluation& e, const double (&x)[3], double step = 0.0) {
    Progress& q = *e.progress;
    if (AFTER == BEGIN) {
        q.rho = x[0];
        q.residual = q.first_residual = x[2];
        q.products = 1;
        q.state = !(x[0] < infinity()) ? LOST : x[2] <= q.stop || x[0] == 0 ? REACHED : RUNNING;
    } else if (AFTER == DIRECTION) {
        ++q.products;
        q.alpha = q.rho / x[0];
        if (!(fabs(q.alpha) < infinity())) q.state = BROKEN;
    } else if (AFTER == MINIMISE) {
        ++q.products;
        q.omega = x[1] > 0 ? x[0] / x[1] : 0.0;   // where t is 0, so is s, and z + alpha p is the solution
        if (!(fabs(q.omega) < infinity())) q.state = BROKEN;
    } else {
        q.beta = x[0] / q.rho * step;
        q.rho = x[0];
        q.residual = x[2];
        if (!(x[1] < infinity())) q.state = LOST;
        else if (x[2] <= q.stop) q.state = REACHED;
        else if (!(fabs(q.beta) < infinity()) || x[0] == 0 || x[2] > GROWN * q.first_residual) q.state = BROKEN;
    }
}

// By the thread that has a device's sums: decide, or tell every device.
template <int AFTER> __device__ __forceinline__ void settle(const Evaluation& e, const double (&x)[3], double step = 0.0) {
#if MEMBERS > 1
    for (int g = 0; g < MEMBERS; ++g)
        for (int i = 0; i < 3; ++i) e.sums_of[g][3 * (MEMBERS * AFTER + e.member) + i] = x[i];
#else
    decide<AFTER>(e, x, step);
#endif
}

#if MEMBERS > 1
// On each device, once all have met.
extern "C" __global__ void krylov_settle(const Evaluation e, int after) {
    if (threadIdx.x || (after != BEGIN && e.progress->state != RUNNING)) return;
    const double* sums = e.sums_of[e.member] + 3 * MEMBERS * after;
    double x[3] = {0.0, 0.0, 0.0};
    for (int g = 0; g < MEMBERS; ++g) {
        x[0] += __ldcg(sums + 3 * g);
        x[1] += __ldcg(sums + 3 * g + 1);
        x[2] = fmax(x[2], __ldcg(sums + 3 * g + 2));
    }
    if (after == BEGIN) decide<BEGIN>(e, x);
    else if (after == DIRECTION) decide<DIRECTION>(e, x);
    else if (after == MINIMISE) decide<MINIMISE>(e, x);
    else decide<STEP>(e, x, e.progress->alpha / e.progress->omega);
}
#endif

// r = shadow = p = b - A V; z = 0.
extern "C" __global__ void __launch_bounds__(BLOCK) krylov_begin(const Evaluation e) {
    double x[3] = {0.0, 0.0, 0.0};
    if (sum_states<2>(e, x, [&](const Chunk& c, u32 i, i64 state) {
            const double r = missing_of(e, c, i, state);
            e.r[state] = e.shadow[state] = e.p[state] = r;
            e.z[state] = 0.0;
            x[0] += r * r;
            x[2] = fmax(x[2], fabs(r));
        }))
        settle<BEGIN>(e, x);
}

// v = A p;  alpha = rho / (shadow v).
extern "C" __global__ void __launch_bounds__(BLOCK) krylov_direction(const Evaluation e) {
    if (e.progress->state != RUNNING) return;
    double x[3] = {0.0, 0.0, 0.0};
    if (sum_states<2>(e, x, [&](const Chunk& c, u32 i, i64 state) {
            const double v = product_of(e, c, i, state, e.p);
            e.v[state] = v;
            x[0] += e.shadow[state] * v;
        }))
        settle<DIRECTION>(e, x);
}

// r, now s, = r - alpha v.
extern "C" __global__ void __launch_bounds__(BLOCK) krylov_half(const Evaluation e) {
    if (e.progress->state != RUNNING) return;
    const double alpha = e.progress->alpha;
    for_states(e, false, [&](const Chunk&, u32, i64 state) { e.r[state] -= alpha * e.v[state]; });
}

// t = (1 - g P) s;  omega = t s / (t t).
extern "C" __global__ void __launch_bounds__(BLOCK) krylov_minimise(const Evaluation e) {
    if (e.progress->state != RUNNING) return;
    double x[3] = {0.0, 0.0, 0.0};
    if (sum_states<2>(e, x, [&](const Chunk& c, u32 i, i64 state) {
            const double t = product_of(e, c, i, state, e.r);
            e.t[state] = t;
            x[0] += t * e.r[state];
            x[1] += t * t;
        }))
        settle<MINIMISE>(e, x);
}

// z += alpha p + omega s;  r = s - omega t;  beta from the new rho = shadow r.
extern "C" __global__ void __launch_bounds__(BLOCK) krylov_step(const Evaluation e) {
    if (e.progress->state != RUNNING) return;
    const double alpha = e.progress->alpha, omega = e.progress->omega;
    double x[3] = {0.0, 0.0, 0.0};
    if (sum_states<2>(e, x, [&](const Chunk&, u32, i64 state) {
            const double s = e.r[state], r = s - omega * e.t[state];
            const double z = e.z[state] + alpha * e.p[state] + omega * s;
            e.z[state] = z;
            e.r[state] = r;
            x[0] += e.shadow[state] * r;
            x[1] += bounded(fabs(z)) < infinity() ? r * r : infinity();
            x[2] = fmax(x[2], fabs(r));
        }))
        settle<STEP>(e, x, alpha / omega);
}

// p = r + beta (p - omega v).
extern "C" __global__ void __launch_bounds__(BLOCK) krylov_turn(const Evaluation e) {
    if (e.progress->state != RUNNING) return;
    const double beta = e.progress->beta, omega = e.progress->omega;
    for_states(e, false, [&](const Chunk&, u32, i64 state) {
        e.p[state] = e.r[state] + beta * (e.p[state] - omega * e.v[state]);
    });
}

// V += z, and z begins again at 0: later iterations go on as they would have.
extern "C" __global__ void __launch_bounds__(BLOCK) krylov_apply(const Evaluation e) {
    for_states(e, false, [&](const Chunk&, u32, i64 state) {
        e.values[state] += e.z[state];
        e.z[state] = 0.0;
    });
}
