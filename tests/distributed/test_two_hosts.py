"""A solve across two hosts, one of which is cut off in the middle and healed: network namespaces stand for them.

Each has an address of its own on a pair of virtual Ethernet devices, and processes of its own; only root may make them.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import environment

import ooc_mdp
from ooc_mdp.store import Store

PORT = 8786
PATIENCE = 300.0
"""Where nobody is to be lost: longer than connections take to notice that a link is there again."""
CLIENT = """
import json, sys
import numpy as np
from distributed import Client
import ooc_mdp

store, scheduler, folder = sys.argv[1:]

def report(**facts):
    print(json.dumps(facts), flush=True)

def progress(now):
    global waits
    if waits and np.isfinite(now.error_bound):
        waits = False
        report(bounded=now.error_bound)
        sys.stdin.readline()  # the solve does not end meanwhile

with Client(scheduler, timeout=300, set_as_default=False) as client:

    while line := sys.stdin.readline():
        client.wait_for_workers(2, timeout=300)
        options = json.loads(line)
        name, waits = options.pop("name"), options.pop("waits")
        solution = ooc_mdp.solve(
            store, workers=client, device="cpu", cache="100%", placement="random", progress=progress,
            note=lambda text: report(note=text), **options,
        )
        np.save(f"{folder}/{name}.npy", solution.values)
        report(
            outcome=solution.outcome.value,
            error=solution.error_bound,
            workers=[[w.host, w.lost, w.partitions, w.backups] for w in solution.statistics.workers],
            present=len(client.scheduler_info(n_workers=-1)["workers"]),
        )
"""


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def may_make_namespaces() -> bool:
    """Whether this process may: it makes one to see."""
    if shutil.which("ip") is None:
        return False
    name = f"ooc-probe-{os.getpid()}"
    try:
        ip("netns", "add", name)
        ip("netns", "exec", name, "ip", "link", "set", "lo", "up")
        ip("-n", name, "link", "add", "probe0", "type", "veth", "peer", "name", "probe1")
    except (OSError, subprocess.CalledProcessError):
        return False
    finally:
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            ip("netns", "delete", name)
    return True


@dataclass
class Hosts:
    """Two namespaces, 10.201.7.1 and 10.201.7.2, and what runs in them."""

    names: tuple[str, str]
    folder: Path
    running: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, host: int, *command: str, **how: Any) -> subprocess.Popen[str]:
        """A process on a host; what it says goes to a file."""
        log = (self.folder / f"{len(self.running)}.log").open("w")
        with log:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.names[host], sys.executable, *command],
                env={**environment(), "DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": "200s"},
                cwd=self.folder,
                stderr=log,
                text=True,
                **{"stdout": log, "stdin": subprocess.DEVNULL, **how},
            )
        self.running.append(process)
        return process

    def link(self, state: str) -> None:
        """Put the second host's device "up" or "down"."""
        ip("-n", self.names[1], "link", "set", "eth0", state)

    def close(self) -> None:
        for process in reversed(self.running):
            process.terminate()
        for process in self.running:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


