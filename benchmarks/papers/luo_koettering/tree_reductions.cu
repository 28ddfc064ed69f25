// The two tree reductions of Luo and Koettering, algorithms 2 and 3: one state's dense tables at a time.
//
//   best of a block   max over 256 actions of sum_s' T(a,s') [R(a,s') + discount V(s')]
//   V'(s)             max over the blocks
//
// Which thread owns what: in reduce_block, launched for one state, a thread an action, the innermost loop over all s',
// then a tree over the block's threads; in reduce_states a block a state, a thread one of its maxima, then a tree over
// all. A thread's row is read in order, but the threads of a warp read a row apart: that is the paper's loop.
// Bytes a backup: 16 a state for each action.

extern "C" __global__ void reduce_block(const double* transitions, const double* rewards, const double* values,
                                        double* maxima, long long states, long long actions, double discount) {
    extern __shared__ double found[];
    const long long a = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    double total = -__longlong_as_double(0x7ff0000000000000ll);
    if (a < actions) {
        total = 0.0;
        for (long long to = a * states; to < (a + 1) * states; ++to)
            total += transitions[to] * (rewards[to] + discount * values[to - a * states]);
    }
    found[threadIdx.x] = total;
    for (unsigned left = blockDim.x / 2; left; left /= 2) {
        __syncthreads();
        if (threadIdx.x < left) found[threadIdx.x] = fmax(found[threadIdx.x], found[threadIdx.x + left]);
    }
    if (threadIdx.x == 0) maxima[blockIdx.x] = found[0];
}

// Threads are a power of two, at least as many as a state's maxima.
extern "C" __global__ void reduce_states(const double* maxima, double* values, long long count) {
    extern __shared__ double found[];
    found[threadIdx.x] = maxima[blockIdx.x * count + (threadIdx.x < count ? threadIdx.x : 0)];
    for (unsigned left = blockDim.x / 2; left; left /= 2) {
        __syncthreads();
        if (threadIdx.x < left) found[threadIdx.x] = fmax(found[threadIdx.x], found[threadIdx.x + left]);
    }
    __syncthreads();
    if (threadIdx.x == 0) values[blockIdx.x] = found[0];
}
