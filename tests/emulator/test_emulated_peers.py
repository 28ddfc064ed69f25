"""What an emulated device may see of another's stores: message passing with and without a fence and an acquire.

device 0   data = 1; flag = 1            device 1   f = flag; d = data            forbidden, if ordered: f = 1, d = 0
"""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from emulated_cuda import Module, compile_kernels
from emulated_peers import REACH

_SOURCE = """
__device__ double acquired(const double* at) {
    double x;
    __nv_atomic_load(at, &x, __NV_ATOMIC_ACQUIRE, __NV_THREAD_SCOPE_SYSTEM);
    return x;
}
extern "C" __global__ void send(double* at, int fenced) {
    __stcg(at, 1.0);
    if (fenced) __threadfence_system();
    __stcg(at + 1, 1.0);
}
// Thread 0 loads the flag, thread `reader` the data.
extern "C" __global__ void receive(const double* at, double* found, int acquires, int reader, int barrier) {
    for (int i = 0; i < 3; ++i) __syncthreads();   // where stores arrive
    if (threadIdx.x == 0) found[0] = acquires ? acquired(at + 1) : __ldcg(at + 1);
    if (barrier) __syncthreads();
    if (threadIdx.x == reader) found[1] = __ldcg(at);
}
// Both loads are of the data.
extern "C" __global__ void load_twice(const double* at, double* found) {
    for (int i = 0; i < 3; ++i) __syncthreads();
    if (threadIdx.x == 0) { found[0] = __ldcg(at); found[1] = __ldcg(at); }
}
"""
_ALL = ctypes.c_ulonglong(1 << 63)
_THREADS = 32


class Peers:
    """Two devices; what each sees of the data and the flag."""

    def __init__(self) -> None:
        self._module: Module = compile_kernels(_SOURCE, ("send", "receive", "load_twice"))
        self._views = np.zeros(2), np.zeros(2)

    def outcomes(self, name: str, *arguments: int, fenced: bool = True) -> set[tuple[float, float]]:
        """What the kernel of the second device finds, by many seeds."""
        return {self._found(seed, name, arguments, fenced) for seed in range(300)}

    def _found(self, seed: int, name: str, arguments: tuple[int, ...], fenced: bool) -> tuple[float, float]:
        sender, receiver = self._views
        sender[:] = receiver[:] = 0.0
        reach = np.array([(sender.ctypes.data, receiver.ctypes.data, sender.nbytes, 1, 0)], REACH)
        library = self._module._library
        self._begin(reach, 0, seed)
        self._module.launch("send", 1, 1, [sender, np.int32(fenced)])
        library.emulated_device_ends(ctypes.c_ulonglong(0))
        self._begin(reach[:0], 1, seed)
        found = np.full(2, -1.0)
        self._module.launch(name, 1, _THREADS, [receiver, found, *map(np.int32, arguments)], seed=seed)
        library.emulated_device_ends(_ALL)
        return float(found[0]), float(found[1])

    def _begin(self, reaches: np.ndarray, device: int, seed: int) -> None:
        counts = (reaches.size, device, 1, seed)
        self._module._library.emulated_device_begins(
            ctypes.c_void_p(reaches.ctypes.data), *map(ctypes.c_ulonglong, counts), ctypes.c_uint(2), ctypes.c_uint(1)
        )


@pytest.fixture(scope="module")
def peers() -> Peers:
    return Peers()


IN_ORDER = {(0.0, 0.0), (0.0, 1.0), (1.0, 1.0)}
"""Flag and data."""
ANY_ORDER = IN_ORDER | {(1.0, 0.0)}


def test_data_are_seen_with_the_flag_after_a_fence_and_an_acquire(peers: Peers) -> None:
    assert peers.outcomes("receive", 1, 0, 0) == IN_ORDER


def test_an_acquire_holds_for_the_threads_of_a_block_after_a_barrier(peers: Peers) -> None:
    assert peers.outcomes("receive", 1, 1, 1) == IN_ORDER


def test_old_data_may_be_loaded_without_an_acquire(peers: Peers) -> None:
    assert peers.outcomes("receive", 0, 0, 0) == ANY_ORDER
    assert peers.outcomes("receive", 0, 1, 1) == ANY_ORDER


def test_old_data_may_be_loaded_by_another_thread_than_the_one_that_acquired(peers: Peers) -> None:
    assert (1.0, 0.0) in peers.outcomes("receive", 1, 1, 0)


def test_stores_without_a_fence_arrive_in_any_order(peers: Peers) -> None:
    assert peers.outcomes("receive", 1, 0, 0, fenced=False) == ANY_ORDER


def test_loads_of_one_address_never_go_back(peers: Peers) -> None:
    assert peers.outcomes("load_twice") == {(0.0, 0.0), (0.0, 1.0), (1.0, 1.0)}
