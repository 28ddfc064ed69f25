"""Groups of devices: memory that is spread over them, and launches that meet.

Groups of two and three are emulated, and do their work in any order that their streams allow. The same tests run on as
many GPUs where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
from emulated_device import PAGE, EmulatedDevice, emulated_group

from ooc_mdp.backends.cuda.device import CudaDevice, Device, device_count
from ooc_mdp.backends.cuda.group import DeviceGroup, Meet, Piece
from ooc_mdp.errors import OptionsError

_SOURCE = """
// Element i of `to` becomes `by` more than the sum of two elements of `from`: its own and the last but i.
extern "C" __global__ void fold(double* to, const double* from, int begin, int end, int n, double by) {
    for (int i = begin + blockIdx.x * blockDim.x + threadIdx.x; i < end; i += gridDim.x * blockDim.x)
        to[i] = from[i] + from[n - 1 - i] + by;
}
"""
MakeGroup = Callable[..., DeviceGroup]


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def make_group(request: pytest.FixtureRequest) -> Iterator[MakeGroup]:
    """Makes a group of so many devices; of emulated ones with a seed."""
    made: list[DeviceGroup] = []

    def make(count: int, seed: int = 0) -> DeviceGroup:
        devices: Sequence[Device]
        if request.param == "emulated":
            devices = emulated_group(count, seed)
        elif device_count() < count:
            pytest.skip(f"there are {device_count()} GPUs, {count} are needed")
        else:
            devices = [CudaDevice(number) for number in range(count)]
        made.append(DeviceGroup(devices))
        return made[-1]

    yield make
    for group in made:
        group.free_all()


class Vectors:
    """Two spread vectors, and launches over the parts of each device."""

    def __init__(self, group: DeviceGroup, n: int) -> None:
        self.group, self.n = group, n
        self.streams = group.streams()
        self.parts = group.parts_of([8 * n * (member + 1) // len(group) for member in range(len(group))])
        self.at = [group.allocate_spread(self.parts) for _ in range(2)]
        ends = np.minimum(np.cumsum(self.parts) // 8, n).tolist()
        self.ranges = list(zip([0, *ends], ends, strict=False))
        self._kernels = [device.compile(_SOURCE, {}, ["fold"])["fold"] for device in group.devices]

    def put(self, values: np.ndarray) -> None:
        for piece in self.group.pieces(self.at[0], values.nbytes):
            begin = (piece.at - self.at[0]) // 8
            self.streams[piece.member].upload(piece.at, values[begin : begin + piece.nbytes // 8])
            self.streams[piece.member].wait()

    def get(self, which: int = 0) -> np.ndarray:
        values = np.empty(self.n)
        for piece in self.group.pieces(self.at[which], values.nbytes):
            begin = (piece.at - self.at[which]) // 8
            self.streams[piece.member].download(values[begin : begin + piece.nbytes // 8], piece.at)
            self.streams[piece.member].wait()
        return values

    def fold(self, source: int, by: float) -> None:
        """A step of all devices, each on its own part."""
        to, what = self.at[1 - source], self.at[source]
        for (begin, end), stream, kernel in zip(self.ranges, self.streams, self._kernels, strict=True):
            place = np.int32(begin), np.int32(end), np.int32(self.n)
            kernel(stream, 2, 64, (np.uint64(to), np.uint64(what), *place, np.float64(by)))


def folded(values: np.ndarray, steps: int) -> np.ndarray:
    for by in range(steps):
        values = values + values[::-1] + by
    return values


@pytest.mark.parametrize("count", [1, 2, 3])
def test_kernels_of_every_device_read_and_write_all_of_spread_memory(count: int, make_group: MakeGroup) -> None:
    group = make_group(count)
    vectors = Vectors(group, 8 * group.page + 5)
    values = np.arange(vectors.n, dtype=float)
    vectors.put(values)
    assert (vectors.get() == values).all()
    vectors.fold(0, 0.0)
    group.meet(vectors.streams)
    vectors.streams[0].wait()
    assert (vectors.get(1) == folded(values, 1)).all()


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_a_graph_repeats_its_launches_and_devices_meet_in_it(count: int, seed: int, make_group: MakeGroup) -> None:
    group = make_group(count, seed)
    vectors = Vectors(group, 6 * group.page + 3)

    def launches(meet: Meet) -> None:
        for step in range(4):
            vectors.fold(step % 2, float(step))
            meet()

    repeat = group.graph(vectors.streams, launches)
    values = np.arange(vectors.n, dtype=float)
    for _ in range(3):
        vectors.put(values)
        repeat()
        vectors.streams[-1].wait()
        values = folded(values, 4)
        assert (vectors.get() == values).all()


def test_two_repetitions_of_a_graph_follow_each_other(make_group: MakeGroup) -> None:
    group = make_group(2, 1)
    vectors = Vectors(group, 4 * group.page)

    def launches(meet: Meet) -> None:
        for step in range(2):
            vectors.fold(step % 2, float(step))
            meet()

    repeat = group.graph(vectors.streams, launches)
    values = np.arange(vectors.n, dtype=float)
    vectors.put(values)
    repeat()
    repeat()
    vectors.streams[1].wait()
    assert (vectors.get() == folded(folded(values, 2), 2)).all()


@pytest.mark.parametrize("recorded", [True, False])
def test_devices_that_do_not_meet_are_found_out_by_some_order(recorded: bool) -> None:
    wrong = 0
    for seed in range(10):
        group = DeviceGroup(emulated_group(2, seed))
        vectors = Vectors(group, 4 * PAGE)
        values = np.arange(vectors.n, dtype=float)
        vectors.put(values)

        def launches(meet: Meet, vectors: Vectors = vectors) -> None:
            vectors.fold(0, 0.0)
            vectors.fold(1, 1.0)

        if recorded:
            group.graph(vectors.streams, launches)()
        else:
            launches(lambda: None)
        for stream in vectors.streams:
            stream.wait()
        wrong += not (vectors.get() == folded(values, 2)).all()
    assert 0 < wrong < 10


def test_a_stream_that_a_graph_does_not_wait_for_is_an_error() -> None:
    devices = emulated_group(2)
    first, second = (device.stream() for device in devices)

    def launches() -> None:
        second.wait_for(first)
        second.clear(0, 0)

    with pytest.raises(AssertionError, match="does not wait for"):
        devices[0].graph(first, launches)


def test_a_host_that_reads_too_early_finds_what_was_there() -> None:
    (device,) = emulated_group(1)
    stream, at = device.stream(), device.allocate(8)
    stream.upload(at, np.array([3.0]))
    found = np.zeros(1)
    stream.download(found, at)
    assert found[0] == 0
    stream.wait()
    assert found[0] == 3


@pytest.mark.parametrize(
    ("count", "cuts", "parts"),
    [
        (1, [700], [700]),
        (2, [3 * PAGE, 6 * PAGE], [3 * PAGE, 3 * PAGE]),
        (2, [3 * PAGE + 20, 6 * PAGE + 1], [3 * PAGE, 4 * PAGE]),
        (2, [4 * PAGE - 20, 6 * PAGE], [4 * PAGE, 2 * PAGE]),
        (3, [10, 20, 30], [0, 0, PAGE]),
        (3, [0, 0, 0], [0, 0, 0]),
        (3, [PAGE, PAGE, PAGE], [PAGE, 0, 0]),
        (3, [PAGE // 2, 2 * PAGE - 1, 2 * PAGE - 1], [PAGE, PAGE, 0]),
    ],
)
def test_parts_are_whole_pages_and_cut_near_where_they_should(count: int, cuts: list[int], parts: list[int]) -> None:
    group = DeviceGroup(emulated_group(count))
    assert group.parts_of(cuts) == parts
    at = group.allocate_spread(parts)
    assert sum(piece.nbytes for piece in group.pieces(at, sum(parts))) == sum(parts) >= cuts[-1]
    group.free(at)


def assert_taken(group: DeviceGroup, before: tuple[int, ...], nbytes: list[int]) -> None:
    """So much is taken of each emulated device; a real one is also used by its driver and by other processes."""
    if isinstance(group.devices[0], EmulatedDevice):
        assert [b - a for a, b in zip(group.memory_free(), before, strict=True)] == nbytes


def test_the_parts_of_a_range_are_accounted_to_their_devices_and_freed(make_group: MakeGroup) -> None:
    group = make_group(2)
    page, before = group.page, group.memory_free()
    at = group.allocate_spread([30 * page, 10 * page])
    assert group.pieces(at + page, 30 * page) == [Piece(0, at + page, 29 * page), Piece(1, at + 30 * page, page)]
    assert group.pieces(at + 8, 8) == [Piece(0, at + 8, 8)]
    assert_taken(group, before, [30 * page, 10 * page])
    replicas = group.allocate_each(page)
    assert len(replicas) == 2
    group.free_each(replicas)
    during = group.memory_free()
    group.free(at)
    assert_taken(group, during, [-30 * page, -10 * page])


def test_arrays_are_cut_each_at_its_own_bytes_and_freed_together(make_group: MakeGroup) -> None:
    group = make_group(2)
    page, before = group.page, group.memory_free()
    at = group.allocate_arrays({"a": (4 * page, 6 * page), "b": (8, 24), "c": (0, 0)})
    assert [piece.nbytes for piece in group.pieces(at["a"], 6 * page)] == [4 * page, 2 * page]
    assert group.pieces(at["b"], 24) == [Piece(1, at["b"], 24)]
    assert group.pieces(at["c"], 0) == []
    assert_taken(group, before, [4 * page, 3 * page])
    during = group.memory_free()
    group.free_arrays(at)
    assert_taken(group, during, [-4 * page, -3 * page])


def test_arrays_of_one_device_are_in_one_allocation_and_aligned() -> None:
    group = DeviceGroup(emulated_group(1))
    before = group.memory_free()
    at = group.allocate_arrays({"a": (300,), "b": (8,), "c": (0,)})
    assert [at[name] - at["a"] for name in "abc"] == [0, 512, 768]
    group.free_arrays(at)
    assert group.memory_free() == before


def test_no_array_stays_where_the_last_finds_no_room() -> None:
    group = DeviceGroup(emulated_group(2, memory=4 * PAGE))
    with pytest.raises(MemoryError, match="emulated:1 has 512 bytes free, 768 are needed there"):
        group.allocate_arrays({"a": (2 * PAGE, 4 * PAGE), "b": (PAGE, 4 * PAGE)})
    assert group.memory_free() == (4 * PAGE, 4 * PAGE)


@pytest.mark.parametrize("count", [1, 3])
def test_memory_is_copied_and_cleared_whatever_its_parts(count: int, make_group: MakeGroup) -> None:
    group = make_group(count)
    size = 6 * group.page if count > 1 else 48
    parts = [[size // 6, size // 3, size // 2], [size // 2, 0, size // 2]] if count > 1 else [[size], [size]]
    source, to = (group.allocate_spread(part) for part in parts)
    streams = group.streams()
    numbers = np.arange(size // 8, dtype=float)
    for piece in group.pieces(source, size):
        begin = (piece.at - source) // 8
        streams[0].upload(piece.at, numbers[begin : begin + piece.nbytes // 8])
    group.meet(streams)
    group.clear(streams, to, size)
    group.copy(streams, to + 8, source + 16, size - 24)
    group.meet(streams)
    found = np.empty_like(numbers)
    for piece in group.pieces(to, size):
        begin = (piece.at - to) // 8
        streams[0].download(found[begin : begin + piece.nbytes // 8], piece.at)
    streams[0].wait()
    assert found.tolist() == [0.0, *numbers[2:-1], 0.0, 0.0]


def test_one_device_has_plain_memory_and_no_pages() -> None:
    (device,) = emulated_group(1)
    group = DeviceGroup([device])
    at = group.allocate_spread([1000])
    assert group.page == 1
    assert device.memory(at, 1000).size == 1000
    assert group.pieces(at + 5, 7) == [Piece(0, at + 5, 7)]
    assert (group.name, len(group)) == (device.name, 1)
    group.free(at)
    assert group.memory_free() == (device.memory_free(),)


@pytest.mark.parametrize("parts", [[PAGE + 1, PAGE], [PAGE], [PAGE, PAGE, PAGE]])
def test_parts_that_are_no_pages_of_each_device_are_refused(parts: list[int]) -> None:
    with pytest.raises(ValueError, match="parts of whole pages of 256 bytes"):
        DeviceGroup(emulated_group(2)).allocate_spread(parts)


def test_memory_that_is_not_spread_has_no_pieces() -> None:
    group = DeviceGroup(emulated_group(2))
    at = group.allocate_spread([PAGE, PAGE])
    for outside in (at - 8, at + 2 * PAGE):
        with pytest.raises(ValueError, match="no spread memory"):
            group.pieces(outside, 16)
    with pytest.raises(ValueError, match="no spread memory"):
        group.pieces(at, 2 * PAGE + 1)


def test_a_device_without_so_much_memory_is_named_and_nothing_stays() -> None:
    devices = [*emulated_group(2), EmulatedDevice(4 * PAGE, 2)]
    group = DeviceGroup(devices)
    before = group.memory_free()
    with pytest.raises(MemoryError, match="emulated:2 has 1024 bytes free, 1280 are needed there"):
        group.allocate_spread([PAGE, PAGE, 5 * PAGE])
    with pytest.raises(MemoryError):
        group.allocate_each(5 * PAGE)
    assert group.memory_free() == before
    group.free(group.allocate_spread([PAGE, PAGE, 4 * PAGE]))
    assert group.memory_free() == before


def test_a_range_that_cannot_be_opened_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    group = DeviceGroup(emulated_group(2))
    before = group.memory_free()

    def refuse(at: int, nbytes: int) -> None:
        raise RuntimeError("cuMemSetAccess failed")

    monkeypatch.setattr(group._pages, "open", refuse)
    with pytest.raises(RuntimeError, match="cuMemSetAccess"):
        group.allocate_spread([PAGE, PAGE])
    assert group.memory_free() == before
    assert not group._spread


def test_devices_that_do_not_reach_each_other_are_refused() -> None:
    devices = emulated_group(3)
    devices[1].linked = False
    with pytest.raises(OptionsError, match=r"emulated:0 cannot read the memory of emulated:1.*each a Dask worker"):
        DeviceGroup(devices)
    DeviceGroup([devices[1]])
