"""Opens in another place what was pickled: a store travels as its path and its fingerprint, never as a descriptor.

What is unpickled is opened and checked like any store, and must be the one that was pickled. A temporary store is not
removed with such a copy, and does not wait for it.
"""

from __future__ import annotations

import os

from ooc_mdp.errors import StoreError
from ooc_mdp.store.directory import OF_TEMPORARY
from ooc_mdp.store.reader import Store
from ooc_mdp.store.reward_store import RewardStore, open_table

__all__ = ["reopened"]


def reopened(path: str, fingerprint: str, checks_sha256: bool) -> Store | RewardStore:
    """The store that was pickled, from its path.

    Raises
    ------
    StoreError : it is missing here, damaged, or another one.
    """
    try:
        store = open_table(path)
    except StoreError as error:
        if os.path.lexists(path):
            raise
        raise StoreError(f"a store that was pickled is missing here: {error}; {OF_TEMPORARY}") from error
    if store.fingerprint != fingerprint:
        raise StoreError(
            f"{path} is another store than the one that was pickled (fingerprint {store.fingerprint}, then "
            f"{fingerprint}); open it again"
        )
    return store.checking_sha256() if checks_sha256 else store
