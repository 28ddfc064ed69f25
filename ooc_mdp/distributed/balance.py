"""Shares weighted items out so that each owner has about a given weight; arrays only, knows no MDP.

split    by recursive bisection of a box, each cut across its longest side
nearest  to the owner i with the least cost[p, i] - price[i], prices found so that the weights come out

With squared distances as costs, `nearest` is a power diagram: cells stay convex while their sizes are as asked for.
(F. Aurenhammer, F. Hoffmann, B. Aronov, *Minkowski-type theorems and least-squares clustering*, Algorithmica 20, 1998.)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ooc_mdp.model.mdp import FloatArray, IntArray

__all__ = ["fill_empty", "nearest", "rebalance", "split"]

_NEAR = 0.01
"""Share of its target by which an owner's weight may miss it."""
_ROUNDS = 200
"""Of price changes at most; a grid's partitions take 5 to 40."""
_FIRST_STEP = 0.1
"""Of a price, against the spread of costs."""


def split(
    places: IntArray,
    weight: FloatArray,
    target: FloatArray,
    parted: Callable[[IntArray, IntArray], float] = lambda _, __: 0.0,
) -> IntArray:
    """Owner of each item: boxes cut in two, again and again, until each belongs to one owner.

    A cut goes across the side where it parts least, of these the one with the most places, and through the middle of a
    layer where the weights ask for that. Each owner has an item where there are enough. (Recursive coordinate
    bisection: Berger and Bokhari 1987.)

    Parameters
    ----------
    places : int64 [P, d]; where each item lies along each axis, in steps of one.
    weight : float64 [P], positive.
    target : float64 [W], positive, P >= W; relative weights.
    parted : what a cut costs that leaves some items here and some there.
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
        here, there = cuts[0] if len(cuts) == 1 else min(cuts, key=lambda cut: parted(*cut))
        boxes += [(here, first, middle), (there, middle, last)]
    return owner


def _cut(
    places: IntArray, weight: FloatArray, items: IntArray, side: int, share: float, least: tuple[int, int]
) -> tuple[IntArray, IntArray]:
    """Items on both sides of a cut across a side that leaves a share of the weight, and `least` items, on each."""
    others = [a for a in range(places.shape[1]) if a != side]
    items = items[np.lexsort([places[items, a] for a in [*reversed(others), side]])]
    held = np.cumsum(weight[items])
    # The item in which the share is reached goes to the side where more of it lies.
    cut = int(np.searchsorted(held - weight[items] / 2, held[-1] * share))
    cut = min(max(cut, least[0]), items.size - least[1])
    return items[:cut], items[cut:]


def nearest(cost: FloatArray, weight: FloatArray, target: FloatArray) -> IntArray:
    """Owner of each item: little cost, and weights near to their targets.

    Prices follow the sign of what an owner lacks, in steps that grow while it stays and halve when it turns. What is
    left over (few items, equal costs) is moved item by item; in the end each owner is within 1% of its target, or no
    move of one item would bring two owners nearer to theirs.

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
        lack = target - np.bincount(owner, weight, target.size)
        worst = float((np.abs(lack) / allowed).max())
        if worst < least:
            best, least = owner, worst
        if worst <= 1:
            break
        same = np.sign(lack) * turned
        step = np.where(same < 0, step / 2, np.where(same > 0, step * 1.2, step))
        turned = np.sign(lack)
        price += turned * step
        owner = (cost - price).argmin(axis=1)
    return rebalance(best, cost, weight, target, _NEAR * target)


def rebalance(
    owner: IntArray, cost: FloatArray, weight: FloatArray, target: FloatArray, allowed: FloatArray
) -> IntArray:
    """Owners after items moved to those that lack most; the items go first whose cost rises least.

    Each move lessens the sum of (weight - target)**2, so there is an end: each owner is as near to its target as is
    allowed, or no move of one item would bring two owners nearer to theirs.

    Parameters
    ----------
    owner : int64 [P]
    cost, weight, target : as :func:`nearest` takes them.
    allowed : float64 [W]; by how much owners may miss their targets.
    """
    owner = owner.copy()
    moved = True
    while moved:
        over = np.bincount(owner, weight, target.size) - target
        if (np.abs(over) <= allowed).all():
            break
        moved = False
        taker = int(over.argmin())
        for giver in np.argsort(-over, kind="stable"):
            gap = over[giver] - over[taker]
            # Against rounding, a move must be worth something.
            items = np.flatnonzero((owner == giver) & (weight < 0.999 * gap))
            if giver != taker and items.size:
                items = items[np.argsort(cost[items, taker] - cost[items, giver], kind="stable")]
                room = min(over[giver], -over[taker])
                count = max(int(np.searchsorted(np.cumsum(weight[items]), room, side="right")), 1)
                owner[items[:count]] = taker
                moved = True
                break
    return owner


def fill_empty(owner: IntArray, weight: FloatArray, target: FloatArray) -> IntArray:
    """Have every owner own something, where there are enough items: the lightest item of whoever is most over target.

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
        giver = int(np.where(counts > 1, over, -np.inf).argmax())
        items = np.flatnonzero(owner == giver)
        owner[items[weight[items].argmin()]] = empty
        counts[giver] -= 1
        counts[empty] += 1
    return owner
