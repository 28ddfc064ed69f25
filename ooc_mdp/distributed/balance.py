"""Weighted assignment: divides items among owners so that each has about a given weight. Arrays only; knows no MDP.

bisect          by recursive bisection of a box, each cut across its longest side
assign_nearest  to the owner i with the least cost[p, i] - price[i]; the prices are adjusted to the target weights

With squared distances as costs, `assign_nearest` is a power diagram: its cells are convex and have the target weights.
(F. Aurenhammer, F. Hoffmann, B. Aronov, *Minkowski-type theorems and least-squares clustering*, Algorithmica 20, 1998.)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ooc_mdp.model.mdp import FloatArray, IntArray

__all__ = ["assign_nearest", "bisect", "fill_empty", "rebalance"]

_NEAR = 0.01
"""Relative deviation of an owner's weight from its target that is accepted."""
_ROUNDS = 200
"""Most changes of prices; a grid's partitions take 5 to 40."""
_FIRST_STEP = 0.1
"""First change of a price, relative to the spread of the costs."""


def bisect(
    places: IntArray,
    weight: FloatArray,
    target: FloatArray,
    cut_cost: Callable[[IntArray, IntArray], float] = lambda _, __: 0.0,
) -> IntArray:
    """Return the owner of each item by cutting boxes in two until each belongs to one owner.

    A cut goes across the side where it costs least, of these the one with the most places, and through the middle of a
    layer where the weights require that. Each owner has an item where there are enough. (Recursive coordinate
    bisection: Berger and Bokhari 1987.)

    Parameters
    ----------
    places : int64 [P, d]; where each item lies along each axis, in steps of one.
    weight : float64 [P], positive.
    target : float64 [W], positive, P >= W; relative weights.
    cut_cost : cost of a cut between two sets of items.
    """
    owner = np.empty(weight.size, np.int64)
    boxes = [(np.arange(weight.size), 0, target.size)]
    while boxes:
        items, first, last = boxes.pop()
        if last - first == 1:
            owner[items] = first
            continue
        middle = (first + last) // 2
        share = float(target[first:middle].sum() / target[first:last].sum())
        extent = np.ptp(places[items], axis=0)
        longest_first = np.argsort(-extent, kind="stable")
        sides = [side for side in longest_first.tolist() if extent[side] > 0] or longest_first[:1].tolist()
        cuts = [_cut(places, weight, items, side, share, (middle - first, last - middle)) for side in sides]
        here, there = cuts[0] if len(cuts) == 1 else min(cuts, key=lambda cut: cut_cost(*cut))
        boxes += [(here, first, middle), (there, middle, last)]
    return owner


def _cut(
    places: IntArray, weight: FloatArray, items: IntArray, side: int, share: float, least: tuple[int, int]
) -> tuple[IntArray, IntArray]:
    """Return the items on both sides of a cut across a side, with a share of the weight and `least` items on each."""
    others = [a for a in range(places.shape[1]) if a != side]
    items = items[np.lexsort([places[items, a] for a in [*reversed(others), side]])]
    held = np.cumsum(weight[items])
    # The item at which the share is reached goes to the side where more of it lies.
    cut = int(np.searchsorted(held - weight[items] / 2, held[-1] * share))
    cut = min(max(cut, least[0]), items.size - least[1])
    return items[:cut], items[cut:]


def assign_nearest(cost: FloatArray, weight: FloatArray, target: FloatArray) -> IntArray:
    """Return the owner of each item: low costs, and weights near to their targets.

    Prices follow the sign of an owner's deficit, in steps that grow while the sign stays and halve when it changes. The
    rest (few items, equal costs) is moved item by item; in the end each owner is within 1% of its target, or no move of
    one item brings two owners nearer to theirs.

    Parameters
    ----------
    cost : float64 [P, W], finite.
    weight : float64 [P], positive.
    target : float64 [W], positive; sums to the sum of the weights.
    """
    owner: IntArray = cost.argmin(axis=1)
    if target.size == 1 or not weight.size:
        return owner
    allowed = np.maximum(_NEAR * target, weight.max())
    price, turned = np.zeros(target.size), np.zeros(target.size)
    step = np.full(target.size, _FIRST_STEP * np.ptp(cost, axis=1).mean())
    best, least = owner, np.inf
    for _ in range(_ROUNDS):
        deficit = target - np.bincount(owner, weight, target.size)
        worst = float((np.abs(deficit) / allowed).max())
        if worst < least:
            best, least = owner, worst
        if worst <= 1:
            break
        same = np.sign(deficit) * turned
        step = np.where(same < 0, step / 2, np.where(same > 0, step * 1.2, step))
        turned = np.sign(deficit)
        price += turned * step
        owner = (cost - price).argmin(axis=1)
    return rebalance(best, cost, weight, target, _NEAR * target)


def rebalance(
    owner: IntArray, cost: FloatArray, weight: FloatArray, target: FloatArray, allowed: FloatArray
) -> IntArray:
    """Return the owners after items were moved to owners with the largest deficits, those first whose cost rises least.

    Each move reduces the sum of (weight - target)**2, so that it ends: each owner is within the allowed deviation of
    its target, or no move of one item brings two owners nearer to theirs.

    Parameters
    ----------
    owner : int64 [P]
    cost, weight, target : as :func:`assign_nearest` takes them.
    allowed : float64 [W]; accepted deviations from the targets.
    """
    owner = owner.copy()
    moved = True
    while moved:
        over = np.bincount(owner, weight, target.size) - target
        if (np.abs(over) <= allowed).all():
            break
        moved = False
        receiver = int(over.argmin())
        for donor in np.argsort(-over, kind="stable"):
            gap = over[donor] - over[receiver]
            # A move must gain something beyond rounding.
            items = np.flatnonzero((owner == donor) & (weight < 0.999 * gap))
            if donor != receiver and items.size:
                items = items[np.argsort(cost[items, receiver] - cost[items, donor], kind="stable")]
                excess = min(over[donor], -over[receiver])
                count = max(int(np.searchsorted(np.cumsum(weight[items]), excess, side="right")), 1)
                owner[items[:count]] = receiver
                moved = True
                break
    return owner


def fill_empty(owner: IntArray, weight: FloatArray, target: FloatArray) -> IntArray:
    """Give an item to every owner where there are enough: the lightest of the owner that exceeds its target most.

    Parameters
    ----------
    owner : int64 [P]
    weight : float64 [P]
    target : float64 [W], in units of the weight.
    """
    owner = owner.copy()
    counts = np.bincount(owner, minlength=target.size)
    for empty in np.flatnonzero(counts == 0)[: max(weight.size - np.count_nonzero(counts), 0)]:
        over = np.bincount(owner, weight, target.size) - target
        donor = int(np.where(counts > 1, over, -np.inf).argmax())
        items = np.flatnonzero(owner == donor)
        owner[items[weight[items].argmin()]] = empty
        counts[donor] -= 1
        counts[empty] += 1
    return owner
