// The values that a device computed in a pass, to the replicas of the other devices of its group.
//
// Which thread owns what: a thread an own state, whose value it writes to every other device. Bytes a state: 8 read, 8
// for each other device over the link. Why not in dense_states: that is the kernel of one partition, which knows no other.

extern "C" __global__ void send_values(const double* own, double* const* there, long long n, long long others) {
    const long long s = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (s >= n) return;
    for (long long other = 0; other < others; ++other) there[other][s] = own[s];
}
