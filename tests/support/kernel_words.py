"""Words for --kernel in tests that go over all of them."""

from __future__ import annotations

import pytest

from ooc_mdp.backends.cuda.simple.literature.catalogue import SIMPLE_KERNELS
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.store import Store

__all__ = ["skip_where_refused"]


def skip_where_refused(word: str, store: Store, discount: float) -> None:
    """Skip a test of a kernel whose assumptions do not hold for a store; that it says so is tested elsewhere."""
    for kernel in SIMPLE_KERNELS:
        reason = kernel.refuses(ModelFacts.of(store.facts, discount)) if kernel.word == word else None
        if reason is not None:
            pytest.skip(reason)
