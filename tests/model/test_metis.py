from __future__ import annotations

import numpy as np
import pytest

from ooc_mdp.model.metis import partition_graph

pytest.importorskip("pymetis")


def ring(n: int) -> tuple[np.ndarray, np.ndarray]:
    nodes = np.arange(n)
    return np.arange(0, 2 * n + 1, 2), np.stack([(nodes - 1) % n, (nodes + 1) % n], axis=1).ravel()


def test_parts_have_their_shares() -> None:
    part = partition_graph(*ring(400), 2, np.ones(400, np.int64), shares=np.array([1.0, 3.0]))
    assert np.bincount(part).tolist() == pytest.approx([100, 300], abs=6)


def test_heavy_nodes_count_for_more() -> None:
    weight = np.where(np.arange(400) < 100, 3, 1)
    part = partition_graph(*ring(400), 2, weight)
    assert np.bincount(part, weight).tolist() == pytest.approx([300, 300], abs=18)


def test_heavy_edges_are_not_cut() -> None:
    ptr, neighbours = ring(40)
    nodes = np.repeat(np.arange(40), 2)
    heavy = np.where(np.minimum(nodes, neighbours) % 2 == 0, 50, 1)
    heavy[(np.minimum(nodes, neighbours) == 0) & (np.maximum(nodes, neighbours) == 39)] = 1
    part = partition_graph(ptr, neighbours, 4, np.ones(40, np.int64), heavy)
    assert (part[::2] == part[1::2]).all()
    assert set(part.tolist()) == {0, 1, 2, 3}


def test_weights_beyond_32_bits_keep_their_proportions() -> None:
    small, large = (partition_graph(*ring(60), 3, np.arange(1, 61) * scale) for scale in (1, 1 << 40))
    for part in (small, large):
        assert np.bincount(part, np.arange(1, 61)).tolist() == pytest.approx([610] * 3, rel=0.1)


def test_one_part_and_no_node_need_no_cut() -> None:
    assert partition_graph(*ring(5), 1, np.ones(5, np.int64)).tolist() == [0] * 5
    assert partition_graph(np.zeros(1, np.int64), np.empty(0, np.int64), 3, np.empty(0, np.int64)).size == 0
