"""Choose which states share a partition: ranges, grid blocks or METIS. Planning only: nothing is read or written.

ranges  consecutive states, up to a target of bytes
grid    blocks as near to cubes as the shape allows, which have few neighbours
metis   a partition of the state graph with little weight across; the whole graph is held in memory
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import product

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import OptionsError
from ooc_mdp.io.conversion.compiled_grid import CompiledGridOrder
from ooc_mdp.model.mdp import IntArray
from ooc_mdp.model.metis import partition_graph, require_metis
from ooc_mdp.model.state_order import GridOrder, IdentityOrder, PermutedOrder

__all__ = [
    "balanced_ranges",
    "block_shape_for",
    "blocks_for",
    "check_count",
    "default_partition_bytes",
    "equal_edges",
    "even_ranges",
    "grid_order",
    "metis_order",
    "ranges_by_size",
    "split_evenly",
]

_LARGEST_DEFAULT = 64 << 20
_SMALLEST_DEFAULT = 64 << 10
_DEFAULT_SHARE = 256
_FEW_BLOCKS = 5
"""Number of blocks along an axis up to which one more would make partitions much smaller."""


def default_partition_bytes(table_bytes: int) -> int:
    """Decoded bytes of a partition by default: 1/256 of the table, from 64 KiB to 64 MiB."""
    return min(_LARGEST_DEFAULT, max(_SMALLEST_DEFAULT, table_bytes // _DEFAULT_SHARE))


def check_count(partitions: int, n_states: int) -> None:
    """Raise OptionsError for more partitions than states."""
    if partitions > n_states:
        raise OptionsError(f"{partitions} partitions for {n_states} states; give at most {n_states}")


def split_evenly(total: int, parts: int) -> IntArray:
    """int64 [parts+1]; i * total // parts for each i, without the product, which may not fit into 64 bits."""
    quotient, rest = divmod(total, parts)
    i = np.arange(parts + 1, dtype=np.int64)
    return i * quotient + i * rest // parts


def even_ranges(n_states: int, partitions: int) -> IdentityOrder:
    """Ranges of as equal numbers of states as possible."""
    check_count(partitions, n_states)
    return IdentityOrder(split_evenly(n_states, partitions))


def balanced_ranges(state_bytes: Iterable[IntArray], total: int, n_states: int, partitions: int) -> IdentityOrder:
    """Ranges of as equal bytes as whole states allow, at least one state each.

    Parameters
    ----------
    state_bytes : decoded bytes of each state, in pieces, in order; `total` in all, of `n_states` states.
    """
    check_count(partitions, n_states)
    shares = split_evenly(total, partitions)[1:-1]
    cuts = np.full(partitions + 1, n_states, np.int64)
    cuts[0] = 0
    first, held = 0, 0
    for piece in state_bytes:
        sums = held + np.cumsum(piece)
        low, high = np.searchsorted(shares, [held, sums[-1]], side="right")
        # The edge goes to the nearer end of the state in which the share is reached.
        inside = np.searchsorted(sums, shares[low:high])
        begin = sums[inside] - piece[inside]
        late = shares[low:high] - begin > sums[inside] - shares[low:high]
        cuts[1 + low : 1 + high] = first + inside + late
        first, held = first + piece.size, int(sums[-1])
    index = np.arange(partitions + 1)
    cuts = np.maximum.accumulate(cuts - index) + index  # at least one state each
    return IdentityOrder(np.minimum(cuts, n_states - index[::-1]))


