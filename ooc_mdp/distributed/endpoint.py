"""The worker's side of the network: a Dask plugin that receives messages, and the tasks of a solve.

Solvers run as one long task each, so that the scheduler knows that the worker is busy. Their messages do not pass
through the scheduler: they go from worker to worker over the connections that Dask itself uses (and encrypts, where
configured).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from typing import Any

from distributed import Client, Worker, get_worker, secede
from distributed.comm.core import CommClosedError
from distributed.diagnostics.plugin import WorkerPlugin
from distributed.protocol.serialize import Serialize, to_serialize

from ooc_mdp.distributed.mailbox import Mailbox, Request
from ooc_mdp.distributed.messages import (
    MIN_BANDWIDTH,
    Accepted,
    CommandRequest,
    DeliverRequest,
    EvictRequest,
    NoSuchRun,
    PostRequest,
    Status,
    StatusRequest,
    Subscribe,
    Update,
    Values,
    WorkerRequest,
)
from ooc_mdp.distributed.staging import NodeStaging
from ooc_mdp.distributed.worker import StoreLocation, WorkerOptions, run_worker
from ooc_mdp.runtime.memory_plan import MemoryPlan

__all__ = ["OPERATION", "SolverPlugin", "install_plugin", "open_mailbox", "run_solver", "stage_partitions", "unwrapped"]

OPERATION = "ooc_mdp"
"""Name of the plugin, and of the operation that workers answer."""
_SEND_SECONDS = 10.0
"""After which a small message counts as lost."""
_ATTEMPTS = 5
_METRICS: dict[str, Callable[[Status], float]] = {
    "ooc-mdp hit rate": lambda s: s.statistics.hit_rate,
    "ooc-mdp loads": lambda s: s.statistics.loads,
    "ooc-mdp MiB read": lambda s: s.statistics.bytes_read / 2**20,
    "ooc-mdp MiB staged": lambda s: s.staging.bytes_staged / 2**20,
    "ooc-mdp MiB read staged": lambda s: s.staging.bytes_read_staged / 2**20,
    "ooc-mdp MiB read shared": lambda s: s.staging.bytes_read_shared / 2**20,
    "ooc-mdp dirty": lambda s: s.dirty,
    "ooc-mdp idle s": lambda s: s.idle_seconds,
    "ooc-mdp messages": lambda s: s.messages,
}
"""Columns of the dashboard's table of workers."""


class SolverPlugin(WorkerPlugin):
    """Answers requests to a worker, and adds the figures of its solvers to the dashboard."""

    name = OPERATION
    idempotent = True
    """A new solve does not replace the plugin, which has the mailboxes of solves that run already."""

    def setup(self, worker: Worker) -> None:
        """Register handler and metrics; Dask calls it on the worker."""
        self._mailboxes: dict[str, Mailbox] = {}
        self._staging: dict[str, NodeStaging] = {}
        """The staged copies of each run that has some."""
        self._handlers: dict[type[WorkerRequest], Callable[[str, Mailbox, Any], Coroutine[Any, Any, object]]] = {
            StatusRequest: self._status,
            PostRequest: self._post,
            CommandRequest: self._command,
            DeliverRequest: self._deliver,
            EvictRequest: self._evict,
        }
        worker.handlers[OPERATION] = self.handle
        for title, figure in _METRICS.items():
            worker.metrics[title] = partial(self._figure, figure)

    def teardown(self, worker: Worker) -> None:
        """End the solvers and remove their staged copies; Dask calls it when the worker closes."""
        for mailbox in self._mailboxes.values():
            mailbox.evict()
        for staging in self._staging.values():
            staging.close()

    def _figure(self, figure: Callable[[Status], float], worker: Worker) -> float:
        return float(sum(figure(mailbox.status()) for mailbox in self._mailboxes.values()))

    def open(self, run: str, number: int, stage: str | None = None) -> None:
        """Make a mailbox for a worker of a run, in which messages wait that arrive before its solver starts.

        Parameters
        ----------
        stage : directory of the store's copies on this node; None for a run that does not stage.
        """
        if run not in self._mailboxes:
            self._mailboxes[run] = Mailbox(asyncio.get_running_loop(), number)
            if stage is not None:
                self._staging[run] = NodeStaging(stage)

    def mailbox(self, run: str) -> Mailbox | None:
        """Return the mailbox of a run, if it is open."""
        return self._mailboxes.get(run)

    def staging(self, run: str) -> NodeStaging | None:
        """Return the staging of a run that stages and has not ended."""
        return self._staging.get(run)

    def close(self, run: str, number: int) -> None:
        """Close the mailbox of a worker whose solver has ended."""
        mailbox = self._mailboxes.get(run)
        if mailbox is not None and mailbox.number == number:
            del self._mailboxes[run]
            if run in self._staging:
                mailbox.loop.run_in_executor(None, self._staging.pop(run).close)

    async def handle(self, run: str, request: Any) -> Any:
        """Answer a `WorkerRequest` of the coordinator or another worker, in serialised form."""
        request = unwrapped(request)
        mailbox = self._mailboxes.get(run)
        if mailbox is None:
            return to_serialize(NoSuchRun())
        return to_serialize(await self._handlers[type(request)](run, mailbox, request))

    async def _status(self, run: str, mailbox: Mailbox, request: StatusRequest) -> Status:
        return await mailbox.wait_for_change(request.seen, request.wait)

    async def _post(self, run: str, mailbox: Mailbox, request: PostRequest) -> Accepted:
        mailbox.put(Request(request.command))
        return Accepted()

    async def _deliver(self, run: str, mailbox: Mailbox, request: DeliverRequest) -> Accepted:
        mailbox.put(request.message)
        return Accepted()

    async def _evict(self, run: str, mailbox: Mailbox, request: EvictRequest) -> Accepted:
        mailbox.evict()
        if not mailbox.status().started:  # otherwise its solver closes it
            self.close(run, mailbox.number)
        return Accepted()

    async def _command(self, run: str, mailbox: Mailbox, request: CommandRequest) -> Values | None:
        waiting = Request(request.command)
        mailbox.put(waiting)
        answer: Values | None = await asyncio.wrap_future(waiting.answer)
        return answer


