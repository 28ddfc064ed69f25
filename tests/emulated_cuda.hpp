// CUDA C++ on the host: what a kernel's source needs to compile with a C++17 compiler, and blocks of fibers to run it.
//
// A thread of the grid is a fiber, a block is up to 1024 of them, and blocks run one after the other. A fiber runs
// until it meets the others (a barrier, a warp's intrinsic) or ends; the last to arrive lets all of them go on. So
// programs see a legal order of their threads, the same every time, or, with a seed, one of many. Threads that have
// ended count as arrived. If none can go on and not all have ended, that is a deadlock: the launch fails with who waits
// where.
// Shared memory is poisoned before each block; what a shuffle reads from a lane outside its mask is poison too.
//
// Not here: inline PTX (test EMULATED_CUDA around it), cooperative groups, clusters, half precision, several blocks at
// the same time (a block that waits for a later one runs out of time, and the launch says so).

#pragma once

#include <cassert>
#include <cmath>
#include <csetjmp>
#include <csignal>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <type_traits>
#include <utility>

#include <cfenv>
#include <math.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#if !defined(__x86_64__) && !defined(EMULATED_UCONTEXT)
#define EMULATED_UCONTEXT 1
#endif
#ifdef EMULATED_UCONTEXT
#include <ucontext.h>
#endif

// ---------------------------------------------------------------------------------------------- words of the language

#define EMULATED_CUDA 1
#define __CUDACC__ 1
#define __CUDA_ARCH__ 900
#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __grid_constant__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#ifndef __clang__
#define __builtin_assume(x) ((void)0)
#endif

#define EMULATED_VECTORS(T, name, a2, a4)                                                                              \
    struct name##1 { T x; };                                                                                           \
    struct __attribute__((aligned(a2))) name##2 { T x, y; };                                                           \
    struct name##3 { T x, y, z; };                                                                                     \
    struct __attribute__((aligned(a4))) name##4 { T x, y, z, w; };                                                     \
    inline name##1 make_##name##1(T x) { return {x}; }                                                                 \
    inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                                         \
    inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                                                 \
    inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }

EMULATED_VECTORS(signed char, char, 2, 4)
EMULATED_VECTORS(unsigned char, uchar, 2, 4)
EMULATED_VECTORS(short, short, 4, 8)
EMULATED_VECTORS(unsigned short, ushort, 4, 8)
EMULATED_VECTORS(int, int, 8, 16)
EMULATED_VECTORS(unsigned, uint, 8, 16)
EMULATED_VECTORS(long, long, 16, 16)
EMULATED_VECTORS(unsigned long, ulong, 16, 16)
EMULATED_VECTORS(long long, longlong, 16, 16)
EMULATED_VECTORS(unsigned long long, ulonglong, 16, 16)
EMULATED_VECTORS(float, float, 8, 16)
EMULATED_VECTORS(double, double, 16, 16)

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

static uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;
static constexpr int warpSize = 32;

// ------------------------------------------------------------------------------------------------ fibers and meetings

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

// ------------------------------------------------------------------------------------------- faults and running away

// What the compiler calls where its checks find something (-fsanitize, whose own library is not linked).
struct Place {
    const char* file;
    unsigned line, column;
};
#define EMULATED_CHECK(name, what)                                                                                     \
    extern "C" __attribute__((visibility("hidden"), used)) void __ubsan_handle_##name(const Place* place, size_t x) {  \
        fail("%s:%u: " what, place->file, place->line, x);                                                             \
    }
EMULATED_CHECK(type_mismatch_v1_abort, "the address %#zx is misaligned for what is read or written there")
EMULATED_CHECK(out_of_bounds_abort, "the index %zd is outside the array")
EMULATED_CHECK(divrem_overflow_abort, "%zd is divided by 0")
EMULATED_CHECK(builtin_unreachable, "the kernel reached what it says cannot be reached")
EMULATED_CHECK(missing_return, "a function ends without its result")
extern "C" __attribute__((visibility("hidden"), used)) void __ubsan_handle_shift_out_of_bounds_abort(
    const Place* place, size_t, size_t by) {
    fail("%s:%u: a shift by %zd, which is not in the width of its type", place->file, place->line, by);
}