def ranges_by_size(state_bytes: Iterable[IntArray], target: int) -> IdentityOrder:
    """Ranges of at most `target` bytes; a larger state has a range of its own.

    Parameters
    ----------
    state_bytes : decoded bytes of each state, in pieces, in order.
    """
    cuts = [0]
    first, held = 0, 0  # the open range began before this piece and holds so many bytes
    for piece in state_bytes:
        total = np.concatenate([[0], np.cumsum(piece)])
        begin, base = 0, -held
        while True:
            # the first state that no longer fits: total[i + 1] - base > target
            i = int(np.searchsorted(total[begin + 1 :], base + target, side="right")) + begin
            if i >= piece.size:
                break
            if first + i > cuts[-1]:
                cuts.append(first + i)
                begin, base = i, int(total[i])
            else:
                # a single state above the target: it ends its own range
                begin, base = i + 1, int(total[i + 1])
                cuts.append(first + i + 1)
        held = int(total[-1]) - base
        first += piece.size
    if cuts[-1] != first:
        cuts.append(first)
    return IdentityOrder(np.array(cuts, np.int64))


def grid_order(
    shape: Sequence[int],
    block_shape: Sequence[int] | None,
    partitions: int | None,
    block_states: int,
    blocks: Sequence[int] | None = None,
    at_most: bool = True,
) -> GridOrder:
    """Blocks of a given shape, or a number of blocks (along each axis or in all), or blocks of so many states.

    Parameters
    ----------
    block_states : where nothing else is given; exceeded by no block if `at_most`, else met as nearly as blocks of equal
        sizes allow: of a grid of four axes, blocks that must not be larger may be half as large.

    Raises
    ------
    OptionsError : the shape cannot be divided in this way.
    """
    if blocks is not None:
        if len(blocks) != len(shape) or any(b > n for b, n in zip(blocks, shape, strict=True)):
            raise OptionsError(
                f"a grid of shape {tuple(shape)} cannot be cut into {tuple(blocks)} blocks; give a number for each "
                f"axis, none above its number of points"
            )
        return CompiledGridOrder(shape, [equal_edges(n, b) for n, b in zip(shape, blocks, strict=True)])
    if block_shape is not None:
        if len(block_shape) != len(shape):
            raise OptionsError(f"a block of shape {tuple(block_shape)} does not fit a grid of shape {tuple(shape)}")
        edges = [[*range(0, n, b), n] for n, b in zip(shape, block_shape, strict=True)]
        return CompiledGridOrder(shape, edges)
    if partitions is not None:
        check_count(partitions, math.prod(shape))
        counts = blocks_for(tuple(shape), partitions)
    else:
        found = _counts_at_most(shape, block_states) if at_most else _counts_near(shape, block_states)
        counts = tuple(_avoid_central_edge(blocks, n) for blocks, n in zip(found, shape, strict=True))
    return CompiledGridOrder(shape, [equal_edges(n, b) for n, b in zip(shape, counts, strict=True)])


