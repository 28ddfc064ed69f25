"""What host and device must agree on: alignment, types of C, and doubles as ordered unsigned numbers."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_mdp.backends.cuda.layout import aligned, c_type, numbers_of_encoded

FLOATS = st.floats(allow_nan=False)


def encoded(x: float) -> int:
    """As `encoded` in numbers.cuh."""
    (bits,) = struct.unpack("<Q", struct.pack("<d", x))
    return int(bits ^ 0xFFFFFFFFFFFFFFFF if bits >> 63 else bits | 1 << 63)


@given(st.lists(FLOATS, max_size=20))
def test_encoded_numbers_are_given_back(numbers: list[float]) -> None:
    numbers_encoded = np.array([encoded(x) for x in numbers], np.uint64)
    np.testing.assert_array_equal(numbers_of_encoded(numbers_encoded), np.array(numbers))


@given(FLOATS, FLOATS)
def test_encoded_numbers_keep_their_order_and_are_above_0(x: float, y: float) -> None:
    assert (encoded(x) < encoded(y)) == (x < y or (x == y and (np.signbit(x), np.signbit(y)) == (True, False)))
    assert encoded(x) > 0


def test_an_encoding_of_0_stands_for_no_number_in_any_shape() -> None:
    found = numbers_of_encoded(np.array([[0, encoded(2.5)], [encoded(-1.0), 0]], np.uint64))
    assert found.tolist() == [[-np.inf, 2.5], [-1.0, -np.inf]]


@given(st.integers(0, 1 << 50))
def test_a_part_takes_the_next_multiple_of_256_bytes(nbytes: int) -> None:
    assert aligned(nbytes) % 256 == 0
    assert nbytes <= aligned(nbytes) < nbytes + 256


@pytest.mark.parametrize(
    ("dtype", "expected"), [("u1", "unsigned char"), ("u2", "unsigned short"), ("f4", "float"), ("i8", "long long")]
)
def test_types_of_c_have_the_size_of_those_of_numpy(dtype: str, expected: str) -> None:
    assert c_type(np.dtype(dtype)) == expected


def test_a_type_that_no_kernel_reads_has_no_type_of_c() -> None:
    with pytest.raises(KeyError):
        c_type(np.dtype("f2"))
