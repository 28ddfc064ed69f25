"""A solver on a Dask worker: the worker's plugin brings messages in, its connections carry them out.

Solvers run as one long task each, so that the scheduler knows that the worker is busy. Their messages do not pass the
scheduler: they go from worker to worker over the connections that Dask itself uses (and encrypts,
where configured).
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
    SLOWEST,
    Accepted,
    CommandRequest,
    DeliverRequest,
    EvictRequest,
    NoSuchRun,
    PostRequest,
    ReleaseRequest,
    Status,
    StatusRequest,
    Subscribe,
    Update,
    Values,
    WorkerRequest,
)
from ooc_mdp.distributed.remote_memory import (
    ExposedArrays,
    RemoteHandle,
    can_attach,
)
from ooc_mdp.distributed.staging import NodeStaging
from ooc_mdp.distributed.worker import StoreLocation, WorkerOptions, run_worker
from ooc_mdp.runtime.memory_plan import MemoryPlan

__all__ = ["OPERATION", "SolverPlugin", "install_plugin", "open_mailbox", "run_solver", "stage_partitions", "unwrapped"]

OPERATION = "ooc_mdp"
"""Name of the handler that workers have for us."""
_SEND_SECONDS = 10.0
"""After which a message counts as lost, if it is small."""
_MAX_EXPOSED = 2
"""Answers that a coordinator reads at the same time: a snapshot, and partitions that are migrated meanwhile."""
_EXPOSED_SECONDS = 60.0
"""For which arrays stay exposed after their worker has ended, since the coordinator may still read them."""
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
    """Gives a worker the handler, and its row in the dashboard the figures of its solver."""

    name = OPERATION
    idempotent = True
    """A solve that begins leaves the plugin, and with it the mailboxes of solves that run already, as it is."""

    def setup(self, worker: Worker) -> None:
        """Dask calls it on the worker."""
        self._mailboxes: dict[str, Mailbox] = {}
        self._staging: dict[str, NodeStaging] = {}
        """Of runs that stage."""
        self._exposed: dict[str, dict[int, ExposedArrays]] = {}
        """Of each run by the number of the command."""
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
        """The worker closes: its solvers end, and their staged files are removed."""
        for mailbox in self._mailboxes.values():
            mailbox.evict()
        for staging in self._staging.values():
            staging.close()

    def _figure(self, figure: Callable[[Status], float], worker: Worker) -> float:
        return float(sum(figure(mailbox.look()) for mailbox in self._mailboxes.values()))

    def open(self, run: str, number: int, stage: str | None = None) -> None:
        """Make a mailbox for a solver of a run; messages that come before the solver does wait in it.

        Parameters
        ----------
        stage : directory of the store's copies on this node; None for a run that does not stage.
        """
        if run not in self._mailboxes:
            self._mailboxes[run] = Mailbox(asyncio.get_running_loop(), number)
            if stage is not None:
                self._staging[run] = NodeStaging(stage)

    def mailbox(self, run: str) -> Mailbox | None:
        """The mailbox of a run, if it was opened."""
        return self._mailboxes.get(run)

    def staging(self, run: str) -> NodeStaging | None:
        """Where a run stages on this node, if it does and has not ended."""
        return self._staging.get(run)

    def close(self, run: str, number: int) -> None:
        """The run's solver of that number has ended."""
        mailbox = self._mailboxes.get(run)
        if mailbox is not None and mailbox.number == number:
            del self._mailboxes[run]
            if run in self._staging:
                mailbox.loop.run_in_executor(None, self._staging.pop(run).close)
            if run in self._exposed:
                mailbox.loop.call_later(_EXPOSED_SECONDS, self._exposed.pop, run, None)

    async def handle(self, run: str, request: Any) -> Any:
        """Answer a `WorkerRequest` of the coordinator or another worker, in serialised form."""
        request = unwrapped(request)
        if isinstance(request, ReleaseRequest):  # arrays are kept for a while after the worker has ended
            return to_serialize(self._release(run, request))
        mailbox = self._mailboxes.get(run)
        if mailbox is None:
            return to_serialize(NoSuchRun())
        return to_serialize(await self._handlers[type(request)](run, mailbox, request))

    async def _status(self, run: str, mailbox: Mailbox, request: StatusRequest) -> Status:
        return await mailbox.changed(request.seen, request.wait)

    async def _post(self, run: str, mailbox: Mailbox, request: PostRequest) -> Accepted:
        mailbox.put(Request(request.command))
        return Accepted()

    async def _deliver(self, run: str, mailbox: Mailbox, request: DeliverRequest) -> Accepted:
        mailbox.put(request.message)
        return Accepted()

    async def _evict(self, run: str, mailbox: Mailbox, request: EvictRequest) -> Accepted:
        mailbox.evict()
        if not mailbox.look().started:  # nobody else closes it
            self.close(run, mailbox.number)
        return Accepted()

    async def _command(self, run: str, mailbox: Mailbox, request: CommandRequest) -> Values | RemoteHandle | None:
        waiting = Request(request.command)
        mailbox.put(waiting)
        answer: Values | None = await asyncio.wrap_future(waiting.answer)
        if isinstance(answer, Values) and can_attach(request.asker):
            exposed = ExposedArrays(answer)
            if exposed.worth_while:
                kept = self._exposed.setdefault(run, {})
                kept[request.command.number] = exposed
                if len(kept) > _MAX_EXPOSED:
                    del kept[min(kept)]
                return exposed.handle()
        return answer

    def _release(self, run: str, request: ReleaseRequest) -> Any:
        exposed = self._exposed.get(run, {}).pop(request.number, None)
        return None if exposed is None else exposed.answer if request.whole else True


