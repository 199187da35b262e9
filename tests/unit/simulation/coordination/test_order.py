"""Random requests of several sessions under faults: writes have one order, reads do not go back, watches fire first.

The order is that in which the leader applied the writes; a model of the tree replays it, and has each read respond from
the state that the session's server had.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from random import Random

import pytest

from kbroker.coordination.interface import (
    ANY_VERSION,
    BadVersion,
    Check,
    CoordinationError,
    Create,
    Delete,
    Node,
    NodeExists,
    NoNode,
    NotEmpty,
    Op,
    SessionExpired,
    Set,
    Unavailable,
    WatchEvent,
)
from kbroker.simulation.coordination.server import OperationRequest, Result
from kbroker.simulation.coordination.service import WRITES, ServiceSession, SimCoordination
from kbroker.simulation.coordination.session import SimSession
from kbroker.simulation.runtime.host_loop import HostLoop
from kbroker.simulation.runtime.loop import SimLoop
from tests.sampling import third_of

PATHS = ["/a", "/b", "/a/x", "/a/y", "/b/x"]
HOSTS = ["one", "two", "three"]
SECONDS = 100.0


@dataclass
class ModelNode:
    data: bytes
    owner: int
    version: int = 0


class Model:
    """The tree, written independently of the service."""

    def __init__(self) -> None:
        self.nodes: dict[str, ModelNode] = {}

    def children(self, path: str) -> list[str]:
        return sorted(each[len(path) + 1 :] for each in self.nodes if each.rpartition("/")[0] == path)

    def multi(self, ops: list[Op], session: int) -> None:
        saved = {path: ModelNode(node.data, node.owner, node.version) for path, node in self.nodes.items()}
        try:
            for op in ops:
                self._change(op, session)
        except CoordinationError:
            self.nodes = saved
            raise

    def _change(self, op: Op, session: int) -> None:
        if isinstance(op, Create):
            if op.path in self.nodes:
                raise NodeExists
            parent = self.nodes.get(op.path.rpartition("/")[0], ModelNode(b"", 0 if op.path.count("/") == 1 else -1))
            if parent.owner:
                raise NoNode
            self.nodes[op.path] = ModelNode(op.data, session if op.ephemeral else 0)
            return
        node = self.nodes.get(op.path)
        if node is None:
            raise NoNode
        if op.version not in (ANY_VERSION, node.version):
            raise BadVersion
        if isinstance(op, Set):
            node.data, node.version = op.data, node.version + 1
        elif isinstance(op, Delete):
            if self.children(op.path):
                raise NotEmpty
            del self.nodes[op.path]

    def respond(self, request: OperationRequest, session: int) -> Result:
        node = self.nodes.get(request.path)
        if request.kind == "exists":
            return None if node is None else node.version
        if request.kind in ("multi", "set"):
            self.multi(list(request.ops), session)
            return self.nodes[request.path].version if request.kind == "set" else None
        if node is None:
            raise NoNode
        return self.children(request.path) if request.kind == "children" else Node(node.data, node.version, node.owner)


class RecordingService(SimCoordination):
    """Records what it applies, in order. `seen`: the number of transactions that a response was produced after."""

    def __init__(self, loop: SimLoop, random: Random) -> None:
        super().__init__(loop, random)
        self.writes: list[tuple[OperationRequest | None, int]] = []
        self.reads: list[tuple[OperationRequest, int]] = []
        self.applied_at: dict[int, float] = {}
        self.seen: dict[int, int] = {}

    def _execute(self, session: ServiceSession, request: OperationRequest) -> Result:
        assert id(request) not in self.applied_at, "applied twice"
        self.applied_at[id(request)] = self._loop.time()
        if request.kind in WRITES:
            self.writes.append((request, session.number))
        elif request.kind != "close":
            self.reads.append((request, session.server.applied))
        try:
            return super()._execute(session, request)
        finally:
            is_read = request.kind in ("get", "exists", "children")
            self.seen[id(request)] = session.server.applied if is_read else len(self._transactions)

    def _end_session(self, session: ServiceSession) -> None:
        if not session.over:
            self.writes.append((None, session.number))
        super()._end_session(session)


@dataclass
class Call:
    request: OperationRequest
    started: float
    ended: float = 0.0
    result: Result = None
    error: CoordinationError | None = None


@dataclass
class Program:
    """Sends random requests, some with watches, and starts a new session when one has expired."""

    service: RecordingService
    loop: HostLoop
    random: Random
    calls: list[Call] = field(default_factory=list)
    events: int = 0
    # The nodes under a watch, as they were when it was set.
    watched: dict[str, Node | None] = field(default_factory=dict)

    async def run(self) -> None:
        session = self.service.session(self.loop, self.loop.host)
        while self.loop.time() < SECONDS:
            try:
                await self.call(session)
            except SessionExpired:
                session = self.service.session(self.loop, self.loop.host)
                self.watched.clear()
            await asyncio.sleep(self.random.choice((0, 0.001, 0.3)))

    async def call(self, session: SimSession) -> None:
        random, path = self.random, self.random.choice(PATHS)
        kind = random.choice(("get", "get", "exists", "children", "set", "multi", "multi", "sync"))
        watch = self.on_event if kind == "get" and random.random() < 0.5 else None
        ops = self.ops() if kind == "multi" else [Set(path, self.data(), self.version())] if kind == "set" else []
        call = Call(session._send(kind, path if kind != "multi" else "", ops, watch), self.loop.time())
        self.calls.append(call)
        try:
            call.result = await call.request.response
            if isinstance(call.result, Node):
                self.check_order(path, call.result)
                if watch is not None:
                    self.watched[path] = call.result
        except CoordinationError as error:
            call.error = error
            if isinstance(error, NoNode) and kind == "get":
                self.check_order(path, None)
            if isinstance(error, SessionExpired):
                raise
        finally:
            call.ended = self.loop.time()

    def check_order(self, path: str, node: Node | None) -> None:
        if path in self.watched:
            assert node == self.watched[path], "new data before the watch event"

    def on_event(self, event: WatchEvent) -> None:
        self.events += 1
        self.watched.pop(event.path, None)

    def ops(self) -> list[Op]:
        return [self.op(self.random.choice(PATHS)) for _ in range(self.random.choice((1, 1, 2, 3)))]

    def op(self, path: str) -> Op:
        choices: tuple[Op, ...] = (
            Create(path, self.data(), self.random.random() < 0.5),
            Create(path, self.data()),
            Set(path, self.data(), self.version()),
            Delete(path, self.version()),
            Check(path, self.random.randrange(3)),
        )
        return self.random.choice(choices)

    def data(self) -> bytes:
        return self.random.randbytes(8)

    def version(self) -> int:
        return self.random.choice((ANY_VERSION, ANY_VERSION, 0, 1))


async def inject_faults(service: RecordingService, hosts: list[HostLoop], random: Random) -> None:
    loop = service._loop
    while loop.time() <= SECONDS:
        cut = partial(service.cut, random.choice(HOSTS))
        fault, *arguments = random.choice(
            [
                (cut,),
                (partial(cut, requests=False),),
                (partial(cut, responses=False),),
                (service.heal, random.choice(HOSTS)),
                (service.heal_all,),
                (service.stop,),
                (service.start,),
                (random.choice(hosts).pause,),
                (setattr, service, "delay_s", random.choice(((0, 0.001), (0, 0.1), (1, 5)))),
                (service.expire, service.sessions()[-1]) if service.sessions() else (service.heal_all,),
            ]
        )
        fault(*arguments)
        await asyncio.sleep(random.uniform(0, 5))
        if random.random() < 0.4 or loop.time() > SECONDS:
            service.heal_all()
            service.start()
            service.delay_s = (0, 0.001)
            for host in hosts:
                if host.paused:
                    host.resume()
            await asyncio.sleep(random.uniform(0, 20))


def run(seed: int) -> tuple[RecordingService, list[Program]]:
    loop = SimLoop(seed)
    service = RecordingService(loop, Random(f"{seed}/service"))
    hosts = [HostLoop(loop, name, Random(f"{seed}/{name}")) for name in HOSTS]
    programs = [Program(service, host, Random(f"{seed}/{host.host}/calls")) for host in hosts]

    async def run_all() -> None:
        await asyncio.gather(
            inject_faults(service, hosts, Random(f"{seed}/faults")),
            *(host.run(program.run()) for host, program in zip(hosts, programs, strict=True)),
        )

    loop.run_until_complete(asyncio.wait_for(run_all(), SECONDS + 60))
    loop.close()
    return service, programs


def check(service: RecordingService, programs: list[Program]) -> int:
    """Compare the responses with those of the model; return their number."""
    expected = expected_responses(service)
    responses = 0
    for program in programs:
        seen = 0
        for call in program.calls:
            applied_at = service.applied_at.get(id(call.request))
            assert applied_at is None or call.started <= applied_at
            if isinstance(call.error, SessionExpired):
                seen = 0
            elif not isinstance(call.error, Unavailable):
                assert applied_at is not None
                assert applied_at <= call.ended
                if call.request.kind != "sync":
                    error = None if call.error is None else type(call.error)
                    assert (call.result, error) == expected[id(call.request)]
                assert service.seen[id(call.request)] >= seen, "the session has seen later transactions"
                seen = service.seen[id(call.request)]
                responses += 1
    return responses


def expected_responses(service: RecordingService) -> dict[int, tuple[Result, type[CoordinationError] | None]]:
    """Return the result and the error of each request that was applied, by the id of the request."""
    model, transactions = Model(), 0
    reads = deque(sorted(service.reads, key=lambda read: read[1]))
    expected: dict[int, tuple[Result, type[CoordinationError] | None]] = {}

    def respond(request: OperationRequest, session: int) -> None:
        try:
            expected[id(request)] = model.respond(request, session), None
        except CoordinationError as error:
            expected[id(request)] = None, type(error)

    for write, session in [*service.writes, (None, 0)]:
        while reads and reads[0][1] == transactions:
            respond(reads.popleft()[0], 0)
        if write is None:
            owned = [path for path, node in model.nodes.items() if node.owner == session and session]
            model.multi([Delete(path) for path in owned], session)
            transactions += 1
        else:
            respond(write, session)
            transactions += expected[id(write)][1] is None
    assert not reads
    return expected


@pytest.mark.parametrize("seed", third_of(range(8)))
def test_responses_match_one_order(seed):
    service, programs = run(seed)
    assert check(service, programs) > 100
    assert all(program.events for program in programs)
    errors = {type(call.error).__name__ for program in programs for call in program.calls}
    assert {"NoneType", "NoNode", "BadVersion", "NodeExists", "Unavailable"} <= errors


def test_the_check_detects_a_wrong_response():
    service, programs = run(3)
    call = next(call for call in programs[0].calls if isinstance(call.result, Node))
    assert isinstance(call.result, Node)
    call.result = call.result._replace(version=call.result.version + 1)
    with pytest.raises(AssertionError):
        check(service, programs)