static sigjmp_buf way_out;
static volatile pid_t launching;
static const int CAUGHT[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGVTALRM};
static const int N_CAUGHT = sizeof CAUGHT / sizeof *CAUGHT;
static struct sigaction previous[N_CAUGHT];
static volatile int caught;
static void* volatile caught_at;

static void on_signal(int number, siginfo_t* info, void*) {
    if ((pid_t)syscall(SYS_gettid) != launching) {   // another thread's: as if the launch were not there
        for (int i = 0; i < N_CAUGHT; ++i)
            if (CAUGHT[i] == number) sigaction(number, &previous[i], nullptr);
        return;
    }
    caught = number;
    caught_at = info->si_addr;
    siglongjmp(way_out, 1);
}

static void say_signal() {
    failed = true;
    say_where();
    unsigned char* at = (unsigned char*)caught_at;
    if (caught == SIGVTALRM) {
        say("the kernel ran out of time: it loops, or waits for a block that has not started");
    } else if (caught == SIGFPE || caught == SIGILL) {
        say("the host's signal %d: %s", caught, strsignal(caught));
    } else if (at >= stacks && at < stacks + STACK * MOST_THREADS && (size_t)(at - stacks) % STACK < PAGE) {
        say("the thread's local variables need more than the %zu KiB of its stack", STACK >> 10);
    } else {
        say("invalid address %p", (void*)at);
    }
}

struct Timer {   // of the launching thread's CPU time, which does not run while others hold the machine
    timer_t id;
    explicit Timer(double seconds) {
        struct sigevent event = {};
        event.sigev_notify = SIGEV_THREAD_ID;
        event.sigev_signo = SIGVTALRM;
#ifdef sigev_notify_thread_id
        event.sigev_notify_thread_id = launching;
#else
        event._sigev_un._tid = launching;
#endif
        timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &id);
        struct itimerspec when = {};
        when.it_value.tv_sec = (time_t)seconds;
        when.it_value.tv_nsec = (long)((seconds - (double)when.it_value.tv_sec) * 1e9);
        timer_settime(id, 0, &when, nullptr);
    }
    void stop() { timer_delete(id); }
};

// `sizes`: grid and block, three each. 0, or 1 with a message.
static int launch(void (*kernel)(void**), void** values, const unsigned* sizes, size_t dynamic, u64 seed,
                  double seconds, char* text, size_t text_bytes) {
    static unsigned char* signal_stack;
    if (!stacks) {
        size_t bytes = STACK * MOST_THREADS;
        void* made = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (made == MAP_FAILED) {
            snprintf(text, text_bytes, "no memory for the stacks of the threads (64 MiB)");
            return 1;
        }
        stacks = (unsigned char*)made;
        for (int i = 0; i < MOST_THREADS; ++i) mprotect(stacks + STACK * i, PAGE, PROT_NONE);
        signal_stack = (unsigned char*)malloc(STACK);
    }
    body = kernel;
    arguments = values;
    message = text;
    message_bytes = text_bytes;
    failed = false;
    random_state = seed;
    gridDim = dim3(sizes[0], sizes[1], sizes[2]);
    blockDim = dim3(sizes[3], sizes[4], sizes[5]);
    n_threads = (int)(blockDim.x * blockDim.y * blockDim.z);
    launching = (pid_t)syscall(SYS_gettid);

    stack_t own = {}, others = {};
    own.ss_sp = signal_stack;
    own.ss_size = STACK;
    sigaltstack(&own, &others);
    struct sigaction action = {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int i = 0; i < N_CAUGHT; ++i) sigaction(CAUGHT[i], &action, &previous[i]);
    Timer timer(seconds);

    if (sigsetjmp(way_out, 1) == 0) {
        u64 n_blocks = (u64)gridDim.x * gridDim.y * gridDim.z;
        u64* turns = nullptr;
        if (seed) {
            turns = (u64*)malloc(n_blocks * sizeof(u64));
            for (u64 i = 0; i < n_blocks; ++i) turns[i] = i;
            for (u64 i = n_blocks - 1; i > 0; --i) std::swap(turns[i], turns[drawn((unsigned)(i + 1))]);
        }
        for (u64 i = 0; i < n_blocks && !failed; ++i) {
            u64 b = turns ? turns[i] : i;
            blockIdx = {(unsigned)(b % gridDim.x), (unsigned)(b / gridDim.x % gridDim.y),
                        (unsigned)(b / gridDim.x / gridDim.y)};
            run_block(dynamic);
        }
        free(turns);
    } else {
        say_signal();
    }

    timer.stop();
    for (int i = 0; i < N_CAUGHT; ++i) sigaction(CAUGHT[i], &previous[i], nullptr);
    sigaltstack(&others, nullptr);
    launching = 0;
    now = nullptr;
    fflush(stdout);
    return failed;
}