def unwrapped(message: Any) -> Any:
    """What was sent: between workers of one process it arrives as it was wrapped for sending."""
    return message.data if isinstance(message, Serialize) else message


def open_mailbox(run: str, numbers: dict[str, int], stage: str | None, dask_worker: Worker) -> None:
    """On a worker: be ready for messages to the solver whose number stands beside the worker's address."""
    _plugin_of(dask_worker).open(run, numbers[dask_worker.address], stage)


def _plugin_of(worker: Worker) -> SolverPlugin:
    plugin = worker.plugins[OPERATION]
    assert isinstance(plugin, SolverPlugin)  # the cluster was made ready
    return plugin


def stage_partitions(run: str, location: StoreLocation, partitions: list[int]) -> str | None:
    """The task that copies partitions to the worker's node; returns a warning where it ended early.

    It leaves the worker's pool of threads, so that the solver begins meanwhile where there is one thread only.
    """
    staging = _plugin_of(get_worker()).staging(run)
    if staging is None:
        return None
    secede()
    return staging.copy(location.open(), partitions)


def run_solver(run: str, asked: WorkerOptions) -> tuple[str, MemoryPlan | None]:
    """The task: solve a share until the coordinator ends it.

    Returns
    -------
    Why it ended, and what memory it had planned.
    """
    worker = get_worker()
    plugin = _plugin_of(worker)
    mailbox, staging = plugin.mailbox(run), plugin.staging(run)
    if mailbox is None or mailbox.number != asked.number:
        return "nobody waits for it: it begins late, or again on a worker that has started anew", None
    plans: list[MemoryPlan] = []

    def send(address: str, message: Subscribe | Update, delivered: Any) -> None:
        asyncio.run_coroutine_threadsafe(_deliver(worker, run, address, message), mailbox.loop).add_done_callback(
            lambda done: delivered(_went_well(done))
        )

    try:
        return run_worker(asked, mailbox, send, plans.append, staging), plans[0] if plans else None
    finally:
        if staging is not None:
            staging.close()
        mailbox.loop.call_soon_threadsafe(plugin.close, run, asked.number)


def _went_well(done: Future[bool]) -> bool:
    return not done.cancelled() and done.exception() is None and done.result()


async def _deliver(worker: Worker, run: str, address: str, message: Subscribe | Update) -> bool:
    """Whether the message is in the mailbox of the solver at the address."""
    peer = worker.rpc(address)
    asked = getattr(peer, OPERATION)(run=run, request=to_serialize(DeliverRequest(message)))
    return isinstance(unwrapped(await asyncio.wait_for(asked, _SEND_SECONDS + message.nbytes / SLOWEST)), Accepted)


def install_plugin(client: Client) -> None:
    """Give the workers of a cluster the handler of requests."""
    for attempts_left in range(_ATTEMPTS - 1, -1, -1):
        try:
            client.register_plugin(SolverPlugin())
        except CommClosedError:  # a worker went away meanwhile
            if not attempts_left:
                raise
        else:
            break
