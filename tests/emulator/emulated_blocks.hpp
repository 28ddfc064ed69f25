// Blocks of fibers that run a kernel: their order, their meetings, deadlocks, shared memory.
//
// A thread of the grid is a fiber, a block is up to 1024 of them, and blocks run one after the other. A fiber runs
// until it meets the others (a barrier, a warp's intrinsic) or ends; the last to arrive lets all of them go on. So
// programs see a legal order of their threads, the same every time, or, with a seed, one of many. Threads that have
// ended count as arrived. If none can go on and not all have ended, that is a deadlock: the launch fails with who waits
// where. Shared memory is poisoned before each block; what a shuffle reads from a lane outside its mask is poison too.

#pragma once

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <sys/mman.h>
#include <unistd.h>

#if !defined(__x86_64__) && !defined(EMULATED_UCONTEXT)
#define EMULATED_UCONTEXT 1
#endif
#ifdef EMULATED_UCONTEXT
#include <ucontext.h>
#endif

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

static uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;
static constexpr int warpSize = 32;

namespace emulated {

typedef unsigned long long u64;

constexpr int MOST_THREADS = 1024, LANES = 32, MOST_SHARED = 4096;
constexpr size_t STACK = 64 << 10, PAGE = 4096, POOL = 227 << 10, FENCE = 4096;
constexpr unsigned char POISON = 0xfb, INTACT = 0xc3;

enum Wait {
    NOWHERE, SYNC, SYNC_OR, SYNC_AND, SYNC_COUNT,   // a block's
    WARP, SHUFFLE, BALLOT, ANY, ALL, MATCH_ANY, MATCH_ALL,
    REDUCE_ADD, REDUCE_MIN, REDUCE_MAX, REDUCE_SMIN, REDUCE_SMAX, REDUCE_AND, REDUCE_OR, REDUCE_XOR, ACTIVE
};
static const char* const WAITS[] = {
    "nowhere", "__syncthreads", "__syncthreads_or", "__syncthreads_and", "__syncthreads_count",
    "__syncwarp", "a shuffle", "__ballot_sync", "__any_sync", "__all_sync", "__match_any_sync", "__match_all_sync",
    "__reduce_add_sync", "__reduce_min_sync", "__reduce_max_sync", "__reduce_min_sync", "__reduce_max_sync",
    "__reduce_and_sync", "__reduce_or_sync", "__reduce_xor_sync", "__activemask"};

#ifdef EMULATED_UCONTEXT
typedef ucontext_t Context;
static void change(Context& from, Context& to) { swapcontext(&from, &to); }
static void prepare(Context& context, unsigned char* stack, size_t bytes, void (*entry)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = bytes;
    context.uc_link = nullptr;
    makecontext(&context, entry, 0);
}
#else
typedef void* Context;   // the stack pointer; what a call preserves lies on the stack
extern "C" __attribute__((visibility("hidden"))) void emulated_change(void** from, void* to);
asm(R"(
.text
.type emulated_change,@function
emulated_change:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size emulated_change,.-emulated_change
)");
static void change(Context& from, Context& to) {
    emulated_change(&from, to);
    asm volatile("" ::: "memory");
}
static void prepare(Context& context, unsigned char* stack, size_t bytes, void (*entry)()) {
    void** top = (void**)(stack + bytes);   // a multiple of 16; `ret` leaves the pointer as a call would have
    memset(top - 8, 0, 8 * sizeof(void*));
    top[-2] = (void*)entry;
    context = top - 8;
}
#endif

struct Thread {
    Context context;
    uint3 index;
    int number, stack;
    bool started, ended;
    Wait wait;
    unsigned mask;
    int source;   // lane a shuffle reads
    u64 value, result;
    const void* site;
};

struct Range {
    void* start;
    size_t bytes;
};

static Thread threads[MOST_THREADS];
static Thread* now;
static Context scheduler;
static int n_threads, n_ended, n_waiting, n_started, n_ready, first_ready, n_free, n_shared;
static int order[MOST_THREADS];         // in which threads start
static int ready[MOST_THREADS];         // ring
static int free_stacks[MOST_THREADS];
static Range shared[MOST_SHARED];       // static __shared__ variables
static unsigned char* stacks;
static u64 random_state;                // 0: in order
static bool failed;
static char* message;
static size_t message_bytes;
static void (*body)(void**);
static void** arguments;
alignas(4096) static unsigned char pool[FENCE + POOL + FENCE];   // dynamic shared memory between two fences

static unsigned drawn(unsigned below) {   // splitmix64
    u64 z = (random_state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return (unsigned)((z ^ (z >> 31)) >> 32) % below;
}

static void say(const char* format, va_list rest) {
    size_t used = strlen(message);
    if (used < message_bytes) vsnprintf(message + used, message_bytes - used, format, rest);
}
__attribute__((format(printf, 1, 2))) static void say(const char* format, ...) {
    va_list rest;
    va_start(rest, format);
    say(format, rest);
    va_end(rest);
}
static void say_where() {
    if (now)
        say("block (%u, %u, %u), thread (%u, %u, %u): ", blockIdx.x, blockIdx.y, blockIdx.z, now->index.x, now->index.y,
            now->index.z);
    else
        say("block (%u, %u, %u): ", blockIdx.x, blockIdx.y, blockIdx.z);
}

// Ends the launch. Fibers are left as they are: nothing on their stacks needs more.
[[noreturn]] __attribute__((format(printf, 1, 2))) static void fail(const char* format, ...) {
    va_list rest;
    va_start(rest, format);
    if (!now) {   // called from the host
        vfprintf(stderr, format, rest);
        abort();
    }
    say_where();
    say(format, rest);
    va_end(rest);
    failed = true;
    static Context left;
    change(left, scheduler);
    abort();
}

static void thread_main();

// Goes on with a thread; comes back when `from` is resumed.
static void resume(Context& from, Thread* thread) {
    now = thread;
    threadIdx = thread->index;
    if (!thread->started) {
        thread->started = true;
        thread->stack = free_stacks[--n_free];
        // Tops are staggered: at equal offsets all of them would share a few sets of the caches.
        size_t bytes = STACK - PAGE - (size_t)(thread->stack % 32) * 128;
        prepare(thread->context, stacks + STACK * thread->stack + PAGE, bytes, thread_main);
    }
    change(from, thread->context);
}

static void make_ready(Thread* thread) {
    thread->wait = NOWHERE;
    ready[(first_ready + n_ready++) % MOST_THREADS] = thread->number;
}

static Thread* next_ready() {
    if (random_state) {   // any of them
        int other = (first_ready + (int)drawn((unsigned)n_ready)) % MOST_THREADS;
        int kept = ready[first_ready];
        ready[first_ready] = ready[other];
        ready[other] = kept;
    }
    Thread* thread = &threads[ready[first_ready]];
    first_ready = (first_ready + 1) % MOST_THREADS;
    --n_ready;
    return thread;
}

static Thread* next_thread(bool rather_new) {
    bool new_ones = n_started < n_threads;
    if (new_ones && random_state) rather_new = drawn(2);
    if (n_ready && !(new_ones && rather_new)) return next_ready();
    return new_ones ? &threads[order[n_started++]] : nullptr;
}

// The current thread cannot go on, or need not.
static void let_others(bool rather_new = false) {
    Thread* me = now;
    Thread* next = next_thread(rather_new);
    if (next == me) return;
    if (next) {
        resume(me->context, next);
    } else {
        now = nullptr;
        change(me->context, scheduler);
    }
}

static void yield() {
    if (!now) return;
    make_ready(now);
    let_others(true);
}
static void maybe_yield() {
    if (random_state && now && drawn(4) == 0) yield();
}

}   // namespace emulated

#include "emulated_peers.hpp"

namespace emulated {

static void release_block() {
    if (n_waiting == 0 || n_waiting + n_ended < n_threads) return;
    Wait kind = NOWHERE;
    int count = 0;
    for (int i = 0; i < n_threads; ++i) {
        Thread& thread = threads[i];
        if (thread.ended) continue;
        if (kind == NOWHERE) kind = thread.wait;
        if (thread.wait != kind)
            fail("threads of the block wait at different barriers: %s and %s", WAITS[kind], WAITS[thread.wait]);
        count += thread.value != 0;
    }
    int result = kind == SYNC_OR ? count > 0 : kind == SYNC_AND ? count == n_waiting : count;
    n_waiting = 0;
    barrier_passed();
    arrivals();
    for (int i = 0; i < n_threads; ++i) {
        if (threads[i].ended) continue;
        threads[i].result = (u64)result;
        make_ready(&threads[i]);
    }
}

static int meet_block(Wait kind, int predicate) {
    now->wait = kind;
    now->value = predicate != 0;
    ++n_waiting;
    release_block();
    let_others();
    return (int)now->result;
}

static u64 reduced(Wait kind, u64 a, u64 b) {
    switch (kind) {
        case REDUCE_ADD: return a + b;
        case REDUCE_MIN: return a < b ? a : b;
        case REDUCE_MAX: return a > b ? a : b;
        case REDUCE_SMIN: return (long long)a < (long long)b ? a : b;
        case REDUCE_SMAX: return (long long)a > (long long)b ? a : b;
        case REDUCE_AND: return a & b;
        case REDUCE_OR: return a | b;
        default: return a ^ b;
    }
}

// Lets the threads go on that meet `like` in its warp, if all in the mask that have not ended are there.
static void release_warp(Thread* warp, const Thread* like) {
    Wait kind = like->wait;
    unsigned mask = like->mask, present = 0, set = 0;
    u64 total = 0;
    bool same = true;
    for (int lane = 0; lane < LANES; ++lane) {
        const Thread& thread = warp[lane];
        if (!(mask >> lane & 1) || thread.ended) continue;
        if (thread.wait != kind || thread.mask != mask) return;
        total = present ? reduced(kind, total, thread.value) : thread.value;
        same = same && thread.value == like->value;
        present |= 1u << lane;
        if (thread.value) set |= 1u << lane;
    }
    for (int lane = 0; lane < LANES; ++lane) {
        if (!(present >> lane & 1)) continue;
        Thread& thread = warp[lane];
        switch (kind) {
            case SHUFFLE:
                if (present >> thread.source & 1) thread.result = warp[thread.source].value;
                else memset(&thread.result, POISON, sizeof thread.result);
                break;
            case BALLOT: thread.result = set; break;
            case ANY: thread.result = set != 0; break;
            case ALL: thread.result = set == present; break;
            case MATCH_ANY:
                thread.result = 0;
                for (int other = 0; other < LANES; ++other)
                    if ((present >> other & 1) && warp[other].value == thread.value) thread.result |= 1u << other;
                break;
            case MATCH_ALL: thread.result = same ? present : 0; break;
            default: thread.result = total;
        }
    }
    for (int lane = 0; lane < LANES; ++lane)
        if (present >> lane & 1) make_ready(&warp[lane]);
    arrivals();
}

static Thread* warp_of(const Thread* thread) { return threads + thread->number / LANES * LANES; }

static u64 meet_warp(Wait kind, unsigned mask, u64 value, int source = 0) {
    if (!(mask >> (now->number % LANES) & 1))
        fail("%s with the mask %08x, in which the calling lane %d is not", WAITS[kind], mask, now->number % LANES);
    now->wait = kind;
    now->mask = mask;
    now->value = value;
    now->source = source;
    release_warp(warp_of(now), now);
    let_others();
    return now->result;
}

// Lanes that call from the same place before any thread can do no more.
static unsigned active_mask(const void* site) {
    now->wait = ACTIVE;
    now->mask = 0;
    now->site = site;
    let_others();
    return (unsigned)now->result;
}

static bool release_active() {
    for (int i = 0; i < n_threads; ++i) {
        if (threads[i].wait != ACTIVE) continue;
        Thread* warp = warp_of(&threads[i]);
        const void* site = threads[i].site;
        unsigned mask = 0;
        for (int lane = 0; lane < LANES; ++lane)
            if (!warp[lane].ended && warp[lane].wait == ACTIVE && warp[lane].site == site) mask |= 1u << lane;
        for (int lane = 0; lane < LANES; ++lane)
            if (mask >> lane & 1) {
                warp[lane].result = mask;
                make_ready(&warp[lane]);
            }
        return true;
    }
    return false;
}

// What runs on every stack: thread after thread, as long as there are new ones and nothing else to do.
static void thread_main() {
    for (;;) {
        body(arguments);
        Thread* me = now;
        me->ended = true;
        ++n_ended;
        release_block();
        for (Thread* other = warp_of(me); other < warp_of(me) + LANES; ++other)
            if (!other->ended && other->wait >= WARP && other->wait < ACTIVE) release_warp(warp_of(me), other);
        Thread* next = next_thread(false);
        if (next && !next->started) {
            next->started = true;
            next->stack = me->stack;
            now = next;
            threadIdx = next->index;
            continue;
        }
        free_stacks[n_free++] = me->stack;
        if (next) {
            resume(me->context, next);
        } else {
            now = nullptr;
            change(me->context, scheduler);
        }
    }
}

static void say_deadlock() {
    say_where();
    say("deadlock: of %d threads %d have ended", n_threads, n_ended);
    bool told[MOST_THREADS] = {};
    for (int i = 0; i < n_threads; ++i) {
        Thread& first = threads[i];
        if (first.ended || told[i]) continue;
        int count = 0;
        for (int j = i; j < n_threads; ++j)
            if (!threads[j].ended && threads[j].wait == first.wait && threads[j].mask == first.mask) {
                told[j] = true;
                ++count;
            }
        say(", %d wait in %s", count, WAITS[first.wait]);
        if (first.wait >= WARP) say(" with the mask %08x", first.mask);
        say(" (the first is thread %d)", i);
    }
}

struct Shared {   // says where a static __shared__ variable lies
    Shared(void* start, size_t bytes) {
        if (n_shared < MOST_SHARED) shared[n_shared++] = {start, bytes};
        memset(start, POISON, bytes);
    }
};

static void run_block(size_t dynamic) {
    int padded = (n_threads + LANES - 1) / LANES * LANES;
    for (int i = 0; i < padded; ++i) {
        Thread& thread = threads[i];
        unsigned u = (unsigned)i;
        thread.index = {u % blockDim.x, u / blockDim.x % blockDim.y, u / blockDim.x / blockDim.y};
        thread.number = i;
        thread.started = false;
        thread.ended = i >= n_threads;
        thread.wait = NOWHERE;
        thread.mask = 0;
        order[i] = i;
    }
    if (random_state)
        for (int i = n_threads - 1; i > 0; --i) std::swap(order[i], order[drawn((unsigned)i + 1)]);
    for (int i = 0; i < MOST_THREADS; ++i) free_stacks[i] = MOST_THREADS - 1 - i;
    n_free = MOST_THREADS;
    n_ended = n_waiting = n_started = n_ready = first_ready = 0;
    now = nullptr;
    for (int i = 0; i < n_shared; ++i) memset(shared[i].start, POISON, shared[i].bytes);
    memset(pool, INTACT, FENCE);
    memset(pool + FENCE, POISON, dynamic);
    memset(pool + FENCE + dynamic, INTACT, FENCE);
    do {
        if (Thread* next = next_thread(false)) resume(scheduler, next);
    } while (!failed && (n_ready || release_active()));
    if (failed) return;
    if (n_ended < n_threads) {
        failed = true;
        say_deadlock();
        return;
    }
    const unsigned char* above = pool + FENCE + dynamic;
    bool same = !memcmp(pool, pool + 1, FENCE - 1) && !memcmp(above, above + 1, FENCE - 1);
    if (same && *pool == INTACT && *above == INTACT) return;
    for (size_t i = 0; i < FENCE; ++i) {
        bool below = pool[FENCE - 1 - i] != INTACT;
        if (!below && above[i] == INTACT) continue;
        failed = true;
        say_where();
        say("the kernel wrote outside its %zu bytes of dynamic shared memory, ", dynamic);
        below ? say("%zu bytes before their start", i + 1) : say("%zu bytes after their end", i);
        return;
    }
}

}   // namespace emulated
