"""What a test does with one broker or several: topics, records, groups, faults, recorded requests, the clock."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from itertools import count as counter
from time import monotonic, sleep
from typing import Any, TypeVar

from kbroker.client.admin import TopicSpec, create_topics
from kbroker.client.cluster import ClusterClient
from kbroker.client.requests import GROUP, TRANSACTION, BrokerError, check
from kbroker.testing import records
from kbroker.testing.broker_thread import BrokerThread
from kbroker.testing.clock import MovableClock
from kbroker.testing.faults import Fault, RecordedRequest, RequestLog, api_named, api_title
from kbroker.testing.records import POLL_S, FetchedRecord, GroupLag, ProducedRecord, ToProduce
from protocol.errors import ErrorCode

K = TypeVar("K", bound="Kafka")

TIMEOUT_S = 10.0
# A little more than the period of the retention.
ROUND_MS = 30
# Configs that make tests quick. Connections survive a jump of the clock, and so do records of topics without retention
# of their own: those of clients, which have the time of the machine, would be deleted at once.
SETTINGS: Mapping[str, str] = {
    "connections.max.idle.ms": "-1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "group.streams.initial.rebalance.delay.ms": "0",
    "log.cleaner.backoff.ms": "1000",
    "log.retention.check.interval.ms": "25",
    "log.retention.ms": "-1",
    "offsets.retention.check.interval.ms": "1000",
    "offsets.topic.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "transaction.state.log.num.partitions": "1",
}


class BrokerClock:
    """The clock of the brokers of a test."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka

    def now_ms(self) -> int:
        """Return the time of the brokers, in milliseconds since the epoch."""
        return self._kafka.movable_clock.now_ms()

    @property
    def is_moved(self) -> bool:
        return self._kafka.movable_clock.offset_ns != 0

    def advance(self, *, expire_sessions: bool = False, **duration: float) -> None:
        """Move the clock forward, by keywords of timedelta such as hours=1, and wait until what is due is done.

        What a jump passes happens once: retention, delayed records, expiry, timeouts of transactions, locks of share
        groups. Connections stay open. Members of groups keep their sessions, which clients renew in real time; with
        `expire_sessions` those end that are shorter than the jump. Then the clock moves by two more rounds of periodic
        tasks, 60 ms: retention needs one to roll a log and one to delete. Raises ValueError for a time that is not
        positive.
        """
        ms = round(timedelta(**duration) / timedelta(milliseconds=1))
        if ms <= 0:
            raise ValueError("the clock moves forward only")
        threads = self._kafka.running()
        if not expire_sessions:
            for thread in threads:
                thread.postpone_sessions(ms)
        for step_ms in (ms, ROUND_MS, ROUND_MS):
            self._kafka.movable_clock.offset_ns += step_ms * 1_000_000
            for thread in threads:
                thread.settle()


