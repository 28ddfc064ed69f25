"""What engines ask of a device: memory, streams, compiled kernels, graphs. CuPy behind one small protocol.

Addresses are plain numbers, so that they can also run on a CUDA emulator in tests. Nothing here knows states,
partitions or tables.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.compiling import compiling_kernels
from ooc_mdp.backends.cuda.driver import Arguments, CudaDriver, address_of, cuda_library
from ooc_mdp.backends.cuda.virtual_memory import VirtualMemory
from ooc_mdp.errors import MissingExtraError, OptionsError

__all__ = ["Argument", "CudaDevice", "Device", "Kernel", "SharedPages", "Stream", "cupy_for", "device_count"]

Bytes = npt.NDArray[np.uint8]
Argument = np.generic | npt.NDArray[Any]
"""A NumPy scalar (an address is a uint64), or a structure: an array without axes."""
_BULK_COPIES = 90
"""Compute capability, ten times it, from which blocks have a bulk copy engine."""
_ALREADY_ENABLED = 704
"""cudaErrorPeerAccessAlreadyEnabled."""
_URGENT = -5
"""Priority of an urgent stream, the highest that there is; the driver takes the nearest that a device has."""


def device_count() -> int:
    """CUDA devices that CuPy can use; 0 without CuPy or driver."""
    try:
        import cupy
    except ImportError:
        return 0
    try:
        return int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError:
        return 0


def cupy_for(device: int) -> Any:
    """The cupy module, where it is installed and finds that device.

    Raises
    ------
    MissingExtraError : CuPy is not installed.
    OptionsError : there is no such device.
    """
    try:
        import cupy
    except ImportError:
        raise MissingExtraError("cupy", "cuda13", f"the device cuda:{device}") from None
    count = device_count()
    if device >= count:
        raise OptionsError(f"there is no device cuda:{device}: CuPy finds {count} CUDA devices")
    return cupy


class Mark(Protocol):
    """A place in a stream's work."""

    def done(self) -> bool:
        """Whether everything before it is done."""
        ...

    def wait(self) -> None:
        """Wait until it is; other threads of the interpreter run meanwhile."""
        ...


class Stream(Protocol):
    """Work in order; streams overlap each other."""

    def upload(self, to: int, data: npt.NDArray[Any]) -> None:
        """Copy an array from (pinned) host memory; it must stay as it is until then."""
        ...

    def download(self, data: npt.NDArray[Any], source: int) -> None:
        """Copy to (pinned) host memory."""
        ...

    def copy(self, to: int, source: int, nbytes: int) -> None:
        """Copy on the device."""
        ...

    def clear(self, at: int, nbytes: int) -> None:
        """Fill with zero bytes."""
        ...

    def mark(self) -> Mark:
        """This place in its work, to be asked about later."""
        ...

    def follow(self) -> None:
        """Let what comes next wait for what this thread launched on its current stream of CuPy's."""
        ...

    def wait_for(self, other: Any) -> None:
        """Let what comes next wait for everything so far on another stream, of this or another device."""
        ...

    def wait(self) -> None:
        """Wait until everything so far is done; other threads of the interpreter run meanwhile."""
        ...


class Kernel(Protocol):
    """A compiled kernel."""

    def __call__(self, stream: Any, grid: int, block: int, args: Sequence[Argument], shared: int = 0) -> None:
        """Launch it; arguments go by value. The same sequence again means the same arguments, and `Arguments`, which
        are quickest, those that are in them then."""
        ...

    def blocks_at_once(self, block: int, shared: int) -> int:
        """Blocks that the device runs at the same time, at least 1."""
        ...

    def prefer_shared_memory(self) -> None:
        """Give as much of the first-level cache as possible to shared memory, so that more blocks fit."""
        ...


class SharedPages(Protocol):
    """Memory of several devices in one range of addresses, piece by piece."""

    page: int
    """Bytes of whose multiples pieces consist."""

    def reserve(self, nbytes: int) -> int:
        """First of so many addresses without memory. Raises MemoryError."""
        ...

    def place(self, at: int, nbytes: int, member: int) -> None:
        """Put new memory of a device, the member-th, at reserved addresses. Raises MemoryError."""
        ...

    def open(self, at: int, nbytes: int) -> None:
        """All of the devices may read and write there."""
        ...

    def remove(self, at: int, nbytes: int) -> None:
        """Free the memory of a piece; nothing that uses it may be under way."""
        ...

    def release(self, at: int, nbytes: int) -> None:
        """Give reserved addresses back."""
        ...