def unwrapped(message: Any) -> Any:
    """Return what was sent: between workers of one process it arrives as it was wrapped for sending."""
    return message.data if isinstance(message, Serialize) else message


def open_mailbox(run: str, numbers: dict[str, int], stage: str | None, dask_worker: Worker) -> None:
    """Open the mailbox of a worker, whose number is given by its address; runs on the worker."""
    _plugin_of(dask_worker).open(run, numbers[dask_worker.address], stage)


def _plugin_of(worker: Worker) -> SolverPlugin:
    plugin = worker.plugins[OPERATION]
    assert isinstance(plugin, SolverPlugin)  # installed by `install_plugin`
    return plugin


def stage_partitions(run: str, location: StoreLocation, partitions: list[int]) -> str | None:
    """The task that copies partitions to the worker's node; returns a warning where it ended early.

    It leaves the worker's pool of threads, so that the solver begins meanwhile where there is one thread only.
    """
    staging = _plugin_of(get_worker()).staging(run)
    if staging is None:
        return None
    secede()
    return staging.copy(location.open_store(), partitions)


def run_solver(run: str, asked: WorkerOptions) -> tuple[str, MemoryPlan | None]:
    """The task that solves a worker's shard until the coordinator stops it.

    Returns
    -------
    The reason for its end, and the planned memory.
    """
    worker = get_worker()
    plugin = _plugin_of(worker)
    mailbox, staging = plugin.mailbox(run), plugin.staging(run)
    if mailbox is None or mailbox.number != asked.number:
        return "it starts late, or again on a restarted worker: the others continue without it", None
    plans: list[MemoryPlan] = []

    def send(address: str, message: Subscribe | Update, delivered: Any) -> None:
        asyncio.run_coroutine_threadsafe(_deliver(worker, run, address, message), mailbox.loop).add_done_callback(
            lambda done: delivered(_is_delivered(done))
        )

    try:
        return run_worker(asked, mailbox, send, plans.append, staging), plans[0] if plans else None
    finally:
        if staging is not None:
            staging.close()
        mailbox.loop.call_soon_threadsafe(plugin.close, run, asked.number)


def _is_delivered(done: Future[bool]) -> bool:
    return not done.cancelled() and done.exception() is None and done.result()


async def _deliver(worker: Worker, run: str, address: str, message: Subscribe | Update) -> bool:
    """Deliver a message to the mailbox at an address; return whether it was received."""
    peer = worker.rpc(address)
    asked = getattr(peer, OPERATION)(run=run, request=to_serialize(DeliverRequest(message)))
    return isinstance(
        unwrapped(await asyncio.wait_for(asked, _SEND_SECONDS + message.nbytes / MIN_BANDWIDTH)), Accepted
    )


def install_plugin(client: Client) -> None:
    """Install the plugin on all workers of a cluster."""
    for attempts_left in range(_ATTEMPTS - 1, -1, -1):
        try:
            client.register_plugin(SolverPlugin())
        except CommClosedError:  # a worker was lost meanwhile
            if not attempts_left:
                raise
        else:
            break
