"""A solver on a Dask worker: the worker's plugin brings messages in, its connections carry them out.

Solvers run as one long task each, so that the scheduler knows that the worker is busy. Their messages do not pass the
scheduler: they go from worker to worker over the connections that Dask itself uses (and encrypts, where it is told to).
"""

from __future__ import annotations

import asyncio
import os
import platform
import socket
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from distributed import Worker, get_worker
from distributed.diagnostics.plugin import WorkerPlugin
from distributed.protocol.serialize import Serialize, to_serialize

from ooc_mdp.distributed.mailbox import Mailbox, Request
from ooc_mdp.distributed.messages import SLOWEST, Status, Subscribe, Update, Values
from ooc_mdp.distributed.remote_memory import Loan, may_borrow
from ooc_mdp.distributed.worker import SolverOptions, solve_share
from ooc_mdp.runtime.memory_plan import MemoryPlan

__all__ = ["OPERATION", "SolverPlugin", "describe", "open_mailbox", "run_solver", "unwrapped"]

OPERATION = "ooc_mdp"
"""Name of the handler that workers have for us."""
_SEND_SECONDS = 10.0
"""After which a message counts as lost, if it is small."""
_LOANS = 2
"""That a coordinator reads at the same time: a copy, and what a solver gives up meanwhile."""
_LOAN_SECONDS = 60.0
"""For which a loan outlives its solver, since the coordinator may be reading it yet."""
_METRICS: dict[str, Callable[[Status], float]] = {
    "ooc-mdp hit rate": lambda s: s.statistics.hit_rate,
    "ooc-mdp loads": lambda s: s.statistics.loads,
    "ooc-mdp MiB read": lambda s: s.statistics.bytes_read / 2**20,
    "ooc-mdp dirty": lambda s: s.dirty,
    "ooc-mdp idle s": lambda s: s.idle_seconds,
    "ooc-mdp messages": lambda s: s.messages,
}
"""Columns of the dashboard's table of workers."""


class SolverPlugin(WorkerPlugin):
    """Gives a worker the handler, and its row in the dashboard the figures of its solver."""

    name = OPERATION
    idempotent = True
    """A solve that begins leaves the plugin, and with it the mailboxes of solves that run already, as it is."""

    def setup(self, worker: Worker) -> None:
        """Dask calls it on the worker."""
        self._mailboxes: dict[str, Mailbox] = {}
        self._loans: dict[str, dict[int, Loan]] = {}
        """Of each run by the number of the command."""
        worker.handlers[OPERATION] = self.handle
        for title, figure in _METRICS.items():
            worker.metrics[title] = partial(self._figure, figure)

    def teardown(self, worker: Worker) -> None:
        """The worker closes: its solvers end."""
        for mailbox in self._mailboxes.values():
            mailbox.expel()

    def _figure(self, figure: Callable[[Status], float], worker: Worker) -> float:
        return float(sum(figure(mailbox.look()) for mailbox in self._mailboxes.values()))

    def open(self, run: str, number: int) -> None:
        """Make a mailbox for a solver of a run; messages that come before the solver does wait in it."""
        self._mailboxes.setdefault(run, Mailbox(asyncio.get_running_loop(), number))

    def mailbox(self, run: str) -> Mailbox | None:
        """The mailbox of a run, if it was opened."""
        return self._mailboxes.get(run)

    def close(self, run: str, number: int) -> None:
        """The run's solver of that number has ended."""
        mailbox = self._mailboxes.get(run)
        if mailbox is not None and mailbox.number == number:
            del self._mailboxes[run]
            if run in self._loans:
                mailbox.loop.call_later(_LOAN_SECONDS, self._loans.pop, run, None)

    async def handle(self, run: str, verb: str, argument: Any = None) -> Any:
        """What other workers and the coordinator ask; they get the answer's serialised form.

        The answer to a command from another process of this machine is lent where it is large, until it is given back:
        "give back" is answered by True, or the whole answer if asked for, and by None where the loan has ended.
        """
        mailbox = self._mailboxes.get(run)
        if mailbox is None:
            return "unknown"
        if verb == "deliver":
            mailbox.put(unwrapped(argument))
            return "taken"
        if verb == "status":
            return to_serialize(await mailbox.changed(*unwrapped(argument)))
        if verb == "expel":
            mailbox.expel()
            if not mailbox.look().begun:  # nobody else will
                self.close(run, mailbox.number)
            return "expelled"
        if verb == "post":
            mailbox.put(Request(unwrapped(argument)))
            return "taken"
        if verb == "give back":
            number, whole = unwrapped(argument)
            loan = self._loans.get(run, {}).pop(number, None)
            return to_serialize(None if loan is None else loan.answer if whole else True)
        command, asker = unwrapped(argument)
        request = Request(command)
        mailbox.put(request)
        answer = await asyncio.wrap_future(request.answer)
        if isinstance(answer, Values) and may_borrow(asker):
            loan = Loan(answer)
            if loan.worth_while:
                loans = self._loans.setdefault(run, {})
                loans[command.number] = loan
                if len(loans) > _LOANS:
                    del loans[min(loans)]
                return to_serialize(loan.lent())
        return to_serialize(answer)


