"""The thinned grid of a report: every k-th point of each axis, within a budget, with the partition of each."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_results import made_result

from ooc_mdp.model.state_order import GridOrder
from ooc_mdp.report.html.cells import cells_of


@given(st.lists(st.integers(1, 9), min_size=2, max_size=4), st.integers(1, 4), st.sampled_from([700, 3000, 10**6]))
def test_cells_have_the_value_action_and_partition_of_their_states(shape, blocks, budget):
    result = made_result(tuple(shape), blocks)
    cells = cells_of(result, None, None, budget)
    assert cells is not None
    states = np.arange(result.values.size).reshape(shape)[tuple(slice(None, None, k) for k in cells.strides)]
    assert cells.shape == states.shape
    fields = {field.name: field for field in cells.fields}
    np.testing.assert_array_equal(fields["value"].numbers, result.values[states.ravel()].astype(np.float32))
    np.testing.assert_array_equal(fields["policy"].numbers, result.policy[states.ravel()])
    order = GridOrder(shape, result.partitions["edges"])
    owner = np.empty(result.values.size, np.int64)
    for p in range(order.partition_ptr.size - 1):
        owner[order.states(p)] = p
    loads = result.solution.history.loads[owner[states.ravel()]]
    np.testing.assert_array_equal(fields["loads"].numbers[cells.owner], loads.astype(np.float32))


@pytest.mark.parametrize("shape", [(3000, 2000), (60, 50, 40, 30), (1, 10**6), (7, 3)])
def test_cells_stay_within_their_budget_and_keep_small_grids_whole(shape):
    cells = cells_of(made_result(shape, 30), None, None)
    assert cells is not None
    taken = cells.owner.nbytes + sum(field.numbers.nbytes for field in cells.fields)
    assert taken <= 2_000_000
    assert shape != (7, 3) or cells.strides == (1, 1)
    assert np.prod(shape) < 2 * 10**5 or np.prod(cells.shape) > 2 * 10**4


def test_a_single_axis_is_no_grid_to_map():
    assert cells_of(made_result((50,)), None, None) is None
