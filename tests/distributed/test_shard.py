"""What a solver of several reads, and of whom it asks it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from solver_network import HostVector

from ooc_mdp.distributed.messages import Assignment
from ooc_mdp.distributed.shard import Shard, plan_assignment


def test_only_the_present_owner_of_a_partition_is_asked_for_it():
    posted = []
    owner = np.array([0, 0, 0, 0, 2, 1, 0])
    none = np.zeros(owner.size, np.bool_)
    state: Any = SimpleNamespace(backend=HostVector(6), table=SimpleNamespace(n_partitions=owner.size))
    shard = Shard(0, state, none, lambda address, message, _: posted.append((address, message)), lambda: None)
    shard._subscriptions.extend({q: [np.array([q])] for q in (4, 5)}, True)
    shard.assignment = Assignment(3, owner, np.zeros_like(owner), {})
    # 4 was 1's until now, and has been asked of 2 since; 6 has become this solver's own.
    for k in (1, 2):
        shard.send_queue.add_peer(k, str(k))
    for k, p in ((1, 4), (1, 5), (1, 6), (2, 4)):
        shard.send_queue.request(k, p)
    shard.publish_changes()
    asked = [(address, [w.partition for w in message.wanted], message.number) for address, message in posted]
    assert asked == [("1", [5], 1), ("2", [4], 2)]
    assert shard.send_queue.next_send_in(0.0) is None


def an_assignment(epoch: int, owner: list[int], generation: list[int], workers: list[int]) -> Assignment:
    return Assignment(epoch, np.array(owner, np.int32), np.array(generation, np.int32), {k: str(k) for k in workers})


NOBODY = an_assignment(-1, [-1] * 4, [-1] * 4, [])


def test_the_first_assignment_gives_partitions_and_peers():
    plan = plan_assignment(NOBODY, an_assignment(1, [0, 1, 1, 2], [1] * 4, [0, 1, 2]), me=1)
    assert (plan.gained.tolist(), plan.lost.tolist(), plan.reassigned.tolist()) == ([1, 2], [], [0, 3])
    assert (plan.peers_added, plan.peers_removed, plan.owners) == ({0, 2}, set(), 3)


def test_partitions_of_a_lost_worker_are_gained_and_those_of_others_read_anew():
    before = an_assignment(1, [0, 1, 2, 2], [1] * 4, [0, 1, 2])
    plan = plan_assignment(before, an_assignment(2, [0, 1, 0, 1], [1, 1, 2, 2], [0, 1]), me=1)
    assert (plan.gained.tolist(), plan.lost.tolist(), plan.reassigned.tolist()) == ([3], [], [2])
    assert (plan.peers_added, plan.peers_removed, plan.owners) == (set(), {2}, 2)


def test_a_partition_that_is_being_migrated_has_no_owner_and_is_lost_to_its_former_one():
    before = an_assignment(1, [0, 0, 1, 1], [1] * 4, [0, 1])
    after = an_assignment(2, [0, -1, 1, 1], [1] * 4, [0, 1])
    for me, lost, reassigned in ((0, [1], [1]), (1, [], [1])):
        plan = plan_assignment(before, after, me)
        assert (plan.gained.tolist(), plan.lost.tolist(), plan.reassigned.tolist()) == ([], lost, reassigned)
        assert plan.owners == 2


def test_a_new_generation_of_the_same_owner_is_read_anew_by_others_only():
    before, after = (an_assignment(e, [0, 0, 1, 1], [1, e, 1, e], [0, 1]) for e in (1, 2))
    assert plan_assignment(before, after, 0).reassigned.tolist() == [3]
    assert plan_assignment(before, after, 1).reassigned.tolist() == [1]
    assert not plan_assignment(before, after, 0).gained.size
