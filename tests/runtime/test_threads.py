"""Work on threads: in the order of the items, not far ahead, and no further than the first error."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from ooc_mdp.runtime import threads
from ooc_mdp.runtime.threads import in_order, least_and_largest


@pytest.mark.parametrize("count", [1, 3])
def test_results_come_in_the_order_of_the_items(count: int) -> None:
    last_is_done = threading.Event()

    def work(item: int) -> int:
        if item == 4:
            last_is_done.set()
        if item == 3 and count > 1:
            last_is_done.wait(10)  # ends after the one behind it
        return item * item

    assert list(in_order(work, range(5), count)) == [0, 1, 4, 9, 16]


def test_no_more_is_begun_than_the_caller_will_soon_take() -> None:
    begun: list[int] = []
    found = in_order(lambda item: begun.append(item) or item, range(1000), 2)
    assert [next(found), next(found)] == [0, 1]
    assert len(begun) <= 6
    found.close()
    assert len(begun) <= 6


def test_an_error_reaches_the_caller_and_ends_the_work() -> None:
    begun: list[int] = []

    def work(item: int) -> int:
        begun.append(item)
        if item == 2:
            raise ValueError("the second")
        return item

    found = in_order(work, range(1000), 2)
    assert [next(found), next(found)] == [0, 1]
    with pytest.raises(ValueError, match="the second"):
        list(found)
    assert len(begun) < 20


@pytest.mark.parametrize("slice_of", [3, 100])
def test_the_ends_of_an_array_are_those_of_its_slices(monkeypatch: pytest.MonkeyPatch, slice_of: int) -> None:
    monkeypatch.setattr(threads.slices, "__defaults__", (slice_of,))
    values = np.random.default_rng(1).normal(size=20)
    assert least_and_largest(values) == (values.min(), values.max())
    values[7] = np.nan
    assert np.isnan(least_and_largest(values)).all()