def _counts_at_most(shape: Sequence[int], states: int) -> tuple[int, ...]:
    """Numbers of blocks along each axis, near-cubic, by which no block has more states."""
    return tuple(-(-n // b) for n, b in zip(shape, block_shape_for(tuple(shape), states), strict=True))


def _counts_near(shape: Sequence[int], states: int) -> tuple[int, ...]:
    """Numbers of blocks along each axis, near-cubic, by which blocks have nearly so many states."""
    block, wanted = block_shape_for(tuple(shape), states), math.prod(shape) / states
    choices = [sorted({max(1, n // (b + 1)), max(1, n // b), -(-n // b)}) for n, b in zip(shape, block, strict=True)]

    def distance(counts: tuple[int, ...]) -> tuple[float, float]:
        surface = sum(count / n for count, n in zip(counts, shape, strict=True))
        return abs(math.log(math.prod(counts) / wanted)), surface

    return min(product(*choices), key=distance)


def _avoid_central_edge(blocks: int, points: int) -> int:
    """The number of blocks along an axis, plus one where it is even and large.

    Symmetrical problems have their equilibrium in the centre of the grid, such as a pendulum's upright position. Where
    the policy keeps a process there, partitions whose common edge is in the centre converge together, and slowly
    (docs/theory/scheduling.md).
    """
    return blocks + 1 if _FEW_BLOCKS < blocks < points and blocks % 2 == 0 else blocks


def equal_edges(n: int, blocks: int) -> list[int]:
    """Edges of `blocks` blocks of as equal length as possible on an axis of n points."""
    return [i * n // blocks for i in range(blocks + 1)]


def block_shape_for(shape: tuple[int, ...], states: int) -> tuple[int, ...]:
    """Largest near-cubic block of at most `states` states (at least one)."""
    block = [1] * len(shape)
    growing = set(range(len(shape)))
    # Lengthen the shortest axis while the block stays within the target; steps grow with the axis.
    while growing:
        axis = min(growing, key=lambda i: (block[i], i))
        others = math.prod(block) // block[axis]
        longest = min(shape[axis], states // others)
        if longest <= block[axis]:
            growing.remove(axis)
        else:
            rivals = [block[i] for i in growing if i != axis]
            catch_up = max(min(rivals) + 1 if rivals else longest, block[axis] + 1)
            block[axis] = min(longest, catch_up)
    return tuple(block)


def blocks_for(shape: tuple[int, ...], partitions: int) -> tuple[int, ...]:
    """Numbers of blocks along each axis whose product is `partitions`, with as little surface as possible."""
    best: tuple[float, tuple[int, ...]] | None = None
    for blocks in _factorisations(shape, partitions):
        surface = sum(b / n for b, n in zip(blocks, shape, strict=True))
        if best is None or (surface, blocks) < best:
            best = surface, blocks
    if best is None:
        nearest = _nearest_count(shape, partitions)
        raise OptionsError(
            f"a grid of shape {shape} cannot be cut into {partitions} blocks; {nearest} is the nearest number"
        )
    return best[1]


def metis_order(
    edges: Callable[[], Iterator[tuple[IntArray, IntArray]]],
    state_bytes: npt.NDArray[np.int64],
    partitions: int,
) -> PermutedOrder:
    """Partitions of about equal bytes with few transitions between them.

    Holds the state graph in memory: up to 90 bytes for each pair of connected states while it is made.

    Parameters
    ----------
    edges : gives (from, to) states, in pieces.
    state_bytes : int64 [n]; decoded bytes of each state.
    partitions : number of partitions; METIS may leave some empty, which are dropped.
    """
    require_metis("The partitioner metis")  # before the graph is read, which may take long
    n = state_bytes.size
    check_count(partitions, n)
    if partitions == 1:
        return PermutedOrder(np.zeros(n, np.int64))
    ptr, neighbours = _undirected(edges(), n)
    return PermutedOrder(partition_graph(ptr, neighbours, partitions, state_bytes))


def _undirected(pieces: Iterator[tuple[IntArray, IntArray]], n: int) -> tuple[IntArray, IntArray]:
    """CSR of the undirected graph without loops and repeated edges."""
    keys = np.empty(0, np.int64)
    for source, target in pieces:
        low, high = np.minimum(source, target), np.maximum(source, target)
        apart = low != high
        keys = np.union1d(keys, low[apart] * n + high[apart])
    low, high = np.divmod(keys, n)
    source = np.concatenate([low, high])
    order = np.argsort(source, kind="stable")
    ptr = np.concatenate([[0], np.cumsum(np.bincount(source, minlength=n))])
    return ptr, np.concatenate([high, low])[order]


@cache
def _divisors(n: int) -> tuple[int, ...]:
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return tuple(sorted({*small, *(n // d for d in small)}))


def _factorisations(shape: tuple[int, ...], n: int) -> Iterator[tuple[int, ...]]:
    if len(shape) == 1:
        if n <= shape[0]:
            yield (n,)
        return
    for d in _divisors(n):
        if d <= shape[0]:
            for rest in _factorisations(shape[1:], n // d):
                yield (d, *rest)


def _nearest_count(shape: tuple[int, ...], n: int) -> int:
    total = math.prod(shape)
    for distance in range(1, total):
        for candidate in (n - distance, n + distance):
            if 1 <= candidate <= total and next(_factorisations(shape, candidate), None):
                return candidate
    return 1
