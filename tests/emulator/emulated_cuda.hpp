// CUDA C++ on the host: what a kernel's source needs to compile with a C++17 compiler; emulated_blocks.hpp runs it.
//
// Not here: inline PTX (test EMULATED_CUDA around it), cooperative groups, clusters, half precision, several blocks at
// the same time (a block that waits for a later one runs out of time, and the launch says so).

#pragma once

#include <cassert>
#include <cfenv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <math.h>
#include <type_traits>

#include "emulated_launch.hpp"

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

#define EMULATED_1_2_4(T, name, a2, a4)                                                                                \
    struct name##1 { T x; };                                                                                           \
    struct __attribute__((aligned(a2))) name##2 { T x, y; };                                                           \
    struct __attribute__((aligned(a4))) name##4 { T x, y, z, w; };                                                     \
    inline name##1 make_##name##1(T x) { return {x}; }                                                                 \
    inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                                         \
    inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }                                         \
    inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }
#define EMULATED_VECTORS(T, name, a2, a4)                                                                              \
    struct name##3 { T x, y, z; };                                                                                     \
    EMULATED_1_2_4(T, name, a2, a4)

EMULATED_VECTORS(signed char, char, 2, 4)
EMULATED_VECTORS(unsigned char, uchar, 2, 4)
EMULATED_VECTORS(short, short, 4, 8)
EMULATED_VECTORS(unsigned short, ushort, 4, 8)
EMULATED_VECTORS(int, int, 8, 16)
EMULATED_1_2_4(unsigned, uint, 8, 16)
EMULATED_VECTORS(long, long, 16, 16)
EMULATED_VECTORS(unsigned long, ulong, 16, 16)
EMULATED_VECTORS(long long, longlong, 16, 16)
EMULATED_VECTORS(unsigned long long, ulonglong, 16, 16)
EMULATED_VECTORS(float, float, 8, 16)
EMULATED_VECTORS(double, double, 16, 16)

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
inline void __threadfence_system() {
    emulated::fence_of_system();
    emulated::yield();
}
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
    inline T name##_system(T* at, T value) {   /* other devices may read there, and raise what they have */            \
        T old = name(at, value);                                                                                       \
        emulated::stored(at, emulated::bits(*at), sizeof(T), true);                                                    \
        return old;                                                                                                    \
    }
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

#define EMULATED_LOAD(name)                                                                                            \
    template <class T> T name(const T* at) {   /* other devices may store there */                                     \
        T value = *at;                                                                                                 \
        if constexpr (std::is_arithmetic_v<T>) {                                                                       \
            const emulated::u64 seen = emulated::loaded(at, emulated::bits(value));                                    \
            memcpy(&value, &seen, sizeof value);                                                                       \
        }                                                                                                              \
        return value;                                                                                                  \
    }
#define EMULATED_STORE(name) template <class T> void name(T* at, std::common_type_t<T> value) { *at = value; }
EMULATED_LOAD(__ldg)
EMULATED_LOAD(__ldcg)
EMULATED_LOAD(__ldca)
EMULATED_LOAD(__ldcs)
EMULATED_LOAD(__ldlu)
EMULATED_LOAD(__ldcv)
EMULATED_STORE(__stwb)
template <class T> void __stcg(T* at, std::common_type_t<T> value) {   // other devices may read there
    *at = value;
    if constexpr (std::is_arithmetic_v<T>) emulated::stored(at, emulated::bits(*at), sizeof(T), false);
}
EMULATED_STORE(__stcs)
EMULATED_STORE(__stwt)

#define __NV_ATOMIC_ACQUIRE 2
#define __NV_THREAD_SCOPE_SYSTEM 4
// Only what orders the block's later loads behind other devices' stores.
template <class T> void __nv_atomic_load(const T* at, T* to, int order, int scope) {
    *to = *at;
    if (order != __NV_ATOMIC_ACQUIRE || scope != __NV_THREAD_SCOPE_SYSTEM)
        emulated::fail("__nv_atomic_load of the order %d and the scope %d is not emulated", order, scope);
    emulated::acquire_of_system();
}

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
