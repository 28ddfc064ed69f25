"""Stores of format 4: transition tables on disk, one chunk for each field and partition."""

from ooc_mdp.store.check import Finding, Report, check_store
from ooc_mdp.store.inspect import inspect_store
from ooc_mdp.store.opening import open_store
from ooc_mdp.store.reader import Store

__all__ = ["Finding", "Report", "Store", "check_store", "inspect_store", "open_store"]
