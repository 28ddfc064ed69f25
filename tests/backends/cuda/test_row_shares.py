"""Shares of a policy's rows: whole partitions, the same for any number of devices, which have equal parts of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_mdp.backends.cuda.policy.shares import MIN_CHUNKS, SHARES, RowShares

SIZES = st.lists(st.integers(0, 1000), min_size=1, max_size=80)
LARGE = SHARES * MIN_CHUNKS
DEVICES = st.integers(1, 9)


def shares_of(sizes: list[int], devices: int, chunks: int = LARGE, first: list[int] | None = None) -> RowShares:
    states = np.cumsum([0, *sizes])[:-1] if first is None else np.array(first)
    return RowShares.of(states, np.array(sizes, np.int64), chunks, devices)


@given(sizes=SIZES, devices=DEVICES)
def test_every_partition_is_in_one_share_and_every_share_on_one_device(sizes: list[int], devices: int) -> None:
    shares = shares_of(sizes, devices)
    assert (shares.ptr[0], shares.ptr[-1]) == (0, len(sizes))
    assert (np.diff(shares.ptr) >= 0).all()
    assert (shares.device_ptr[0], shares.device_ptr[-1]) == (0, shares.ptr.size - 1)
    assert (np.diff(shares.device_ptr) >= 0).all()
    assert shares.devices == devices
    ends = shares.ends(np.array(sizes))
    assert len(ends) == devices
    assert ends[-1] == sum(sizes)


@given(sizes=SIZES, devices=DEVICES, chunks=st.sampled_from([1, LARGE - 1, LARGE, 10 * LARGE]))
def test_groups_of_any_size_have_the_same_shares_and_one_device_has_one(
    sizes: list[int], devices: int, chunks: int
) -> None:
    two, group = shares_of(sizes, 2, chunks), shares_of(sizes, 1 + devices, chunks)
    assert (two.ptr == group.ptr).all()
    assert two.ptr.size - 1 == (SHARES if chunks >= LARGE else 1)
    assert shares_of(sizes, 1, chunks).ptr.size - 1 == 1


@pytest.mark.parametrize("devices", [1, 2, 3, 4, 6, 8])
def test_devices_have_equal_bytes_of_many_equal_partitions(devices: int) -> None:
    shares = shares_of([10] * 480, devices)
    assert np.diff(shares.ends(np.full(480, 10)), prepend=0).tolist() == [4800 // devices] * devices


@given(sizes=SIZES, devices=DEVICES)
def test_a_device_s_part_ends_within_a_partition_of_where_it_should(sizes: list[int], devices: int) -> None:
    shares = shares_of(sizes, devices)
    for end, share in zip(shares.ends(np.array(sizes)), shares.device_ptr[1:], strict=True):
        assert abs(end - sum(sizes) * share / (shares.ptr.size - 1)) <= max(sizes) / 2 + 1e-9


def test_partitions_are_divided_in_the_order_of_their_states_on_the_devices() -> None:
    sizes, first = [5, 7, 11, 13], [20, 13, 25, 0]
    shares = shares_of(sizes, 2, first=first)
    assert shares.order.tolist() == [3, 1, 0, 2]
    assert shares.starts(np.array(sizes)).tolist() == first
    assert shares.ends(np.array(sizes)) == (20, 36)
    chunks = np.array([1, 0, 3, 2])
    assert shares.chunk_ptr(chunks)[shares.device_ptr].tolist() == [0, 2, 6]


def test_a_model_of_one_share_is_on_the_first_device() -> None:
    shares = shares_of([4, 4, 4], 3, chunks=3)
    assert shares.ends(np.array([4, 4, 4])) == (12, 12, 12)
