"""Stores of format 1: transition tables on disk, one chunk for each field and partition."""

from ooc_mdp.store.reader import Store, open_store

__all__ = ["Store", "open_store"]