// --------------------------------------------------------------------------------------------- a kernel's parameters

template <class T> constexpr int kind_of() {   // as NumPy's dtype.kind
    return std::is_same_v<T, bool>          ? 'b'
           : std::is_floating_point_v<T>    ? 'f'
           : !std::is_integral_v<T>         ? 'V'
           : std::is_unsigned_v<T>          ? 'u'
                                            : 'i';
}

struct Parameter {
    int bytes, kind, pointee_bytes, pointee_kind, writes;   // kind 'p': to `pointee`, of 0 bytes if it is void
};

template <class T> constexpr Parameter parameter_of() {
    if constexpr (std::is_pointer_v<T>) {
        typedef std::remove_pointer_t<T> Pointee;
        typedef std::remove_cv_t<Pointee> Plain;
        int writes = !std::is_const_v<Pointee>;
        if constexpr (std::is_void_v<Plain>) return {(int)sizeof(T), 'p', 0, 'V', writes};
        else return {(int)sizeof(T), 'p', (int)sizeof(Plain), kind_of<Plain>(), writes};
    } else {
        return {(int)sizeof(T), kind_of<T>(), 0, 'V', 0};
    }
}

template <auto kernel> struct Kernel;
template <class... P, void (*kernel)(P...)> struct Kernel<kernel> {
    template <size_t... I> static void call(void** values, std::index_sequence<I...>) {
        kernel(*(std::remove_reference_t<P>*)values[I]...);
    }
    static void body(void** values) { call(values, std::index_sequence_for<P...>{}); }
    static int parameters(Parameter* out, int room) {
        const Parameter all[] = {parameter_of<P>()..., Parameter{}};
        for (int i = 0; i < (int)sizeof...(P) && i < room; ++i) out[i] = all[i];
        return (int)sizeof...(P);
    }
};

}   // namespace emulated

#define EMULATED_KERNEL(number, ...)                                                                                   \
    extern "C" __attribute__((visibility("default"))) int emulated_launch_##number(                                   \
        void** values, const unsigned* sizes, size_t dynamic, unsigned long long seed, double seconds, char* text,    \
        size_t text_bytes) {                                                                                           \
        return emulated::launch(emulated::Kernel<&__VA_ARGS__>::body, values, sizes, dynamic, seed, seconds, text,    \
                                text_bytes);                                                                           \
    }                                                                                                                  \
    extern "C" __attribute__((visibility("default"))) int emulated_parameters_##number(emulated::Parameter* out,      \
                                                                                       int room) {                     \
        return emulated::Kernel<&__VA_ARGS__>::parameters(out, room);                                                  \
    }

// ------------------------------------------------------------------------------------------------ barriers and warps