@contextlib.contextmanager
def two_hosts(folder: Path) -> Iterator[Hosts]:
    names = (f"ooc-a-{os.getpid()}", f"ooc-b-{os.getpid()}")
    hosts = Hosts(names, folder)
    try:
        for name in names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", names[0], "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", names[1])
        for number, name in enumerate(names, 1):
            ip("-n", name, "address", "add", f"10.201.7.{number}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
        yield hosts
    finally:
        hosts.close()
        for name in names:
            with contextlib.suppress(subprocess.CalledProcessError):
                ip("netns", "delete", name)


@pytest.fixture(scope="module")
def maze(tmp_path_factory: pytest.TempPathFactory) -> Store:
    path = tmp_path_factory.mktemp("maze") / "s"
    return ooc_mdp.generate("GW-32x4", path, {"seed": 1}, partitions=16, threads=1)


class Asked:
    """The client: solves are asked of it line by line."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process, self._folder = process, folder

    def solve(self, name: str, waits: bool = False, **options: Any) -> None:
        """Ask for a solve; one that waits says when it has a bound, and continues on request."""
        self._tell(json.dumps({"name": name, "waits": waits, **options}))

    def go_on(self) -> None:
        self._tell("")

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None  # a pipe
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def says(self) -> dict[str, Any]:
        """The next that it has to say."""
        assert self._process.stdout is not None  # a pipe
        line = self._process.stdout.readline()
        logs = "".join(f"\n--- {log.name}\n{log.read_text()[-3000:]}" for log in sorted(self._folder.glob("*.log")))
        assert line, f"the client has ended{logs}"
        found: dict[str, Any] = json.loads(line)
        return found

    def ends(self) -> dict[str, Any]:
        """The end of the solve."""
        while "outcome" not in (said := self.says()):
            pass
        return said


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="network namespaces are Linux's")
def test_a_host_that_is_cut_off_costs_its_share_and_takes_part_again_once_healed(maze: Store, tmp_path: Path) -> None:
    if not may_make_namespaces():
        pytest.skip("this process may not make network namespaces")
    whole = ooc_mdp.solve(maze, 0.99, device="cpu", cache="100%", epsilon=1e-6)
    with two_hosts(tmp_path) as hosts:
        dask = ["-m", "distributed.cli.dask_worker", f"tcp://10.201.7.1:{PORT}", "--nthreads", "1", "--no-dashboard"]
        hosts.start(
            0, "-m", "distributed.cli.dask_scheduler", "--host", "10.201.7.1", "--port", str(PORT), "--no-dashboard"
        )
        for host in (0, 1):
            hosts.start(host, *dask, "--host", f"10.201.7.{host + 1}", "--local-directory", str(tmp_path / str(host)))
        program = [f"tcp://10.201.7.1:{PORT}", str(tmp_path)]
        client = Asked(
            hosts.start(0, "-c", CLIENT, str(maze.path), *program, stdin=subprocess.PIPE, stdout=subprocess.PIPE),
            tmp_path,
        )

        client.solve("across", discount=0.99, epsilon=1e-6, worker_timeout=PATIENCE)
        across = client.ends()
        assert across["outcome"] == "proved"
        assert [lost for _, lost, _, _ in across["workers"]] == [False, False]
        assert [partitions for _, _, partitions, _ in across["workers"]] == [8, 8]
        check(tmp_path / "across.npy", across, whole)

        client.solve("cut", waits=True, discount=0.999, epsilon=1e-6, worker_timeout=10.0)
        while "bounded" not in client.says():
            pass
        hosts.link("down")
        client.go_on()
        while "is lost" not in client.says().get("note", ""):
            pass
        hosts.link("up")
        cut = client.ends()
        assert cut["outcome"] == "proved"
        assert True in [lost for _, lost, _, _ in cut["workers"]]
        assert sum(partitions for _, lost, partitions, _ in cut["workers"] if not lost) == 16
        check(tmp_path / "cut.npy", cut, ooc_mdp.solve(maze, 0.999, device="cpu", cache="100%", epsilon=1e-6))

        client.solve("healed", discount=0.99, epsilon=1e-6, worker_timeout=PATIENCE)
        healed = client.ends()
        assert healed["outcome"] == "proved"
        assert [partitions for _, lost, partitions, _ in healed["workers"] if not lost] == [8, 8]
        assert all(backups > 0 for _, _, _, backups in healed["workers"])
        check(tmp_path / "healed.npy", healed, whole)


def check(values: Path, reported: dict[str, Any], whole: ooc_mdp.Solution) -> None:
    """Both proved errors hold."""
    assert float(np.abs(np.load(values) - whole.values).max()) <= reported["error"] + whole.error_bound
