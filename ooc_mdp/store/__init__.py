"""Stores of format 3: transition tables on disk, one chunk for each field and partition."""

from ooc_mdp.store.inspect import inspect_store
from ooc_mdp.store.opening import open_store
from ooc_mdp.store.reader import Store
from ooc_mdp.store.validate import Finding, Report, validate_store

__all__ = ["Finding", "Report", "Store", "inspect_store", "open_store", "validate_store"]
