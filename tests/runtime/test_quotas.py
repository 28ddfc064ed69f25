"""Limits of a job or container on cores and RAM, in a folder that looks like the system's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ooc_mdp.cli import entry
from ooc_mdp.runtime import memory, quotas


def system(root: Path, groups: str, contents: dict[str, str]) -> Path:
    """A root with a process in these groups, and files of /sys/fs/cgroup."""
    for name, text in {"proc/self/cgroup": groups, **{f"sys/fs/cgroup/{k}": v for k, v in contents.items()}}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture(autouse=True)
def sixty_four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 128)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)


def test_without_limits_there_are_the_cores_that_the_process_is_bound_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert quotas.cores(tmp_path) == 64
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5})
    assert quotas.cores(tmp_path) == 2
    monkeypatch.delattr(os, "sched_getaffinity")
    assert quotas.cores(tmp_path) == 128
    assert quotas.memory_left(tmp_path) is None


@pytest.mark.parametrize(
    ("quota", "expected"), [("max 100000", 64), ("200000 100000", 2), ("150000 100000", 2), ("1000 100000", 1)]
)
def test_a_container_has_its_share_of_time(tmp_path: Path, quota: str, expected: int) -> None:
    assert quotas.cores(system(tmp_path, "0::/\n", {"cpu.max": quota})) == expected


def test_the_tightest_limit_of_the_groups_above_counts(tmp_path: Path) -> None:
    root = system(
        tmp_path,
        "0::/jobs/7/step\n",
        {
            "jobs/7/step/cpu.max": "max 100000",
            "jobs/7/cpu.max": "400000 100000",
            "jobs/cpu.max": "800000 100000",
            "jobs/7/memory.max": "1000",
            "jobs/7/memory.current": "700",
            "jobs/7/memory.stat": "anon 500\nactive_file 50\ninactive_file 150\n",
            "jobs/memory.max": "5000",
            "jobs/memory.current": "4600",
            "jobs/7/step/memory.max": "max",
            "jobs/7/step/memory.current": "700",
        },
    )
    assert quotas.cores(root) == 4
    assert quotas.memory_left(root) == 400  # of all jobs together


def test_the_older_interface_has_folders_of_its_own(tmp_path: Path) -> None:
    root = system(
        tmp_path,
        "5:cpu,cpuacct:/docker/1\n4:memory:/docker/1\n1:name=systemd:/\n",
        {
            "cpu,cpuacct/cpu.cfs_quota_us": "300000",  # a container sees its own group at the top
            "cpu,cpuacct/cpu.cfs_period_us": "100000",
            "memory/docker/1/memory.limit_in_bytes": "9000",
            "memory/docker/1/memory.usage_in_bytes": "8000",
            "memory/docker/1/memory.stat": "inactive_file 10\ntotal_inactive_file 500\ntotal_active_file 100\n",
        },
    )
    assert quotas.cores(root) == 3
    assert quotas.memory_left(root) == 1600


def test_no_limit_of_the_older_interface_is_a_quota_of_minus_1(tmp_path: Path) -> None:
    none = {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}
    assert quotas.cores(system(tmp_path, "1:cpu:/\n", none)) == 64


def test_a_group_that_is_full_has_nothing_left(tmp_path: Path) -> None:
    root = system(tmp_path, "0::/\n", {"memory.max": "100", "memory.current": "130"})
    assert quotas.memory_left(root) == 0


def test_plans_know_what_is_left_to_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "memory_left", lambda: 12_345)
    assert memory.available_bytes() == 12_345
    monkeypatch.setattr(memory, "memory_left", lambda: None)
    assert (memory.available_bytes() or 0) != 12_345


@pytest.mark.skipif(sys.platform != "linux", reason="no other system says how many addresses are in use")
def test_a_limit_of_the_address_space_leaves_less_memory():
    """In a process of its own, whose limit cannot be taken back."""
    code = (
        "import resource; from ooc_mdp.runtime.memory import address_space_limit, available_bytes\n"
        "limit = 8 << 30; resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
        "assert address_space_limit() == limit; assert 0 < available_bytes() < limit"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("error", [MemoryError(), OSError("no shared object")])
def test_a_limit_of_the_address_space_is_named_where_memory_ends(error, monkeypatch, capsys):
    monkeypatch.setattr(entry, "app", lambda: raise_(error))
    monkeypatch.setattr(entry, "address_space_limit", lambda: 600 << 20)
    with pytest.raises(SystemExit):
        entry.main()
    assert (
        "is limited to 600.0 MiB of address space, libraries and stacks included: raise ulimit -v"
        in capsys.readouterr().err
    )


def raise_(error: Exception) -> None:
    raise error
