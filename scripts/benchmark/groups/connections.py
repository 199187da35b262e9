"""Connections of members to one server; they run in one thread."""

import heapq
import selectors
import time
from collections.abc import Callable, Sequence

from scripts.benchmark.clients import Connection
from scripts.benchmark.groups.members import Member

DEADLINE_S = 300
# How often members that wait are asked whether they are done.
CHECK_S = 0.005


class Connections:
    """One connection for each member, as consumers have; they stay open from one measurement to the next."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._connections: list[Connection] = []

    def open(self, count: int) -> None:
        while len(self._connections) < count:
            self._connections.append(Connection(self._port))

    def run(self, members: Sequence[Member], is_done: Callable[[], bool], pause_s: float) -> float:
        """Send the requests of members until `is_done`, and receive all responses. Returns the seconds until then.

        Each sends at once what it has to, and a heartbeat `pause_s` after the last response.
        """
        self.open(len(members))
        begin = time.monotonic()
        due = [(begin, index) for index in range(len(members))]
        waiting, done_at = 0, begin
        with selectors.DefaultSelector() as selector:
            for index, connection in enumerate(self._connections[: len(members)]):
                selector.register(connection.fileno(), selectors.EVENT_READ, index)
            while True:
                now = time.monotonic()
                if now >= done_at:
                    if is_done():
                        break
                    done_at = now + CHECK_S
                if now > begin + DEADLINE_S:
                    raise SystemExit(f"the members of a group are not done after {DEADLINE_S} s")
                while due and due[0][0] <= now:
                    index = heapq.heappop(due)[1]
                    self._connections[index].send(members[index].request())
                    waiting += 1
                for key, _ in selector.select(CHECK_S):
                    member = members[key.data]
                    member.receive(self._connections[key.data].receive())
                    waiting -= 1
                    heapq.heappush(due, (time.monotonic() + pause_s * member.is_settled, key.data))
            while waiting:
                for key, _ in selector.select(DEADLINE_S):
                    members[key.data].receive(self._connections[key.data].receive())
                    waiting -= 1
        return now - begin

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
