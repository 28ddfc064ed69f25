"""H1 follows the residual, H2 the value that flows in (Wingate 2004, section 4.2)."""

from __future__ import annotations

import numpy as np
import pytest

from ooc_mdp.errors import OptionsError
from ooc_mdp.priority import H1, H2, make_priority

ALL = np.array([True, True])


def test_h1_ranks_by_the_residual_alone() -> None:
    h1 = make_priority("h1", np.zeros(3))
    assert isinstance(h1, H1)
    h1.inflow(np.array([0, 1]), 9.0, ALL)
    h1.visited(2)
    h1.exact(1, 5.0, 7.0)
    assert h1.rank(np.array([1.0, 3.0, 2.0])).tolist() == [1.0, 3.0, 2.0]


def test_h2_begins_with_the_largest_reward() -> None:
    first = np.array([1.0, 3.0, 2.0])
    h2 = make_priority("h2", first)
    assert isinstance(h2, H2)
    assert h2.rank(np.zeros(3)).tolist() == [1.0, 3.0, 2.0]
    h2.visited(1)
    assert first.tolist() == [1.0, 3.0, 2.0]


def test_h2_takes_the_largest_value_that_flowed_in_since_the_visit() -> None:
    h2 = H2(np.array([1.0, 3.0, 2.0]))
    h2.visited(1)
    assert h2.rank(np.zeros(3))[1] == -np.inf
    h2.inflow(np.array([1, 2]), 1.5, ALL)
    h2.inflow(np.array([1, 2]), 0.5, ALL)
    assert h2.rank(np.zeros(3)).tolist() == [1.0, 1.5, 2.0]


def test_h2_ignores_an_inflow_that_does_not_matter() -> None:
    h2 = H2(np.zeros(3))
    h2.inflow(np.array([0, 2]), 8.0, np.array([False, True]))
    assert h2.rank(np.zeros(3)).tolist() == [0.0, 0.0, 8.0]


def test_h2_takes_an_exact_value_whether_it_is_more_or_less() -> None:
    h2 = H2(np.array([4.0, 4.0]))
    h2.exact(0, 1.0, -2.0)
    h2.exact(1, 1.0, 6.0)
    assert h2.rank(np.zeros(2)).tolist() == [-2.0, 6.0]


def test_there_are_two_priorities() -> None:
    with pytest.raises(OptionsError, match="unknown priority 'h3'; there are h1 and h2"):
        make_priority("h3", np.zeros(1))