class Kafka:
    """What a test does with one broker or several. `clock`: theirs, which the test moves."""

    def __init__(
        self, configs: Mapping[str, Any] | None = None, directory: str | os.PathLike[str] | None = None
    ) -> None:
        """`configs`: broker configs, besides SETTINGS. `directory`: keeps the data; by default it is temporary."""
        self.movable_clock = MovableClock()
        self.clock = BrokerClock(self)
        self.request_log = RequestLog()
        # The beginning of the names of topics; the fixture sets it to the name of the test.
        self.topic_prefix = "topic"
        self._configs = {**SETTINGS, **{name: _config_text(value) for name, value in (configs or {}).items()}}
        self._given_directory = None if directory is None else os.fspath(directory)
        self._directory = ""
        self._numbers = counter(1)
        self._pid = 0

    @property
    def bootstrap(self) -> str:
        """The addresses for clients, HOST:PORT[,HOST:PORT...]."""
        raise NotImplementedError

    def running(self) -> list[BrokerThread]:
        """Return the brokers that run. Raises RuntimeError in a forked process, which has none."""
        raise NotImplementedError

    def open(self) -> None:
        """Start, with the data of the last time if there is a directory."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop, and remove temporary data."""
        raise NotImplementedError

    def __enter__(self: K) -> K:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self: K) -> K:
        await asyncio.to_thread(self.open)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    @property
    def in_thread(self) -> InThread:
        """The same methods as coroutines, for tests on an event loop: `await kafka.in_thread.consume(topic, n=1)`."""
        return InThread(self)

    def client(self) -> ClusterClient:
        """Return a client for what has no method here: see kbroker/client/."""
        return records.client(self.bootstrap.split(","))

    # Topics and records.

    def topic(
        self,
        name: str | None = None,
        *,
        partitions: int = 1,
        replication_factor: int = -1,
        config: Mapping[str, Any] | None = None,
    ) -> str:
        """Create a topic, by default with a new name, and return its name. Raises BrokerError."""
        name = name or f"{self.topic_prefix}-{next(self._numbers)}"
        texts = {key: _config_text(value) for key, value in (config or {}).items()}
        with self.client() as cluster:
            row = create_topics(cluster, {name: TopicSpec(partitions, replication_factor, texts)})[0]
            check(row.error_code, f"topic {name}", row.error_message)
        return name

    def produce(
        self, topic: str, records_: Iterable[ToProduce], *, partition: int | None = None, timestamp: int | None = None
    ) -> list[ProducedRecord]:
        """Produce records with acks=all, and return their partitions and offsets. Raises BrokerError.

        A record is its value, (key, value) or (key, value, headers). `timestamp`: in milliseconds; by default the time
        of the broker.
        """
        at_ms = self.clock.now_ms() if timestamp is None else timestamp
        with self.client() as cluster:
            return records.produce(cluster, topic, records_, partition, at_ms)

    def consume(
        self,
        topic: str,
        *,
        n: int | None = None,
        partition: int | None = None,
        read_committed: bool = False,
        timeout_s: float = TIMEOUT_S,
    ) -> list[FetchedRecord]:
        """Return the first `n` records of a topic, by default all that there are now. Commits nothing.

        Raises TimeoutError if there are fewer after `timeout_s`, in real time.
        """
        with self.client() as cluster:
            return records.consume(cluster, topic, n, partition, read_committed, timeout_s)

    def wait_group(
        self,
        group: str,
        *,
        members: int | None = None,
        lag: int | None = None,
        state: str | None = None,
        topic: str | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> GroupLag:
        """Wait until a group is as described, and return it. `lag`: the records behind its commits in `topic`, by
        default in all topics with commits; a partition without a commit counts from its first record.

        Raises TimeoutError after `timeout_s`, in real time.
        """

        def is_reached(found: GroupLag) -> bool:
            return (
                (members is None or len(found.description.members) == members)
                and (lag is None or found.lag == lag)
                and (state is None or found.description.state == state)
            )

        deadline, last = monotonic() + timeout_s, "unknown"
        with self.client() as cluster:
            while True:
                try:
                    found = records.group_lag(cluster, group, None if topic is None else [topic])
                    if is_reached(found):
                        return found
                    last = str(found)
                except BrokerError as error:
                    last = str(error)
                if monotonic() > deadline:
                    wanted = {"members": members, "lag": lag, "state": state}
                    text = ", ".join(f"{name}={value}" for name, value in wanted.items() if value is not None)
                    raise TimeoutError(f"group {group} is not at {text} after {timeout_s} s, but {last}")
                sleep(POLL_S)

    # Faults and requests.

    @contextmanager
    def fault(
        self,
        api: str,
        *,
        error: str | None = None,
        delay_ms: int = 0,
        drop: bool = False,
        after: bool = False,
        topic: str | None = None,
        group: str | None = None,
        client_id: str | None = None,
        count: int | None = None,
    ) -> Iterator[Fault]:
        """Disturb the requests of an API while the block runs, at most `count` of them.

        `error`: the name of the code that they get; a request that names `topic` gets it for all its topics. `drop`:
        their connection is closed. `delay_ms`: their response is that late, in the broker's time. `after`: they are
        carried out nevertheless, so the client does not learn that they succeeded. Raises ValueError.
        """
        if error is None and not delay_ms and not drop:
            raise ValueError("a fault needs error=, delay_ms= or drop=True")
        if error is not None and error not in ErrorCode.__members__:
            raise ValueError(f"there is no error code {error!r}; the names are those of Kafka: NOT_LEADER_OR_FOLLOWER")
        code = None if error is None else ErrorCode[error]
        fault = Fault(api_named(api), code, delay_ms, drop, after, topic, group, client_id, count)
        self.request_log.faults.append(fault)
        try:
            yield fault
        finally:
            if fault in self.request_log.faults:
                self.request_log.faults.remove(fault)

    def requests(
        self,
        api: str | None = None,
        *,
        topic: str | None = None,
        group: str | None = None,
        client_id: str | None = None,
    ) -> list[RecordedRequest]:
        """Return the requests of clients, in the order of their arrival: the last 10,000, without those of the test."""
        title = None if api is None else api_title(api_named(api))
        return [
            request
            for request in list(self.request_log.requests)
            if (title is None or request.api == title)
            and (topic is None or topic in request.topics)
            and (group is None or group in request.groups)
            and (client_id is None or client_id == request.client_id)
        ]

    # For subclasses.

    def _open_directory(self) -> str:
        """Return the directory of the data. A temporary one is in memory if the system has /dev/shm."""
        self._pid = os.getpid()
        if self._given_directory is not None:
            os.makedirs(self._given_directory, exist_ok=True)
            self._directory = self._given_directory
        else:
            memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) and "TMPDIR" not in os.environ else None
            self._directory = tempfile.mkdtemp(prefix="kbroker-testing-", dir=memory)
        return self._directory

    def _remove_directory(self) -> None:
        if self._given_directory is None and self._directory and self._pid == os.getpid():
            shutil.rmtree(self._directory, ignore_errors=True)
        self._directory = ""

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise RuntimeError(
                "the broker runs in another process, that has forked this one: here it can be reached at `bootstrap` "
                "only, also by topic(), produce(), consume() and wait_group()"
            )

    def _create_internal_topics(self) -> None:
        """Create the topics of groups and transactions, so that no client has to wait for them."""
        with self.client() as cluster:
            cluster.find_coordinator("kbroker", GROUP)
            cluster.find_coordinator("kbroker", TRANSACTION)


class InThread:
    """The methods of a Kafka, as coroutines that run in a thread."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(asyncio.to_thread, getattr(self._kafka, name))


def _config_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
