"""What the C library keeps of freed arrays: decoders' buffers are used again, and what is kept is bounded."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import environment

from ooc_mdp.runtime.memory import KEPT_PER_THREAD

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/statm").exists() or not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"),
    reason="needs Linux and glibc",
)

CODE = """
import resource, sys
import numpy as np
from ooc_mdp.runtime import memory

def fill(size):
    array = np.empty(size, np.uint8)
    array.fill(1)
    return array

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

for name in sys.argv[1:]:
    getattr(memory, name)()
fill(1 << 20)
before = faults()
for _ in range(20):
    fill(1 << 20)
print(faults() - before)
before = memory.resident_bytes()
many = [fill(1 << 20) for _ in range(32)]
many.clear()
print(memory.resident_bytes() - before)
"""
PAGES = (1 << 20) // 4096


def measured(*names: str) -> tuple[int, int]:
    """Page faults of 20 arrays of 1 MiB, one after the other, and bytes kept of 32, in a process of its own."""
    line = [sys.executable, "-c", CODE, *names]
    done = subprocess.run(line, env=environment(), capture_output=True, text=True, check=True, timeout=600)
    faults, kept = done.stdout.split()
    return int(faults), int(kept)


def test_a_buffer_that_is_freed_is_used_again_without_page_faults():
    faults, _ = measured("keep_freed_buffers")
    assert faults < PAGES


def test_freed_buffers_that_are_kept_are_at_most_what_the_plan_counts():
    _, kept = measured("keep_freed_buffers")
    assert kept <= KEPT_PER_THREAD + (1 << 20)


def test_returning_freed_memory_ends_what_a_solve_before_it_kept():
    faults, kept = measured("keep_freed_buffers", "return_freed_memory")
    assert faults >= 20 * PAGES
    assert kept <= 1 << 20