class Device(Protocol):
    """One device."""

    name: str
    multiprocessors: int
    staging_shared: int
    """Bytes of shared memory of a multiprocessor whose blocks can have them filled by bulk copies, or 0."""

    def allocate(self, nbytes: int) -> int:
        """Address of new memory; `free` and `free_all` free it. Raises MemoryError."""
        ...

    def free(self, at: int) -> None:
        """Free what was allocated at an address; nothing that uses it may be under way."""
        ...

    def pinned(self, nbytes: int) -> Bytes:
        """Page-locked host memory that kernels can read, freed with the array. Raises MemoryError."""
        ...

    def memory_free(self) -> int:
        """Bytes that could be allocated."""
        ...

    def stream(self, urgent: bool = False) -> Stream:
        """A new stream; blocks of an urgent one's kernels begin before those of others that wait."""
        ...

    def compile(
        self, source: str, defines: Mapping[str, str | int], names: Sequence[str], *, fused: bool = True
    ) -> dict[str, Kernel]:
        """Kernels of a CUDA source; `fused`: a product may be added without being rounded first."""
        ...

    def graph(self, stream: Stream, launches: Callable[[], None]) -> Callable[[], None]:
        """Record launches on a stream, to be repeated at the cost of one."""
        ...

    def reaches(self, other: Any) -> bool:
        """Whether kernels here can read and write what is allocated on another device; from then on they may."""
        ...

    def shared_pages(self, devices: Sequence[Any]) -> SharedPages:
        """Of this device and others, which reach each other."""
        ...

    def free_all(self) -> None:
        """Free what was allocated."""
        ...


class _CudaStream:
    def __init__(self, cupy: Any, device: int, driver: CudaDriver, urgent: bool) -> None:
        self._cupy = cupy
        with cupy.cuda.Device(device):
            self.stream = cupy.cuda.Stream(non_blocking=True, priority=_URGENT if urgent else 0)
        self._number = int(self.stream.ptr)
        self._driver = driver
        self._args: Sequence[Argument] = ()
        self._packed = Arguments(())
        self._event: Any = None

    def upload(self, to: int, data: npt.NDArray[Any]) -> None:
        self._driver.copy(to, address_of(data), data.nbytes, self._number)

    def download(self, data: npt.NDArray[Any], source: int) -> None:
        self._driver.copy(address_of(data), source, data.nbytes, self._number)

    def copy(self, to: int, source: int, nbytes: int) -> None:
        self._driver.copy(to, source, nbytes, self._number)

    def clear(self, at: int, nbytes: int) -> None:
        self._driver.clear(at, nbytes, self._number)

    def launch(self, kernel: int, grid: int, block: int, shared: int, args: Sequence[Argument]) -> None:
        if args is not self._args:  # kernels that follow each other may share theirs
            self._args, self._packed = args, args if isinstance(args, Arguments) else Arguments(args)
        self._driver.launch(kernel, grid, block, shared, self._number, self._packed)

    def mark(self) -> Mark:
        self._driver.enter()
        event = self._cupy.cuda.Event(disable_timing=True)
        event.record(self.stream)
        return _CudaMark(event)

    def wait_for(self, other: _CudaStream) -> None:
        event = other.recorded()
        self._driver.enter()
        self.stream.wait_event(event)

    def recorded(self) -> Any:
        """An event after everything so far, until this is asked for the next time."""
        self._driver.enter()
        if self._event is None:
            self._event = self._cupy.cuda.Event(disable_timing=True)
        self._event.record(self.stream)
        return self._event

    def follow(self) -> None:
        # Waiting for the whole device would break off a recording of launches that another thread has begun.
        event = self._cupy.cuda.Event(disable_timing=True)
        event.record(self._cupy.cuda.get_current_stream())
        self.stream.wait_event(event)

    def wait(self) -> None:
        self.stream.synchronize()


class _CudaMark:
    def __init__(self, event: Any) -> None:
        self._event = event

    def done(self) -> bool:
        return bool(self._event.done)

    def wait(self) -> None:
        self._event.synchronize()


class _CudaKernel:
    def __init__(self, cupy: Any, device: int, function: Any) -> None:
        self._cupy = cupy
        self._device = device
        self._function = function
        self._number = int(function.kernel.ptr)
        self._shared = int(function.max_dynamic_shared_size_bytes)

    def __call__(self, stream: _CudaStream, grid: int, block: int, args: Sequence[Argument], shared: int = 0) -> None:
        self._allow(shared)
        stream.launch(self._number, grid, block, shared, args)

    def _allow(self, shared: int) -> None:
        if shared > self._shared:
            with self._cupy.cuda.Device(self._device):
                self._function.max_dynamic_shared_size_bytes = shared
            self._shared = shared

    def blocks_at_once(self, block: int, shared: int) -> int:
        self._allow(shared)
        with self._cupy.cuda.Device(self._device):
            multiprocessors = self._cupy.cuda.Device(self._device).attributes["MultiProcessorCount"]
            count = self._cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(self._number, block, shared)
        return max(1, int(count)) * int(multiprocessors)

    def prefer_shared_memory(self) -> None:
        with self._cupy.cuda.Device(self._device):
            self._function.preferred_shared_memory_carveout = 100