inline void __syncthreads() { emulated::meet_block(emulated::SYNC, 0); }
inline int __syncthreads_or(int p) { return emulated::meet_block(emulated::SYNC_OR, p); }
inline int __syncthreads_and(int p) { return emulated::meet_block(emulated::SYNC_AND, p); }
inline int __syncthreads_count(int p) { return emulated::meet_block(emulated::SYNC_COUNT, p); }
inline void __syncwarp(unsigned mask = 0xffffffffu) { emulated::meet_warp(emulated::WARP, mask, 0); }
inline unsigned __ballot_sync(unsigned mask, int p) {
    return (unsigned)emulated::meet_warp(emulated::BALLOT, mask, p != 0);
}
inline int __any_sync(unsigned mask, int p) { return (int)emulated::meet_warp(emulated::ANY, mask, p != 0); }
inline int __all_sync(unsigned mask, int p) { return (int)emulated::meet_warp(emulated::ALL, mask, p != 0); }
__attribute__((noinline)) static unsigned __activemask() { return emulated::active_mask(__builtin_return_address(0)); }

namespace emulated {

template <class T> u64 bits(T value) {
    static_assert(std::is_arithmetic_v<T> && sizeof(T) <= 8, "a warp's intrinsics take numbers of up to 8 bytes");
    u64 out = 0;
    memcpy(&out, &value, sizeof value);
    return out;
}
template <class T> T of_bits(u64 value) {
    T out;
    memcpy(&out, &value, sizeof out);
    return out;
}
template <class T> T shuffled(unsigned mask, T value, int source) {
    return of_bits<T>(meet_warp(SHUFFLE, mask, bits(value), source));
}
inline int lane() { return now->number % LANES; }
inline void check_width(int width) {
    if (width < 1 || width > 32 || (width & (width - 1))) fail("a shuffle of width %d, which is no power of 2", width);
}

}   // namespace emulated

template <class T> T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
    emulated::check_width(width);
    int lane = emulated::lane();
    return emulated::shuffled(mask, value, (lane & ~(width - 1)) + (source & (width - 1)));
}
template <class T> T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
    emulated::check_width(width);
    int lane = emulated::lane(), source = lane - (int)by;
    return emulated::shuffled(mask, value, source < (lane & ~(width - 1)) ? lane : source);
}
template <class T> T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
    emulated::check_width(width);
    int lane = emulated::lane();
    bool inside = (unsigned)(lane & (width - 1)) + (unsigned long long)by < (unsigned)width;
    return emulated::shuffled(mask, value, inside ? lane + (int)by : lane);
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int with, int width = 32) {
    emulated::check_width(width);
    int lane = emulated::lane(), source = lane ^ with;
    return emulated::shuffled(mask, value, source >= (lane & ~(width - 1)) + width || source < 0 ? lane : source);
}
template <class T> unsigned __match_any_sync(unsigned mask, T value) {
    return (unsigned)emulated::meet_warp(emulated::MATCH_ANY, mask, emulated::bits(value));
}
template <class T> unsigned __match_all_sync(unsigned mask, T value, int* predicate) {
    unsigned found = (unsigned)emulated::meet_warp(emulated::MATCH_ALL, mask, emulated::bits(value));
    *predicate = found != 0;
    return found;
}

#define EMULATED_REDUCE(name, unsigned_kind)                                                                           \
    inline unsigned __reduce_##name##_sync(unsigned mask, unsigned value) {                                            \
        return (unsigned)emulated::meet_warp(emulated::unsigned_kind, mask, value);                                    \
    }
#define EMULATED_SIGNED_REDUCE(name, signed_kind)                                                                      \
    inline int __reduce_##name##_sync(unsigned mask, int value) {                                                      \
        return (int)emulated::meet_warp(emulated::signed_kind, mask, (emulated::u64)(long long)value);                 \
    }
EMULATED_REDUCE(add, REDUCE_ADD)
EMULATED_REDUCE(min, REDUCE_MIN)
EMULATED_REDUCE(max, REDUCE_MAX)
EMULATED_REDUCE(and, REDUCE_AND)
EMULATED_REDUCE(or, REDUCE_OR)
EMULATED_REDUCE(xor, REDUCE_XOR)
EMULATED_SIGNED_REDUCE(add, REDUCE_ADD)
EMULATED_SIGNED_REDUCE(min, REDUCE_SMIN)
EMULATED_SIGNED_REDUCE(max, REDUCE_SMAX)

inline void __threadfence() { emulated::yield(); }
inline void __threadfence_block() { emulated::yield(); }
inline void __threadfence_system() { emulated::yield(); }
inline void __nanosleep(unsigned) { emulated::yield(); }
inline long long clock64() { return 0; }
[[noreturn]] inline void __trap() { emulated::fail("the kernel trapped"); }

#undef assert
#define assert(x) ((x) ? (void)0 : emulated::fail("assert(%s) failed in line %d", #x, __LINE__))

// ------------------------------------------------------------------------------------------------------------ memory

// Plain, since threads change places at meetings only; with a seed also here, before the access.
#define EMULATED_ATOMIC(name, T, expression)                                                                           \
    inline T name(T* at, T value) {                                                                                    \
        emulated::maybe_yield();                                                                                       \
        T old = *at;                                                                                                   \
        *at = (expression);                                                                                            \
        return old;                                                                                                    \
    }                                                                                                                  \
    inline T name##_block(T* at, T value) { return name(at, value); }                                                  \
    inline T name##_system(T* at, T value) { return name(at, value); }
#define EMULATED_CAS(T)                                                                                                \
    inline T atomicCAS(T* at, T compare, T value) {                                                                    \
        emulated::maybe_yield();                                                                                       \
        T old = *at;                                                                                                   \
        if (old == compare) *at = value;                                                                               \
        else emulated::yield();                                                                                        \
        return old;                                                                                                    \
    }                                                                                                                  \
    inline T atomicCAS_block(T* at, T compare, T value) { return atomicCAS(at, compare, value); }                      \
    inline T atomicCAS_system(T* at, T compare, T value) { return atomicCAS(at, compare, value); }
#define EMULATED_ATOMICS(T)                                                                                            \
    EMULATED_ATOMIC(atomicMin, T, value < old ? value : old)                                                           \
    EMULATED_ATOMIC(atomicMax, T, value > old ? value : old)                                                           \
    EMULATED_ATOMIC(atomicAnd, T, old & value)                                                                         \
    EMULATED_ATOMIC(atomicOr, T, old | value)                                                                          \
    EMULATED_ATOMIC(atomicXor, T, old ^ value)

EMULATED_ATOMICS(int)
EMULATED_ATOMICS(unsigned)
EMULATED_ATOMICS(long long)
EMULATED_ATOMICS(unsigned long long)
EMULATED_ATOMIC(atomicAdd, int, (int)((unsigned)old + (unsigned)value))
EMULATED_ATOMIC(atomicAdd, unsigned, old + value)
EMULATED_ATOMIC(atomicAdd, unsigned long long, old + value)
EMULATED_ATOMIC(atomicAdd, float, old + value)
EMULATED_ATOMIC(atomicAdd, double, old + value)
EMULATED_ATOMIC(atomicSub, int, (int)((unsigned)old - (unsigned)value))
EMULATED_ATOMIC(atomicSub, unsigned, old - value)
EMULATED_ATOMIC(atomicInc, unsigned, old >= value ? 0 : old + 1)
EMULATED_ATOMIC(atomicDec, unsigned, old == 0 || old > value ? value : old - 1)
EMULATED_ATOMIC(atomicExch, int, value)
EMULATED_ATOMIC(atomicExch, unsigned, value)
EMULATED_ATOMIC(atomicExch, unsigned long long, value)
EMULATED_ATOMIC(atomicExch, float, value)
EMULATED_CAS(int)
EMULATED_CAS(unsigned)
EMULATED_CAS(unsigned long long)
EMULATED_CAS(unsigned short)

#define EMULATED_LOAD(name) template <class T> T name(const T* at) { return *at; }
#define EMULATED_STORE(name) template <class T> void name(T* at, std::common_type_t<T> value) { *at = value; }
EMULATED_LOAD(__ldg)
EMULATED_LOAD(__ldcg)
EMULATED_LOAD(__ldca)
EMULATED_LOAD(__ldcs)
EMULATED_LOAD(__ldlu)
EMULATED_LOAD(__ldcv)
EMULATED_STORE(__stwb)
EMULATED_STORE(__stcg)
EMULATED_STORE(__stcs)
EMULATED_STORE(__stwt)

