"""Parts of a policy's rows: whole partitions, each in one part, of about as many bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_mdp.backends.cuda.policy.parts import RowParts

SIZES = st.lists(st.integers(0, 1000), min_size=1, max_size=80)
DEVICES = st.integers(1, 9)


def parts_of(sizes: list[int], devices: int, first: list[int] | None = None) -> RowParts:
    states = np.cumsum([0, *sizes])[:-1] if first is None else np.array(first)
    return RowParts.of(states, np.array(sizes, np.int64), devices)


@given(sizes=SIZES, devices=DEVICES)
def test_every_partition_is_in_one_part(sizes: list[int], devices: int) -> None:
    parts = parts_of(sizes, devices)
    assert (parts.ptr[0], parts.ptr[-1]) == (0, len(sizes))
    assert (np.diff(parts.ptr) >= 0).all()
    assert parts.devices == devices
    ends = parts.ends(np.array(sizes))
    assert len(ends) == devices
    assert ends[-1] == sum(sizes)
    assert parts.begins(np.array(sizes)).tolist() == [0, *ends]


@pytest.mark.parametrize("devices", [1, 2, 3, 4, 6, 8])
def test_devices_have_equal_bytes_of_many_equal_partitions(devices: int) -> None:
    parts = parts_of([10] * 480, devices)
    assert np.diff(parts.begins(np.full(480, 10))).tolist() == [4800 // devices] * devices


@given(sizes=SIZES, devices=DEVICES)
def test_a_device_s_part_ends_within_a_partition_of_where_it_should(sizes: list[int], devices: int) -> None:
    for device, end in enumerate(parts_of(sizes, devices).ends(np.array(sizes)), 1):
        assert abs(end - sum(sizes) * device / devices) <= max(sizes) / 2 + 1e-9


def test_partitions_are_divided_in_the_order_of_their_states_on_the_devices() -> None:
    sizes, first = [5, 7, 11, 13], [20, 13, 25, 0]
    parts = parts_of(sizes, 2, first)
    assert parts.order.tolist() == [3, 1, 0, 2]
    assert parts.starts(np.array(sizes)).tolist() == first
    assert parts.ends(np.array(sizes)) == (20, 36)
    assert parts.begins(np.array([1, 0, 3, 2])).tolist() == [0, 2, 6]
