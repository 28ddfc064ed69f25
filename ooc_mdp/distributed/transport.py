"""A solver on a Dask worker: the worker's plugin brings messages in, its connections carry them out.

Solvers run as one long task each, so that the scheduler knows that the worker is busy. Their messages do not pass the
scheduler: they go from worker to worker over the connections that Dask itself uses (and encrypts, where it is told to).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import partial
from typing import Any

from distributed import Client, KilledWorker, Worker, get_worker, wait
from distributed.comm.core import CommClosedError
from distributed.diagnostics.plugin import WorkerPlugin
from distributed.protocol.serialize import Serialize, to_serialize

from ooc_mdp.distributed.cluster import PACKAGES, WorkerInfo, describe, worker_info
from ooc_mdp.distributed.mailbox import Mailbox, Request
from ooc_mdp.distributed.messages import SLOWEST, Status, Subscribe, Update, Values
from ooc_mdp.distributed.remote_memory import (
    ExposedArrays,
    RemoteAnswer,
    RemoteHandle,
    attach,
    can_attach,
    this_process,
)
from ooc_mdp.distributed.worker import WorkerOptions, run_worker
from ooc_mdp.errors import OptionsError
from ooc_mdp.runtime.memory_plan import MemoryPlan

__all__ = ["OPERATION", "DaskTransport", "SolverPlugin", "install_plugin", "open_mailbox", "run_solver", "unwrapped"]

OPERATION = "ooc_mdp"
"""Name of the handler that workers have for us."""
_SEND_SECONDS = 10.0
"""After which a message counts as lost, if it is small."""
_LOANS = 2
"""That a coordinator reads at the same time: a copy, and what a solver gives up meanwhile."""
_LOAN_SECONDS = 60.0
"""For which a loan outlives its solver, since the coordinator may be reading it yet."""
_PROBE_SECONDS = 3.0
_ATTEMPTS = 5
_END_SECONDS = 10.0
"""In which solvers end once they are told to."""
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
        self._loans: dict[str, dict[int, ExposedArrays]] = {}
        """Of each run by the number of the command."""
        worker.handlers[OPERATION] = self.handle
        for title, figure in _METRICS.items():
            worker.metrics[title] = partial(self._figure, figure)

    def teardown(self, worker: Worker) -> None:
        """The worker closes: its solvers end."""
        for mailbox in self._mailboxes.values():
            mailbox.evict()

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
            mailbox.evict()
            if not mailbox.look().started:  # nobody else will
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
        if isinstance(answer, Values) and can_attach(asker):
            loan = ExposedArrays(answer)
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


def run_solver(run: str, asked: WorkerOptions) -> tuple[str, MemoryPlan | None]:
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
        return run_worker(asked, mailbox, send, plans.append), plans[0] if plans else None
    finally:
        mailbox.loop.call_soon_threadsafe(plugin.close, run, asked.number)


def _went_well(done: Future[bool]) -> bool:
    return not done.cancelled() and done.exception() is None and done.result()


async def _deliver(worker: Worker, run: str, address: str, message: Subscribe | Update) -> bool:
    """Whether the message is in the mailbox of the solver at the address."""
    peer = worker.rpc(address)
    asked = getattr(peer, OPERATION)(run=run, verb="deliver", argument=to_serialize(message))
    return bool(await asyncio.wait_for(asked, _SEND_SECONDS + message.nbytes / SLOWEST) == "taken")


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


class DaskTransport:
    """Reaches solvers over a client's connections, straight to the workers where that is possible.

    Parameters
    ----------
    run : name of the solve, which no other has.
    prepare : what the solver of a number is asked, on a worker; raises OptionsError where it cannot take part.
    forget : told of workers that are lost.
    """

    def __init__(
        self,
        client: Client,
        run: str,
        prepare: Callable[[int, WorkerInfo], WorkerOptions],
        forget: Callable[[WorkerInfo], None] = lambda _: None,
    ) -> None:
        self._client, self._run, self._prepare, self._forget = client, run, prepare, forget
        self.devices: dict[int, str] = {}
        """Of each solver."""
        self.hosts: dict[int, WorkerInfo] = {}
        """Where each solver is, or was."""
        self._gone: set[int] = set()
        self._refused: set[str] = set()
        """Addresses of workers that came later and cannot take part."""
        self._tasks: dict[int, Any] = {}
        self._direct = True
        self._borrows = True
        """Whether answers of this machine's processes may be copied from their memory."""

    def start(self, hosts: list[WorkerInfo]) -> None:
        """Start a solver on each worker."""
        asked = {k: self._prepare(k, host) for k, host in enumerate(hosts)}
        numbers = {host.address: k for k, host in enumerate(hosts)}
        self._client.run(open_mailbox, self._run, numbers, workers=list(numbers), on_error="ignore")
        for number, host in enumerate(hosts):
            self._submit(number, host, asked[number])
        self._direct = any(self._client.sync(self._answers, number) for number in asked)

    def _submit(self, number: int, host: WorkerInfo, asked: WorkerOptions) -> None:
        self.hosts[number], self.devices[number] = host, asked.options.device
        self._tasks[number] = self._client.submit(
            run_solver,
            self._run,
            asked,
            key=f"ooc-mdp-solver-{number}-{self._run}",
            workers=[host.address],
            allow_other_workers=False,
            pure=False,
            retries=0,
        )

    async def discover(self) -> list[int]:
        """Start solvers on workers that have come, or come back, since; their numbers."""
        try:
            present = await self._workers()
        except (OSError, TimeoutError):
            return []
        active = {host.address for k, host in self.hosts.items() if k not in self._gone}
        numbers = []
        for address in sorted(present - active - self._refused):
            earlier = [k for k, host in self.hosts.items() if host.address == address]
            if earlier and not await self._has_ended(earlier[-1]):
                continue
            found = await self._client.run(describe, PACKAGES, workers=[address], on_error="return")
            facts, number = found.get(address), len(self.hosts)
            try:
                if not isinstance(facts, dict) or (host := worker_info(address, facts)).differs:
                    raise OptionsError("it cannot run this version")
                asked = self._prepare(number, host)
            except OptionsError:
                self._refused.add(address)
                continue
            await self._client.run(open_mailbox, self._run, {address: number}, workers=[address], on_error="ignore")
            self._submit(number, host, asked)
            numbers.append(number)
        return numbers

    async def _has_ended(self, number: int) -> bool:
        """Whether a lost solver, whose worker is there again, has noticed that it is no longer needed."""
        try:
            return bool(await self.ask(number, "expel", None, _PROBE_SECONDS) == "unknown")
        except (OSError, TimeoutError):
            return False

    async def _workers(self) -> set[str]:
        """Addresses that the scheduler has."""
        scheduler: Any = self._client.scheduler
        found = await asyncio.wait_for(scheduler.identity(n_workers=-1), _PROBE_SECONDS)
        return set(found["workers"])

    def address(self, number: int) -> str:
        """Of a solver's worker."""
        return self.hosts[number].address

    async def _answers(self, number: int) -> bool:
        try:
            await self.ask(number, "status", (-1, 0.0), _PROBE_SECONDS)
        except (OSError, TimeoutError):
            return False
        return True

    async def ask(self, number: int, verb: str, argument: Any, timeout: float) -> Any:
        """The solver's answer, perhaps `Borrowed`; OSError or TimeoutError where there is none."""
        if verb != "command":
            return await self._ask(number, verb, argument, timeout)
        answer = await self._ask(number, verb, (argument, this_process() if self._borrows else None), timeout)
        if not isinstance(answer, RemoteHandle):
            return answer

        async def settle(copied: bool) -> Any:
            self._borrows = self._borrows and copied  # others come over the connection at once
            return await self._ask(number, "give back", (argument.number, not copied), timeout)

        return RemoteAnswer(attach(answer), settle)

    async def _ask(self, number: int, verb: str, argument: Any, timeout: float) -> Any:
        address = self.hosts[number].address
        message = {"run": self._run, "verb": verb, "argument": to_serialize(argument)}
        waiting = timeout + (argument[1] if verb == "status" else 0.0)
        try:
            if self._direct:
                asked = getattr(self._client.rpc(address), OPERATION)(**message)
            else:
                scheduler: Any = self._client.scheduler
                asked = scheduler.proxy(msg={"op": OPERATION, **message}, worker=address)
            return unwrapped(await asyncio.wait_for(asked, waiting))
        except CommClosedError as error:
            raise OSError(str(error)) from error

    async def lost(self, number: int) -> bool:
        """Whether the scheduler has lost the worker, or cannot be asked any more."""
        if self.connection_error() is not None:
            return True
        try:
            return self.hosts[number].address not in await self._workers()
        except (OSError, TimeoutError):
            return False  # nothing is known: patience decides

    def failure(self, number: int) -> BaseException | None:
        """What the solver's task raised, unless its worker is lost."""
        task = self._tasks[number]
        if task.status != "error":
            return None
        error: BaseException = task._state.exception
        return None if isinstance(error, KilledWorker) else error

    async def release(self, number: int) -> None:
        """Let the task go, and tell a solver that is alive after all that nobody needs it."""
        self._gone.add(number)
        self._forget(self.hosts[number])
        with suppress(OSError, TimeoutError):
            self._tasks[number].release()
            await self.ask(number, "expel", None, _PROBE_SECONDS)

    def connection_error(self) -> str | None:
        """Why the cluster cannot be reached."""
        if self._client.status in ("running", "connecting"):
            return None
        return "the connection to the Dask scheduler is lost"

    def finish(self, numbers: list[int]) -> list[MemoryPlan]:
        """Wait for solvers that were told that it is over, save those dismissed; what memory they had planned."""
        tasks = [self._tasks[number] for number in numbers if number not in self._gone]
        with suppress(TimeoutError), self._client.as_current():
            wait(tasks, timeout=_END_SECONDS)
        plans = []
        for task in tasks:
            if task.status == "finished":
                # The worker may have gone since: Dask waits for one at its address then.
                with suppress(OSError, TimeoutError, CancelledError, KilledWorker):
                    plans.append(task.result(timeout=_PROBE_SECONDS)[1])
        return [plan for plan in plans if plan is not None]
