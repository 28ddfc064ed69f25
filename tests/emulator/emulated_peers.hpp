// Memory that several emulated devices read: each device has a view of its own, sees another's stores late, and may load
// what was there before them.
//
// A store of the running device changes its own view at once and becomes an *arrival* for every other device that reads
// there. While another device's kernel runs, arrivals take place wherever a block's or a warp's threads meet, in any order
// that the memory model allows: stores to one address in theirs; what a thread stores after a fence of the system after
// all that it stored before the fence, and after all that its block had stored by the last barrier before the fence.
//
// A load by __ldca, __ldcg and the like gives what the address holds, or what it held before an arrival of this launch: any
// of that, unless the thread has acquired since that arrival, or another thread of its block before their last barrier.
// A block loads nothing older from an address than it has loaded there before.

#pragma once

#include <unordered_map>
#include <vector>

namespace emulated {

struct Reach {           // stores of the running device from `begin` on reach another device at `there`
    unsigned char *begin, *there;
    u64 bytes, device, eager;   // eager: arrives as soon as it may, for others that wait until then
};

struct Arrival {
    unsigned char* to;
    u64 value, device, round;
    int bytes, thread;
    bool largest, eager;   // largest: a 64-bit number that is raised, not replaced
    u64 number;          // among all stores
    u64 block, barrier, fence;   // stores of the block before `barrier`, and of the thread before `fence`, come before
};

static std::vector<Arrival> late;
static const Reach* reaches;
static u64 n_reaches, running, running_round, stores, launches_of_devices, arrivals_state;
static unsigned arrivals_at_once;        // at most, of those that are not eager
static unsigned every_so_often;          // meetings from one with arrivals to the next, about; 0: none
static bool among_devices;
static u64 barrier_of_block, block_of_stores;
struct Replaced { u64 value, arrival; };   // what an address held until an arrival
struct Past {
    std::vector<Replaced> values;
    u64 block;           // that has loaded there, and no longer sees the first so many
    size_t passed;
};
static std::unordered_map<const void*, Past> past;
static u64 arrived;      // in this launch
struct Acquired { u64 block, arrivals; };
static Acquired acquired[MOST_THREADS], acquired_since_barrier, acquired_by_all;   // all: of the block's threads
struct Fence { u64 block, barrier, fence; };
static Fence fences[MOST_THREADS];

static unsigned drawn_for_arrivals(unsigned below) {
    u64 z = (arrivals_state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return (unsigned)((z ^ (z >> 31)) >> 32) % below;
}

static u64 this_block() {
    return launches_of_devices << 32 | ((u64)blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
}

static void stored(const void* at, u64 value, int bytes, bool largest) {
    if (!among_devices || !now) return;
    past.erase(at);      // its own stores are in order
    const int thread = now->number;
    const u64 number = stores++, block = this_block();
    const bool fenced = fences[thread].block == block;
    for (u64 i = 0; i < n_reaches; ++i) {
        const Reach& reach = reaches[i];
        const u64 offset = (u64)((unsigned char*)at - reach.begin);
        if ((unsigned char*)at < reach.begin || offset >= reach.bytes) continue;
        late.push_back({reach.there + offset, value, reach.device, running_round, bytes, thread, largest,
                        reach.eager != 0, number, block,
                        fenced ? fences[thread].barrier : 0, fenced ? fences[thread].fence : 0});
    }
}

static void fence_of_system() {
    if (!among_devices || !now) return;
    const u64 block = this_block();
    fences[now->number] = {block, block_of_stores == block ? barrier_of_block : 0, stores};
}

static void barrier_passed() {   // all threads of the block are there
    if (!among_devices) return;
    block_of_stores = this_block();
    barrier_of_block = stores;
    if (acquired_since_barrier.block == block_of_stores) acquired_by_all = acquired_since_barrier;
}

// What has arrived so far is seen by what the thread loads from here on.
static void acquire_of_system() {
    if (!among_devices || !now) return;
    acquired[now->number] = acquired_since_barrier = {this_block(), arrived};
}

// What a load gives: `present`, or what the address held before.
static u64 loaded(const void* at, u64 present) {
    if (!among_devices || !now || past.empty()) return present;
    const auto found = past.find(at);
    if (found == past.end()) return present;
    Past& known = found->second;
    const u64 block = this_block();
    const Acquired& own = acquired[now->number];
    u64 seen = own.block == block ? own.arrivals : 0;
    if (acquired_by_all.block == block && acquired_by_all.arrivals > seen) seen = acquired_by_all.arrivals;
    size_t first = known.block == block ? known.passed : 0;
    while (first < known.values.size() && known.values[first].arrival <= seen) ++first;
    first += drawn_for_arrivals((unsigned)(known.values.size() - first) + 1);
    known.block = block;
    known.passed = first;
    return first < known.values.size() ? known.values[first].value : present;
}

static void arrive(size_t i) {
    const Arrival a = late[i];
    late.erase(late.begin() + (std::ptrdiff_t)i);
    u64 value = a.value, before = 0;
    if (among_devices && a.device == running) {
        memcpy(&before, a.to, (size_t)a.bytes);
        past[a.to].values.push_back({before, ++arrived});
    }
    if (a.largest && a.bytes == 8 && *(u64*)a.to > value) value = *(u64*)a.to;
    memcpy(a.to, &value, (size_t)a.bytes);
}

// All stores of earlier rounds, in their order.
static void arrive_before(u64 round) {
    for (size_t i = 0; i < late.size();)
        if (late[i].round < round) arrive(i); else ++i;
}

static bool may_arrive(const Arrival& a) {
    for (const Arrival& b : late) {
        if (b.device != a.device || b.number >= a.number) continue;
        if (b.to == a.to) return false;
        if (b.block == a.block && (b.number < a.barrier || (b.thread == a.thread && b.number < a.fence))) return false;
    }
    return true;
}

// Some of what other devices stored is seen from here on.
static void arrivals() {
    if (!among_devices || late.empty() || !every_so_often) return;
    for (size_t i = 0; i < late.size();)
        if (late[i].eager && late[i].device == running && may_arrive(late[i])) arrive(i); else ++i;
    if (drawn_for_arrivals(every_so_often)) return;
    for (unsigned tries = drawn_for_arrivals(arrivals_at_once + 1); tries && !late.empty(); --tries) {
        const size_t i = drawn_for_arrivals((unsigned)late.size());
        if (late[i].device == running && may_arrive(late[i])) arrive(i);
    }
}

}   // namespace emulated

// A device's kernel begins, of a round, and arrivals take place meanwhile; all stores of earlier rounds have arrived.
extern "C" __attribute__((visibility("default"))) void emulated_device_begins(
    const emulated::Reach* reaches, unsigned long long count, unsigned long long device, unsigned long long round,
    unsigned long long seed, unsigned at_once, unsigned seldom) {
    using namespace emulated;
    arrive_before(round);
    emulated::reaches = reaches;
    n_reaches = count;
    running = device;
    running_round = round;
    arrivals_state = seed;
    arrivals_at_once = at_once;
    every_so_often = seldom;
    ++launches_of_devices;
    past.clear();
    arrived = 0;
    among_devices = true;
}

// It ends, and with it the wait of stores of rounds before one; how many have not arrived yet.
extern "C" __attribute__((visibility("default"))) unsigned long long emulated_device_ends(unsigned long long round) {
    emulated::among_devices = false;
    emulated::arrive_before(round);
    return emulated::late.size();
}
