"""What a solver of several reads, and of whom it asks it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from solver_network import HostVector

from ooc_mdp.distributed.messages import Assignment
from ooc_mdp.distributed.share import Share


def test_only_the_present_owner_of_a_partition_is_asked_for_it():
    posted = []
    owner = np.array([0, 0, 0, 0, 2, 1, 0])
    none = np.zeros(owner.size, np.bool_)
    state: Any = SimpleNamespace(backend=HostVector(6), table=SimpleNamespace(n_partitions=owner.size))
    share = Share(0, state, none, lambda address, message, _: posted.append((address, message)), lambda: None)
    share._interests.read({q: [np.array([q])] for q in (4, 5)}, True)
    share.assignment = Assignment(3, owner, np.zeros_like(owner), {})
    # 4 was 1's until now, and has been asked of 2 since; 6 has become this solver's own.
    for k in (1, 2):
        share.outbox.meet(k, str(k))
    for k, p in ((1, 4), (1, 5), (1, 6), (2, 4)):
        share.outbox.ask(k, p)
    share.pass_on()
    asked = [(address, [w.partition for w in message.wanted], message.number) for address, message in posted]
    assert asked == [("1", [5], 1), ("2", [4], 2)]
    assert share.outbox.pause(0.0) is None