def unwrapped(message: Any) -> Any:
    """What was sent: between workers of one process it arrives as it was wrapped for sending."""
    return message.data if isinstance(message, Serialize) else message


def open_mailbox(run: str, numbers: dict[str, int], dask_worker: Worker) -> None:
    """On a worker: be ready for messages to the solver whose number stands beside the worker's address."""
    plugin = dask_worker.plugins[OPERATION]
    assert isinstance(plugin, SolverPlugin)  # the cluster was made ready
    plugin.open(run, numbers[dask_worker.address])


def run_solver(run: str, asked: SolverOptions) -> tuple[str, MemoryPlan | None]:
    """The task: solve a share until the coordinator ends it.

    Returns
    -------
    Why it ended, and what memory it had planned.
    """
    worker = get_worker()
    plugin = worker.plugins[OPERATION]
    assert isinstance(plugin, SolverPlugin)  # the cluster was made ready
    mailbox = plugin.mailbox(run)
    if mailbox is None or mailbox.number != asked.number:
        return "nobody waits for it: it begins late, or again on a worker that has started anew", None
    plans: list[MemoryPlan] = []

    def send(address: str, message: Subscribe | Update, delivered: Any) -> None:
        asyncio.run_coroutine_threadsafe(_deliver(worker, run, address, message), mailbox.loop).add_done_callback(
            lambda done: delivered(_went_well(done))
        )

    try:
        return solve_share(asked, mailbox, send, plans.append), plans[0] if plans else None
    finally:
        mailbox.loop.call_soon_threadsafe(plugin.close, run, asked.number)


def _went_well(done: Future[bool]) -> bool:
    return not done.cancelled() and done.exception() is None and done.result()


async def _deliver(worker: Worker, run: str, address: str, message: Subscribe | Update) -> bool:
    """Whether the message is in the mailbox of the solver at the address."""
    peer = worker.rpc(address)
    asked = getattr(peer, OPERATION)(run=run, verb="deliver", argument=to_serialize(message))
    return bool(await asyncio.wait_for(asked, _SEND_SECONDS + message.nbytes / SLOWEST) == "taken")


def describe(packages: tuple[str, ...], dask_worker: Worker | None = None) -> dict[str, Any]:
    """Versions and devices of the process that this runs in."""
    from importlib.metadata import PackageNotFoundError, version

    from ooc_mdp.backends.cuda.device import device_count

    def version_of(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return "none"

    return {
        "versions": {"python": platform.python_version(), **{p: version_of(p) for p in packages}},
        "host": socket.gethostname(),
        "cores": os.cpu_count() or 1,
        "devices": device_count(),
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }
