// A launch of emulated kernels: its faults become messages, and Python learns the kernels' parameters.

#pragma once

#include <csetjmp>
#include <csignal>
#include <ctime>
#include <type_traits>
#include <utility>

#include <sys/syscall.h>

#include "emulated_blocks.hpp"

namespace emulated {

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

// Stacks of the threads, a page that cannot be accessed below each: those of another library of the process, if given.
// That many pages are two thousand mappings, of which a process may have some 65,000.
static void* share_stacks(void* given) {
    if (given) {
        stacks = (unsigned char*)given;
    } else if (!stacks) {
        size_t bytes = STACK * MOST_THREADS;
        void* made = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (made == MAP_FAILED) return nullptr;
        stacks = (unsigned char*)made;
        for (int i = 0; i < MOST_THREADS; ++i) mprotect(stacks + STACK * i, PAGE, PROT_NONE);
    }
    return stacks;
}

// `sizes`: grid and block, three each. 0, or 1 with a message.
static int launch(void (*kernel)(void**), void** values, const unsigned* sizes, size_t dynamic, u64 seed,
                  double seconds, char* text, size_t text_bytes) {
    static unsigned char* signal_stack = (unsigned char*)malloc(STACK);
    if (!stacks) {
        snprintf(text, text_bytes, "no memory for the stacks of the threads (64 MiB)");
        return 1;
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

extern "C" __attribute__((visibility("default"))) void* emulated_stacks(void* given) {
    return emulated::share_stacks(given);
}

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