// ------------------------------------------------------------------------------------------------------------ numbers

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
inline unsigned long long __brevll(unsigned long long x) {
    unsigned long long out = 0;
    for (int i = 0; i < 64; ++i) out |= (x >> i & 1) << (63 - i);
    return out;
}
inline unsigned __brev(unsigned x) { return (unsigned)(__brevll(x) >> 32); }
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selectors) {
    unsigned long long both = (unsigned long long)y << 32 | x;
    unsigned out = 0;
    for (int i = 0; i < 4; ++i) out |= (unsigned)(both >> 8 * (selectors >> 4 * i & 7) & 0xff) << 8 * i;
    return out;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
    return (unsigned)(((unsigned long long)high << 32 | low) << (by & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
    return (unsigned)(((unsigned long long)high << 32 | low) >> (by & 31));
}
inline unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned by) {
    return by >= 32 ? low : __funnelshift_l(low, high, by);
}
inline unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned by) {
    return by >= 32 ? high : __funnelshift_r(low, high, by);
}
inline int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
inline long long __mul64hi(long long a, long long b) { return (long long)((__int128)a * b >> 64); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}

#define EMULATED_CAST(name, From, To)                                                                                  \
    inline To name(From x) {                                                                                           \
        static_assert(sizeof(From) == sizeof(To), "as many bits");                                                     \
        To out;                                                                                                        \
        memcpy(&out, &x, sizeof out);                                                                                  \
        return out;                                                                                                    \
    }
EMULATED_CAST(__float_as_uint, float, unsigned)
EMULATED_CAST(__float_as_int, float, int)
EMULATED_CAST(__uint_as_float, unsigned, float)
EMULATED_CAST(__int_as_float, int, float)
EMULATED_CAST(__double_as_longlong, double, long long)
EMULATED_CAST(__longlong_as_double, long long, double)
inline int __double2hiint(double x) { return (int)(__double_as_longlong(x) >> 32); }
inline int __double2loint(double x) { return (int)__double_as_longlong(x); }
inline double __hiloint2double(int high, int low) {
    return __longlong_as_double((long long)((unsigned long long)(unsigned)high << 32 | (unsigned)low));
}

namespace emulated {

// Compiled apart and on volatile numbers, so that nothing is moved past the changes of the rounding.
template <int rounding, class F, class T> __attribute__((noinline)) auto rounded(F operation, T a, T b) {
    volatile T x = a, y = b;
    int before = fegetround();
    fesetround(rounding);
    volatile auto out = operation(x, y);
    fesetround(before);
    return (std::remove_volatile_t<decltype(out)>)out;
}

}   // namespace emulated

#define EMULATED_ROUNDED(suffix, rounding)                                                                             \
    inline double __dadd_##suffix(double a, double b) {                                                                \
        return emulated::rounded<rounding>([](volatile double& x, volatile double& y) { return x + y; }, a, b);        \
    }                                                                                                                  \
    inline double __dsub_##suffix(double a, double b) {                                                                \
        return emulated::rounded<rounding>([](volatile double& x, volatile double& y) { return x - y; }, a, b);        \
    }                                                                                                                  \
    inline double __dmul_##suffix(double a, double b) {                                                                \
        return emulated::rounded<rounding>([](volatile double& x, volatile double& y) { return x * y; }, a, b);        \
    }                                                                                                                  \
    inline double __ddiv_##suffix(double a, double b) {                                                                \
        return emulated::rounded<rounding>([](volatile double& x, volatile double& y) { return x / y; }, a, b);        \
    }                                                                                                                  \
    inline float __fadd_##suffix(float a, float b) {                                                                   \
        return emulated::rounded<rounding>([](volatile float& x, volatile float& y) { return x + y; }, a, b);          \
    }                                                                                                                  \
    inline float __fsub_##suffix(float a, float b) {                                                                   \
        return emulated::rounded<rounding>([](volatile float& x, volatile float& y) { return x - y; }, a, b);          \
    }                                                                                                                  \
    inline float __fmul_##suffix(float a, float b) {                                                                   \
        return emulated::rounded<rounding>([](volatile float& x, volatile float& y) { return x * y; }, a, b);          \
    }                                                                                                                  \
    inline float __fdiv_##suffix(float a, float b) {                                                                   \
        return emulated::rounded<rounding>([](volatile float& x, volatile float& y) { return x / y; }, a, b);          \
    }                                                                                                                  \
    inline float __double2float_##suffix(double a) {                                                                   \
        return emulated::rounded<rounding>([](volatile double& x, volatile double&) { return (float)x; }, a, a);       \
    }