class CudaDevice:
    """A CUDA device through CuPy.

    Raises
    ------
    MissingExtraError : CuPy is not installed.
    OptionsError : there is no such device.
    """

    def __init__(self, number: int) -> None:
        self._cupy = cupy_for(number)
        self._number = number
        self.name = f"cuda:{number}"
        device = self._cupy.cuda.Device(number)
        facts = device.attributes
        self.multiprocessors = int(facts["MultiProcessorCount"])
        copies = int(device.compute_capability) >= _BULK_COPIES
        self.staging_shared = int(facts["MaxSharedMemoryPerMultiprocessor"]) if copies else 0
        self._memory: dict[int, Any] = {}
        with self._cupy.cuda.Device(number):
            self._cupy.cuda.runtime.memGetInfo()  # the context is there from now on
            self._driver = CudaDriver(cuda_library())

    def allocate(self, nbytes: int) -> int:
        """One cudaMalloc."""
        with self._cupy.cuda.Device(self._number):
            try:
                memory = self._cupy.cuda.Memory(max(nbytes, 1))
            except self._cupy.cuda.runtime.CUDARuntimeError as error:
                raise MemoryError(str(error)) from error
        self._memory[int(memory.ptr)] = memory
        return int(memory.ptr)

    def free(self, at: int) -> None:
        """One cudaFree, which waits for the device."""
        with self._cupy.cuda.Device(self._number):
            del self._memory[at]

    def pinned(self, nbytes: int) -> Bytes:
        """One cudaHostAlloc: with unified addresses, kernels read it where the host does."""
        with self._cupy.cuda.Device(self._number):
            try:
                memory = self._cupy.cuda.PinnedMemoryPointer(self._cupy.cuda.PinnedMemory(max(nbytes, 1)), 0)
            except self._cupy.cuda.runtime.CUDARuntimeError as error:
                raise MemoryError(str(error)) from error
        return np.frombuffer(memory, np.uint8, nbytes)

    def memory_free(self) -> int:
        """As the driver says; blocks that CuPy keeps for itself are given back first."""
        with self._cupy.cuda.Device(self._number):
            self._cupy.get_default_memory_pool().free_all_blocks()
            return int(self._cupy.cuda.runtime.memGetInfo()[0])

    def stream(self, urgent: bool = False) -> _CudaStream:
        """A stream that does not wait for the default one."""
        return _CudaStream(self._cupy, self._number, self._driver, urgent)

    def compile(
        self, source: str, defines: Mapping[str, str | int], names: Sequence[str], *, fused: bool = True
    ) -> dict[str, Kernel]:
        """Compiled with NVRTC; CuPy keeps what it compiled on disk."""
        options = ("--std=c++17",) if fused else ("--std=c++17", "--fmad=false")
        prelude = "".join(f"#define {name} {value}\n" for name, value in defines.items())
        with self._cupy.cuda.Device(self._number), compiling_kernels():
            module = self._cupy.RawModule(code=prelude + source, options=options)
            return {name: _CudaKernel(self._cupy, self._number, module.get_function(name)) for name in names}

    def graph(self, stream: Any, launches: Callable[[], None]) -> Callable[[], None]:
        """A CUDA graph, captured from the launches, which may be on streams of other devices that wait for this one."""
        self._driver.enter()
        stream.stream.begin_capture()
        try:
            launches()
        finally:
            self._driver.enter()
            graph = stream.stream.end_capture()

        def launch() -> None:
            self._driver.enter()
            graph.launch(stream.stream)

        return launch

    def reaches(self, other: CudaDevice) -> bool:
        """By peer access, over NVLink or PCI Express."""
        runtime = self._cupy.cuda.runtime
        if not runtime.deviceCanAccessPeer(self._number, other._number):
            return False
        with self._cupy.cuda.Device(self._number):
            try:
                runtime.deviceEnablePeerAccess(other._number)
            except runtime.CUDARuntimeError as error:
                if error.status != _ALREADY_ENABLED:
                    raise
        return True

    def shared_pages(self, devices: Sequence[CudaDevice]) -> VirtualMemory:
        """Through the driver's virtual memory."""
        library, numbers = ctypes.CDLL(cuda_library()._name), [device._number for device in devices]
        return VirtualMemory(library, numbers, lambda: self._cupy.cuda.Device(self._number))

    def free_all(self) -> None:
        """Drop every allocation."""
        self._memory = {}
        self._driver.leave()
