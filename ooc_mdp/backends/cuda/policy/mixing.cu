// Mixes an evaluation's batches of sweeps: appended to policy/rows.cu.
//
//     f = values after a batch less those before it          d_j = change of f from one batch to the next
//     V <- V - sum_j w_j (change of V from one batch to the next)          |f - sum_j w_j d_j| the least by w
//
// (Anderson 1965; type II of Fang and Saad 2009.) Sweeps leave what decays slowly, which few directions make up: the
// last MIXED of them are kept. mix_record adds up the scalar products that the host finds w by, mix_values takes w.
// A batch reads 44 bytes of each state more, and its mix 28, and they write 12 and 20.
//
// What is kept of a state lies where BiCGSTAB's vectors do, which begins anew afterwards: eight bytes in each vector,
// so that states without rows keep theirs.
//
// Compiled with what rows.cu is compiled with.

#define MIXED 3            // directions, at most

struct __align__(8) Pair { float first, second; };

// Values that a batch began at.
__device__ __forceinline__ double& begun(const Evaluation& e, i64 state) { return e.z[state]; }

// f of the batch before, and what was then mixed into the values.
__device__ __forceinline__ Pair& latest(const Evaluation& e, i64 state) { return reinterpret_cast<Pair*>(e.r)[state]; }

// Changes of f and of the values from one batch to the next.
__device__ __forceinline__ Pair& direction(const Evaluation& e, int j, i64 state) {
    return reinterpret_cast<Pair*>(j == 0 ? e.shadow : j == 1 ? e.p : e.v)[state];
}

// Keeps f and, where there was a batch before (slot >= 0), the direction since then. With `kept` directions, [0] |f|^2;
// [1 + j] d_j f; [1 + MIXED + j] d_j d_slot.
extern "C" __global__ void __launch_bounds__(BLOCK) mix_record(const Evaluation e, int slot, int kept) {
    double x[MOST_SUMS] = {};
    const bool whole = sum_states<MOST_SUMS>(e, x, [&](const Chunk&, u32, i64 state) {
        const float f = (float)(e.values[state] - begun(e, state));
        Pair& before = latest(e, state);
        x[0] += (double)f * f;
        if (slot >= 0) {
            const Pair now = {f - before.first, f + before.second};
            direction(e, slot, state) = now;
#pragma unroll
            for (int j = 0; j < MIXED; ++j) {
                if (j >= kept) break;
                const double d = j == slot ? now.first : direction(e, j, state).first;
                x[1 + j] += d * f;
                x[1 + MIXED + j] += d * now.first;
            }
        }
        before.first = f;
    });
    if (whole)
        for (int i = 0; i < MOST_SUMS; ++i) e.progress->sums[i] = x[i];
}

struct Weights { double of[MIXED]; };

// Values as the weights of `kept` directions have them, at which the next batch begins.
extern "C" __global__ void __launch_bounds__(BLOCK) mix_values(const Evaluation e, const Weights weights, int kept) {
    for_states(e, false, [&](const Chunk&, u32, i64 state) {
        double change = 0.0;
#pragma unroll
        for (int j = 0; j < MIXED; ++j)
            if (j < kept) change -= weights.of[j] * direction(e, j, state).second;
        const float mixed = (float)change;
        latest(e, state).second = mixed;
        begun(e, state) = e.values[state] = e.values[state] + mixed;
    });
}