EMULATED_ROUNDED(rn, FE_TONEAREST)
EMULATED_ROUNDED(rz, FE_TOWARDZERO)
EMULATED_ROUNDED(ru, FE_UPWARD)
EMULATED_ROUNDED(rd, FE_DOWNWARD)
#define EMULATED_WHOLE(suffix, rule)                                                                                   \
    inline int __double2int_##suffix(double x) { return emulated::whole<int>(rule(x)); }                               \
    inline unsigned __double2uint_##suffix(double x) { return emulated::whole<unsigned>(rule(x)); }                    \
    inline long long __double2ll_##suffix(double x) { return emulated::whole<long long>(rule(x)); }                    \
    inline unsigned long long __double2ull_##suffix(double x) { return emulated::whole<unsigned long long>(rule(x)); } \
    inline int __float2int_##suffix(float x) { return emulated::whole<int>(rule((double)x)); }                         \
    inline unsigned __float2uint_##suffix(float x) { return emulated::whole<unsigned>(rule((double)x)); }
namespace emulated {

template <class T> T whole(double x) {   // what does not fit becomes the nearest that does, as on a device
    constexpr T low = std::is_signed_v<T> ? (T)((u64)1 << (8 * sizeof(T) - 1)) : (T)0;
    if (x != x) return sizeof(T) == 8 ? (T)((u64)1 << 63) : (T)0;
    if (x <= (double)low) return low;
    if (x >= (double)(T)~low + (sizeof(T) == 8 ? 0.0 : 1.0)) return (T)~low;
    return (T)x;
}

}   // namespace emulated
EMULATED_WHOLE(rn, rint)
EMULATED_WHOLE(rz, trunc)
EMULATED_WHOLE(ru, ceil)
EMULATED_WHOLE(rd, floor)
inline double __int2double_rn(int x) { return x; }
inline double __uint2double_rn(unsigned x) { return x; }
inline double __ll2double_rn(long long x) { return (double)x; }
inline double __ull2double_rn(unsigned long long x) { return (double)x; }
inline float __int2float_rn(int x) { return (float)x; }
inline float __uint2float_rn(unsigned x) { return (float)x; }
inline double __dsqrt_rn(double x) { return sqrt(x); }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }

// Of numbers of two types as CUDA's overloads: in their common type, a NaN gives way.
template <class A, class B, class = std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>>>
constexpr std::common_type_t<A, B> min(A a, B b) {
    typedef std::common_type_t<A, B> T;
    T x = (T)a, y = (T)b;
    return y < x || x != x ? y : x;
}
template <class A, class B, class = std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>>>
constexpr std::common_type_t<A, B> max(A a, B b) {
    typedef std::common_type_t<A, B> T;
    T x = (T)a, y = (T)b;
    return x < y || x != x ? y : x;
}

// ---------------------------------------------------------------------------------- __shared__, rewritten by Python

#define EMULATED_SHARED_PLACE(name, number)                                                                            \
    static ::emulated::Shared emulated_shared_##number { &name, sizeof name };
#define EMULATED_DYNAMIC_SHARED ((void*)(::emulated::pool + ::emulated::FENCE))
