"""Random requests of several sessions under faults: every answer is what the one order in which the service has applied
them gives, and no session sees new data before it is told of the change."""

import asyncio
from dataclasses import dataclass, field
from random import Random

import pytest

from kbroker.metadata.store.coordination import (
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
from kbroker.simulation.coordination.messages import OperationRequest, Result
from kbroker.simulation.coordination.service import ServiceSession, SimCoordination
from kbroker.simulation.runtime.host_loop import HostLoop
from kbroker.simulation.runtime.loop import SimLoop

PATHS = ["/a", "/b", "/a/x", "/a/y", "/b/x"]
HOSTS = ["one", "two", "three"]
SECONDS = 100.0


@dataclass
class ModelNode:
    data: bytes
    owner: int
    version: int = 0


class Model:
    """The tree, told anew without a word of the service's."""

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

    def answer(self, request: OperationRequest, session: int) -> Result:
        node = self.nodes.get(request.path)
        if request.kind == "exists":
            return None if node is None else node.version
        if request.kind in ("multi", "set"):
            self.multi(list(request.ops), session)
            return self.nodes[request.path].version if request.kind == "set" else None
        if request.kind == "close":
            return None
        if node is None:
            raise NoNode
        return self.children(request.path) if request.kind == "children" else Node(node.data, node.version)


class Recording(SimCoordination):
    """Writes down what it applies, in its order."""

    def __init__(self, loop: SimLoop, random: Random) -> None:
        super().__init__(loop, random)
        self.applied: list[tuple[OperationRequest | None, int]] = []
        self.when: dict[int, float] = {}

    def _execute(self, session: ServiceSession, request: OperationRequest) -> Result:
        assert id(request) not in self.when, "applied twice"
        self.when[id(request)] = self._loop.time()
        if request.kind != "close":
            self.applied.append((request, session.number))
        return super()._execute(session, request)

    def _end_session(self, session: ServiceSession) -> None:
        if not session.over:
            self.applied.append((None, session.number))
        super()._end_session(session)


@dataclass
class Asked:
    request: OperationRequest
    began: float
    ended: float = 0.0
    result: Result = None
    error: CoordinationError | None = None


@dataclass
class Program:
    """Asks at random, with watches, and begins a new session when one is over."""

    service: Recording
    loop: HostLoop
    random: Random
    asked: list[Asked] = field(default_factory=list)
    events: int = 0
    watched: dict[str, Node | None] = field(default_factory=dict)

    async def run(self) -> None:
        session = self.service.session(self.loop, self.loop.host)
        while self.loop.time() < SECONDS:
            try:
                await self.ask(session)
            except SessionExpired:
                session = self.service.session(self.loop, self.loop.host)
                self.watched.clear()
            await asyncio.sleep(self.random.choice((0, 0.001, 0.3)))

    async def ask(self, session: object) -> None:
        random, path = self.random, self.random.choice(PATHS)
        kind = random.choice(("get", "get", "exists", "children", "set", "multi", "multi"))
        watch = self.see if kind == "get" and random.random() < 0.5 else None
        ops = self.ops() if kind == "multi" else [Set(path, self.data(), self.version())] if kind == "set" else []
        request = session._send(kind, path if kind != "multi" else "", ops, watch)  # type: ignore[attr-defined]
        asked = Asked(request, self.loop.time())
        self.asked.append(asked)
        try:
            asked.result = await request.response
            if kind == "get":
                self.check_order(path, asked.result)  # type: ignore[arg-type]
                if watch is not None:
                    self.watched[path] = asked.result  # type: ignore[assignment]
        except CoordinationError as error:
            asked.error = error
            if isinstance(error, NoNode) and kind == "get":
                self.check_order(path, None)
            if isinstance(error, SessionExpired):
                raise
        finally:
            asked.ended = self.loop.time()

    def check_order(self, path: str, now: Node | None) -> None:
        if path in self.watched:
            assert now == self.watched[path], "new data before the event"

    def see(self, event: WatchEvent) -> None:
        self.events += 1
        self.watched.pop(event.path, None)

    def ops(self) -> list[Op]:
        ops: list[Op] = []
        for _ in range(self.random.choice((1, 1, 2, 3))):
            path = self.random.choice(PATHS)
            ops.append(
                self.random.choice(
                    (
                        Create(path, self.data(), self.random.random() < 0.5),
                        Create(path, self.data()),
                        Set(path, self.data(), self.version()),
                        Delete(path, self.version()),
                        Check(path, self.random.randrange(3)),
                    )
                )
            )
        return ops

    def data(self) -> bytes:
        return self.random.randbytes(8)

    def version(self) -> int:
        return self.random.choice((ANY_VERSION, ANY_VERSION, 0, 1))


async def trouble(service: Recording, hosts: list[HostLoop], random: Random) -> None:
    loop = service._loop
    while loop.time() <= SECONDS:
        host = random.choice(HOSTS)
        act, *arguments = random.choice(
            [
                (service.cut, host),
                (lambda: service.cut(host, requests=False),),  # noqa: B023
                (lambda: service.cut(host, responses=False),),  # noqa: B023
                (service.heal, host),
                (service.heal_all,),
                (service.stop,),
                (service.start,),
                (random.choice(hosts).pause,),
                (setattr, service, "delay_s", random.choice(((0, 0.001), (0, 0.1), (1, 5)))),
                (service.expire, service.sessions()[-1]) if service.sessions() else (service.heal_all,),
            ]
        )
        act(*arguments)
        await asyncio.sleep(random.uniform(0, 5))
        if random.random() < 0.4 or loop.time() > SECONDS:
            service.heal_all()
            service.start()
            service.delay_s = (0, 0.001)
            for each in hosts:
                if each.paused:
                    each.resume()
            await asyncio.sleep(random.uniform(0, 20))


def run(seed: int) -> tuple[Recording, list[Program]]:
    loop = SimLoop(seed)
    service = Recording(loop, Random(f"{seed}/service"))
    hosts = [HostLoop(loop, name, Random(f"{seed}/{name}")) for name in HOSTS]
    programs = [Program(service, host, Random(f"{seed}/{host.host}/asks")) for host in hosts]

    async def whole() -> None:
        await asyncio.gather(
            trouble(service, hosts, Random(f"{seed}/trouble")),
            *(host.run(program.run()) for host, program in zip(hosts, programs, strict=True)),
        )

    loop.run_until_complete(asyncio.wait_for(whole(), SECONDS + 60))
    loop.close()
    return service, programs


def check(service: Recording, programs: list[Program]) -> int:
    """Replay what was applied on the model, and compare with what the programs were answered; gives how many were."""
    model = Model()
    expected: dict[int, tuple[Result, type[CoordinationError] | None]] = {}
    for request, session in service.applied:
        if request is None:
            owned = [path for path, node in model.nodes.items() if node.owner == session]
            model.multi([Delete(path) for path in owned], session)
            continue
        try:
            expected[id(request)] = model.answer(request, session), None
        except CoordinationError as error:
            expected[id(request)] = None, type(error)
    answered = 0
    for asked in (asked for program in programs for asked in program.asked):
        applied_at = service.when.get(id(asked.request))
        if applied_at is not None:
            assert asked.began <= applied_at
        if isinstance(asked.error, Unavailable | SessionExpired):
            continue
        assert applied_at is not None
        assert applied_at <= asked.ended
        error = None if asked.error is None else type(asked.error)
        assert (asked.result, error) == expected[id(asked.request)]
        answered += 1
    return answered


@pytest.mark.parametrize("seed", range(8))
def test_answers_follow_one_order(seed):
    service, programs = run(seed)
    assert check(service, programs) > 100
    assert all(program.events for program in programs)
    errors = {type(asked.error).__name__ for program in programs for asked in program.asked}
    assert {"NoneType", "NoNode", "BadVersion", "NodeExists", "Unavailable"} <= errors


def test_the_same_seed_gives_the_same_run():
    def seen(seed: int) -> list[object]:
        service, programs = run(seed)
        rows = [(asked.request.kind, asked.result, asked.ended) for program in programs for asked in program.asked]
        return [rows, len(service.applied), service.injected]

    assert seen(1) == seen(1)
    assert seen(1) != seen(2)


def test_the_check_finds_an_answer_that_does_not_fit():
    service, programs = run(3)
    asked = next(asked for asked in programs[0].asked if isinstance(asked.result, Node))
    assert isinstance(asked.result, Node)
    asked.result = asked.result._replace(version=asked.result.version + 1)
    with pytest.raises(AssertionError):
        check(service, programs)
