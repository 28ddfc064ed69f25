"""H1 follows the residual, H2 the value that flows in (Wingate 2004, section 4.2), Joint the company in the cache.

Hybrid is tested in test_hybrid.py.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from accounting import settle
from model_facts import facts_with

from ooc_mdp.backends.base import VisitReport
from ooc_mdp.model.contraction import Contraction
from ooc_mdp.model.mdp import IntArray
from ooc_mdp.model.partition import Coupling
from ooc_mdp.options import PriorityName, SolveOptions
from ooc_mdp.scheduling.priority import H1, H2, Joint, Priority, SchedulerView, make_priority
from ooc_mdp.scheduling.residual_bounds import ResidualBounds
from ooc_mdp.scheduling.target import Target


def _chain(n: int) -> Coupling:
    """Partition p reads itself and p - 1."""
    pairs = [(p, q) for p in range(n) for q in (p - 1, p) if q >= 0]
    rows, columns = np.array(pairs).T
    return Coupling(np.searchsorted(rows, np.arange(n + 1)), columns, np.ones(columns.size))


def _view(present: npt.NDArray[np.bool_], visited: npt.NDArray[np.bool_] | None = None) -> SchedulerView:
    """Everything was swept before if nothing else is said, and the target is 1e-3."""
    return SchedulerView(present, np.ones_like(present) if visited is None else visited, lambda: 1e-3)


def _priority(name: PriorityName, first: list[float], view: SchedulerView | None = None) -> Priority:
    """Over a chain of partitions whose first backups give these values at most; discount 0.5, target 1e-3."""
    n = len(first)
    bounds = ResidualBounds(
        _chain(n),
        Contraction.of(0.5, np.ones(n), np.ones(n), np.full(n, 2)),
        np.stack([np.zeros(n), np.array(first)], axis=1),
        np.full(n, 2),
    )
    bounds.settle(np.arange(n), np.zeros((4, n)))
    options = SolveOptions(0.5, method="p-eva", priority=name, residual=1e-3)
    made = Target(options, bounds, 0.0)
    facts = facts_with(range(n + 1), 0.5, coupling=_chain(n))
    return make_priority(options, facts, bounds, made, view or _view(np.zeros(n, np.bool_)))


def _visit(p: int, change: float = 0.0, boundary: float = -np.inf) -> tuple[IntArray, VisitReport]:
    one = np.ones(1)
    return np.array([p]), VisitReport(
        np.ones(1, np.int64), np.ones(1, np.int64), change * one, 0 * one, boundary * one, 9 * one, 0 * one
    )


def test_h1_ranks_by_the_residual_alone() -> None:
    h1 = _priority("h1", [0.0, 0.0, 0.0])
    assert isinstance(h1, H1)
    h1.after_change(np.array([0, 1]), np.array([9.0, 9.0]), np.array([9.0, 9.0]))
    h1.after_visit(*_visit(2))
    h1.set_exact(1, 7.0)
    assert h1.rank(np.array([1.0, 3.0, 2.0])).tolist() == [1.0, 3.0, 2.0]
    assert h1.arrays() == {}


def test_h2_begins_with_the_largest_reward_and_a_visit_takes_it_in() -> None:
    h2 = _priority("h2", [1.0, 3.0, 2.0])
    assert isinstance(h2, H2)
    assert h2.rank(np.zeros(3)).tolist() == [1.0, 3.0, 2.0]
    h2.after_visit(*_visit(1))
    assert h2.rank(np.zeros(3)).tolist() == [1.0, -np.inf, 2.0]


def test_h2_takes_the_largest_discounted_value_that_flowed_in_since_the_visit() -> None:
    h2 = _priority("h2", [1.0, 3.0, 2.0])
    h2.after_visit(*_visit(1))
    h2.after_change(np.array([0]), np.array([1.0]), np.array([3.0]))
    h2.after_change(np.array([0]), np.array([1.0]), np.array([1.0]))
    assert h2.rank(np.zeros(3)).tolist() == [1.0, 1.5, 2.0]
    h2.after_visit(*_visit(0, change=1.0, boundary=8.0))
    assert h2.rank(np.zeros(3)).tolist() == [-np.inf, 4.0, 2.0], "partition 1 reads 0"


def test_h2_ignores_a_change_that_does_not_matter() -> None:
    h2 = _priority("h2", [0.0, 0.0, 0.0])
    h2.after_change(np.array([0, 1]), np.array([1e-9, 1.0]), np.array([8.0, 8.0]))
    assert h2.rank(np.zeros(3)).tolist() == [0.0, 0.0, 4.0]


def test_h2_keeps_the_largest_value_of_what_is_dirty_still() -> None:
    h2 = _priority("h2", [0.0, 0.0, 0.0])
    assert isinstance(h2, H2)
    settle(h2._bounds, 1, 1.0, 1.0, 1.0, 1.0)
    h2.after_visit(*_visit(1))
    assert h2.rank(np.zeros(3)).tolist() == [0.0, 9.0, 0.0]


def test_h2_takes_an_exact_value_whether_it_is_more_or_less_and_goes_on_from_a_checkpoint() -> None:
    h2, other = _priority("h2", [4.0, 4.0]), _priority("h2", [0.0, 0.0])
    h2.set_exact(0, -2.0)
    h2.set_exact(1, 6.0)
    assert h2.rank(np.zeros(2)).tolist() == [-2.0, 6.0]
    other.restore({})
    assert other.rank(np.zeros(2)).tolist() == [0.0, 0.0]
    other.restore(h2.arrays())
    assert other.rank(np.zeros(2)).tolist() == [-2.0, 6.0]


def test_joint_prefers_a_partition_whose_dependents_are_resident() -> None:
    present = np.zeros(4, np.bool_)
    joint = Joint(_chain(4), _view(present))
    assert isinstance(joint, Joint)
    level = np.array([1.0, 1.0, 1.0, 4.0])
    assert np.argmax(joint.rank(level)) == 3  # nobody is resident: the residual decides
    present[1] = True  # the dependent of 0
    assert np.argmax(joint.rank(level)) == 0
    present[:] = [True, False, False, False]  # 0 is nobody's dependent
    assert np.argmax(joint.rank(level)) == 3


def _company() -> tuple[Coupling, npt.NDArray[np.bool_]]:
    """Both dependents of partition 0 are resident, and one of the two of partition 1."""
    reads = {0: (0,), 1: (1,), 2: (0, 2), 3: (0, 1, 3), 4: (1, 4)}
    rows, columns = np.array([(p, q) for p in sorted(reads) for q in reads[p]]).T
    coupling = Coupling(np.searchsorted(rows, np.arange(6)), columns, np.ones(columns.size))
    return coupling, np.array([False, False, True, True, False])


def test_joint_takes_a_partition_with_twice_the_company_before_one_with_thirty_times_the_residual() -> None:
    coupling, present = _company()
    joint = Joint(coupling, _view(present))
    level = np.array([1.0, 29.0, 0.0, 0.0, 0.0])
    assert np.argmax(joint.rank(level)) == 0
    level[1] = 100.0
    assert np.argmax(joint.rank(level)) == 1


def test_joint_has_hardly_an_eye_for_residuals_where_partitions_were_never_read() -> None:
    coupling, present = _company()
    visited = np.ones(5, np.bool_)
    joint = Joint(coupling, _view(present, visited))
    level = np.array([1.0, 1e6, 0.0, 0.0, 0.0])
    assert np.argmax(joint.rank(level)) == 1
    visited[:2] = False  # a thousand times the target is as good as any more
    assert np.argmax(joint.rank(level)) == 0
    level[0] = 1.1e-3  # but what barely misses the target can wait
    assert np.argmax(joint.rank(level)) == 1


def test_joint_takes_what_was_never_read_before_what_is_left_of_a_partition_that_was() -> None:
    coupling, present = _company()
    visited = np.array([True, False, True, True, True])
    level = np.array([0.1, 0.1, 0.0, 0.0, 1e3])
    rank = Joint(coupling, _view(present, visited)).rank(level)
    assert np.argmax(rank) == 1
    np.testing.assert_allclose(rank[[0, 1]], [1e-4**0.2 * 1.01, 0.1 / 0.2 * 0.51], rtol=1e-12)


@pytest.mark.parametrize("wanted", [-1.0, 0.0, 1e-9, 1e300])
def test_joint_ranks_whatever_the_bounds_and_the_target_are(wanted: float) -> None:
    coupling, present = _company()
    level = np.array([np.inf, 0.0, 5e-324, 1e300, 1.0])
    for visited in (np.zeros(5, np.bool_), np.ones(5, np.bool_)):
        rank = Joint(coupling, SchedulerView(present, visited, lambda: wanted)).rank(level)
        assert np.isfinite(rank).all()
        assert np.argmax(rank) == 0, "nothing is known of it, and all its dependents are there"
        assert (Joint(coupling, SchedulerView(present, visited, lambda: wanted)).rank(np.zeros(5)) <= 1.01).all()


def test_joint_takes_the_larger_of_two_residuals_where_partitions_have_many_dependents() -> None:
    n = 14
    everything = Coupling(np.arange(0, n * n + 1, n), np.tile(np.arange(n), n), np.ones(n * n))
    present = np.arange(n) % 2 == 0
    present[1] = True  # 0 has 7 of its 13 dependents, 3 has 8
    level = np.zeros(n)
    level[[0, 3]] = 2.0, 1.0
    assert np.argmax(Joint(everything, _view(present)).rank(level)) == 0
    rank = Joint(everything, _view(present)).rank(level)
    np.testing.assert_allclose(rank[0] / rank[3], np.sqrt(2.0) * (0.01 + 7 / 13) / (0.01 + 8 / 13), rtol=1e-12)


def test_joint_follows_residency_as_a_fresh_count_would() -> None:
    rng = np.random.default_rng(1)
    n = 12
    mass = rng.random((n, n)) < 0.3
    np.fill_diagonal(mass, True)
    rows, columns = np.nonzero(mass)
    coupling = Coupling(np.searchsorted(rows, np.arange(n + 1)), columns, np.ones(columns.size))
    present = np.zeros(n, np.bool_)
    joint = Joint(coupling, _view(present))
    for _ in range(50):
        present[rng.integers(n)] ^= True
        level = rng.random(n)
        others = mass & ~np.eye(n, dtype=bool)
        share = (others & present[:, None]).sum(axis=0) / np.maximum(others.sum(axis=0), 1)
        np.testing.assert_allclose(joint.rank(level), (level / level.max()) ** 0.2 * (0.01 + share), rtol=1e-12)


def test_only_what_counts_as_resident_brings_its_neighbours_forward() -> None:
    bounds, level = Coupling(np.array([0, 1, 2, 3]), np.array([1, 2, 0]), np.ones(3)), np.ones(3)
    joint = Joint(bounds, _view(np.array([True, False, False])))
    usual = joint.rank(level)
    other = joint.rank(level, np.array([False, False, True]))
    assert np.argmax(usual) == 1, "0 reads 1"
    assert np.argmax(other) == 0, "2 reads 0"
    np.testing.assert_array_equal(joint.rank(level), usual)
