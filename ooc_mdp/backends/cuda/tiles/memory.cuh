// Bounds over a block, copies to shared memory, and the order in which blocks see each other's writes.

// Upper bounds of the largest of each of N values a thread, in the threads of warp `by`. Every thread of the block must
// come here, and meet at another barrier before the next time.
template <int N>
__device__ __forceinline__ void block_bounds(double (&x)[N], int by) {
    __shared__ u32 warps[N][32];
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, count = THREADS / 32;
#pragma unroll
    for (int i = 0; i < N; ++i) {
        const u32 bound = __reduce_max_sync(0xffffffffu, rounded_up_half(x[i]));
        if (lane == 0) warps[i][warp] = bound;
    }
    __syncthreads();
    if (warp == by) {
#pragma unroll
        for (int i = 0; i < N; ++i) x[i] = number_of(__reduce_max_sync(0xffffffffu, warps[i][lane < count ? lane : 0]));
    }
}

// Asynchronous copies to shared memory, waited for later by the threads that asked for them; 8 or 16 bytes, aligned.
template <int BYTES>
__device__ __forceinline__ void copy_async(void* to, const void* from) {
#ifdef EMULATED_CUDA
    for (int i = 0; i < BYTES / 8; ++i) ((u64*)to)[i] = __ldca((const u64*)from + i);
#else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from), "n"(BYTES)
                 : "memory");
#endif
}

__device__ __forceinline__ void wait_for_copies() {
#ifndef EMULATED_CUDA
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// What this thread has asked for so far is waited for apart from what it asks for next, by `wait_for_first_copies`.
__device__ __forceinline__ void end_first_copies() {
#ifndef EMULATED_CUDA
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

__device__ __forceinline__ void wait_for_first_copies() {
#ifndef EMULATED_CUDA
    asm volatile("cp.async.commit_group; cp.async.wait_group 1;" ::: "memory");
#endif
}

#if STAGED
// Copies by the bulk engine, and the barrier in shared memory that counts their bytes: a phase of it ends once all bytes
// that were announced have come. Whoever has waited for the phase sees them.
__device__ __forceinline__ void init_barrier(u64* barrier) {
#ifndef EMULATED_CUDA
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"((u32)__cvta_generic_to_shared(barrier)) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

__device__ __forceinline__ void announce(u64* barrier, u32 bytes) {
#ifndef EMULATED_CUDA
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 ::"r"((u32)__cvta_generic_to_shared(barrier)), "r"(bytes) : "memory");
#endif
}

// Multiples of 16, aligned.
__device__ __forceinline__ void copy_bulk(void* to, const void* from, u32 bytes, u64* barrier) {
#ifdef EMULATED_CUDA
    for (u32 i = 0; i < bytes; ++i) ((char*)to)[i] = ((const char*)from)[i];
#else
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from), "r"(bytes),
                 "r"((u32)__cvta_generic_to_shared(barrier)) : "memory");
#endif
}

// Phases are distinguished by whether their number is odd.
__device__ __forceinline__ void wait_for_phase(u64* barrier, u32 odd) {
#ifndef EMULATED_CUDA
    u32 over = 0;
    while (!over)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(over) : "r"((u32)__cvta_generic_to_shared(barrier)), "r"(odd) : "memory");
#endif
}
#endif

// Ask for bytes that will be read soon: into the second-level cache. A multiple of 16, aligned.
__device__ __forceinline__ void ask_for(const void* at, u32 bytes) {
#ifdef EMULATED_CUDA
#elif __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(at), "r"(bytes));
#else
    for (u32 i = 0; i < bytes; i += 128) asm volatile("prefetch.global.L2 [%0];" ::"l"((const char*)at + i));
#endif
}

// Orders reach all devices of a group, or the one that there is.
#if MEMBERS > 1
#define SCOPE ".sys"
#else
#define SCOPE ".gpu"
#endif

// What another block, of any device, wrote before it raised this value is seen by what this thread reads from here on, and
// the block's other threads after a barrier.
__device__ __forceinline__ double load_acquire(const double* at) {
    double x;
#ifdef EMULATED_CUDA
    __nv_atomic_load(at, &x, __NV_ATOMIC_ACQUIRE, __NV_THREAD_SCOPE_SYSTEM);
#else
    asm volatile("ld.acquire" SCOPE ".global.f64 %0, [%1];" : "=d"(x) : "l"(at) : "memory");
#endif
    return x;
}

#if MEMBERS > 1
// What this thread and others before a barrier wrote comes, for every device, before what this thread writes from here on.
__device__ __forceinline__ void release_to_all() {
#ifdef EMULATED_CUDA
    __threadfence_system();
#else
    asm volatile("fence.acq_rel.sys;" ::: "memory");
#endif
}
#endif

// `accumulated` of a tile becomes x, which only its owner raises: what this thread and others before a barrier wrote is seen
// by a thread that has acquired x. On a group each replica takes the same number after the values.
__device__ __forceinline__ void publish(const Engine& e, u32 id, double x) {
#if MEMBERS > 1
    release_to_all();
#pragma unroll
    for (int m = 0; m < MEMBERS; ++m) {
#ifdef EMULATED_CUDA
        __stcg(e.replicas[m] + id, x);
#else
        asm volatile("st.relaxed.sys.global.f64 [%0], %1;" ::"l"(e.replicas[m] + id), "d"(x) : "memory");
#endif
    }
#elif defined(EMULATED_CUDA)
    __threadfence();
    e.accumulated[id] = x;
#else
    asm volatile("st.release.gpu.global.f64 [%0], %1;" ::"l"(e.accumulated + id), "d"(x) : "memory");
#endif
}

// `accumulated` of a tile is raised by a change, and by what rounding may take; other blocks of the device may do so at the
// same time. Replicas take the largest that they are given: `accumulated` never falls, so that is the last. What was written
// before is seen once all devices have met.
__device__ __forceinline__ void publish_more(const Engine& e, u32 id, double change) {
    const double more = change + 4e-16 * __ldcg(e.accumulated + id);
#if MEMBERS > 1
    release_to_all();
    const double now = atomicAdd_system(e.accumulated + id, more) + more;
#pragma unroll
    for (int m = 0; m < MEMBERS; ++m) atomicMax_system((u64*)(e.replicas[m] + id), (u64)__double_as_longlong(now));
#else
    atomicAdd(e.accumulated + id, more);
#endif
}

// The largest change of a round, for the tiles that list no inputs. All devices are told, each of which looks when they have met.
__device__ __forceinline__ void note_change(const Engine& e, int round, double change) {
    const u64 bits = (u64)__double_as_longlong(change);
#if MEMBERS > 1
#pragma unroll
    for (int m = 0; m < MEMBERS; ++m) atomicMax_system(&e.controls[m]->largest[round], bits);
#else
    atomicMax(&e.control->largest[round], bits);
#endif
}

// The same of changes that may add up within a round.
__device__ __forceinline__ void add_change(const Engine& e, int round, double change) {
#if MEMBERS > 1
#pragma unroll
    for (int m = 0; m < MEMBERS; ++m) atomicAdd_system((double*)&e.controls[m]->largest[round], change);
#else
    atomicAdd((double*)&e.control->largest[round], change);
#endif
}
