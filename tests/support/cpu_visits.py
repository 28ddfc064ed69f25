"""A CPU backend at the beginning of a solve, with every partition resident."""

from __future__ import annotations

from ooc_mdp.backends.base import Resident, SweepLimits
from ooc_mdp.backends.cpu.backend import CpuBackend
from ooc_mdp.backends.layout import Needs
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.store import Store

LIMITS = SweepLimits(1e-12, 5)


def started(store: Store, discount: float, threads: int = 2) -> tuple[CpuBackend, list[Resident]]:
    """A backend at values of 0, with all partitions of the store resident."""
    backend = CpuBackend("voted", threads)
    model = ModelFacts.of(store.facts, discount)
    backend.start(model, backend.layout(model, Needs()), None, None)
    return backend, [backend.admit(backend.prepare(store.read(p)[0])) for p in range(store.n_partitions)]
