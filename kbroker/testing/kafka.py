"""What a test does with one broker or several: topics, records, groups, faults, recorded requests, the clock."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import partial
from itertools import count as counter
from time import monotonic, sleep
from typing import Any, TypeVar

from kbroker.client.admin import TopicSpec, create_topics
from kbroker.client.cluster import ClusterClient
from kbroker.client.consumer import ConsumedRecord
from kbroker.client.requests import GROUP, TRANSACTION, Address, BrokerError, check
from kbroker.metadata.coordination_sessions import OpenSession
from kbroker.testing import records
from kbroker.testing.broker_thread import BrokerThread
from kbroker.testing.clock import MovableClock
from kbroker.testing.disk import DiskControl
from kbroker.testing.faults import TEST_CLIENT_ID, Fault, RecordedRequest, RequestLog, api_named
from kbroker.testing.records import GroupLag, ProducedRecord, ToProduce
from protocol.errors import ErrorCode

K = TypeVar("K", bound="Kafka")

TIMEOUT_S = 10.0
POLL_S = 0.02
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


class BrokerClock(MovableClock):
    """The clock of the brokers of a test."""

    def __init__(self, kafka: Kafka) -> None:
        super().__init__()
        self._kafka = kafka

    @property
    def is_moved(self) -> bool:
        return self.offset_ns != 0

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
            self.offset_ns += step_ms * 1_000_000
            for thread in threads:
                thread.run(thread.threads.settle())


class Kafka:
    """What a test does with one broker or several. `clock`: theirs, which the test moves."""

    def __init__(self, configs: Mapping[str, Any], directory: str | os.PathLike[str] | None, brokers: int) -> None:
        """`configs`: broker configs, besides SETTINGS. `directory`: keeps the data; by default it is temporary."""
        self.clock = BrokerClock(self)
        self.request_log = RequestLog()
        # The beginning of the names of topics; the fixture sets it to the name of the test.
        self.topic_prefix = "topic"
        self.disks = {broker_id: DiskControl() for broker_id in range(1, brokers + 1)}
        self._configs = {**SETTINGS, **{name: _config_text(value) for name, value in configs.items()}}
        self._given_directory = None if directory is None else os.fspath(directory)
        self._directory = ""
        self._numbers = counter(1)
        self._pid = 0
        # By broker id: those that run; where they listen, also when they are started again; what they advertise.
        self._threads: dict[int, BrokerThread] = {}
        self._local: dict[int, Address] = {}
        self._advertised: dict[int, str] = {}

    @property
    def bootstrap(self) -> str:
        """The addresses for clients, HOST:PORT[,HOST:PORT...]."""
        return ",".join(self._advertised.values())

    def running(self) -> list[BrokerThread]:
        """Return the brokers that run. Raises RuntimeError in a forked process, which has none."""
        self._check_process()
        return list(self._threads.values())

    def open(self) -> None:
        """Start, with the data of the last time if there is a directory."""
        self._open_directory()
        try:
            for broker_id in self.disks:
                self._start(broker_id)
            self._create_internal_topics()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop, and remove temporary data."""
        if self._pid == os.getpid():
            for broker_id in list(self._threads):
                self._end(broker_id, BrokerThread.stop)
            if self._given_directory is None:
                shutil.rmtree(self._directory, ignore_errors=True)

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
        # A new one for each call, since threads and forked processes must not share it.
        return ClusterClient(list(self._local.values()), client_id=TEST_CLIENT_ID)

    # Topics and records.

    def topic(
        self, name: str | None = None, *, partitions: int = 1, replication_factor: int = -1,
        config: Mapping[str, Any] | None = None,
    ) -> str:  # fmt: skip
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
        self, topic: str, *, n: int | None = None, partition: int | None = None, read_committed: bool = False,
        timeout_s: float = TIMEOUT_S,
    ) -> list[ConsumedRecord]:  # fmt: skip
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
        wanted = {"members": members, "lag": lag, "state": state}
        wanted = {name: value for name, value in wanted.items() if value is not None}
        deadline = monotonic() + timeout_s
        with self.client() as cluster:
            while True:
                try:
                    found = records.group_lag(cluster, group, None if topic is None else [topic])
                    if wanted.items() <= found.summary().items():
                        return found
                    last = str(found)
                except BrokerError as error:
                    last = str(error)
                if monotonic() > deadline:
                    text = ", ".join(f"{name}={value}" for name, value in wanted.items())
                    raise TimeoutError(f"group {group} is not at {text} after {timeout_s} s, but {last}")
                sleep(POLL_S)

    # Faults and requests.

    def fault(
        self, api: str, *, error: str | None = None, delay_ms: int = 0, drop: bool = False, after: bool = False,
        topic: str | None = None, group: str | None = None, client_id: str | None = None, count: int | None = None,
    ) -> Fault:  # fmt: skip
        """Disturb the requests of an API, at most `count` of them, until the end of the block, or `Fault.remove`.

        `error`: the name of the code that they get; a request that names `topic` gets it for all its topics. `drop`:
        their connection is closed. `delay_ms`: their response is that late, in the broker's time. `after`: they are
        carried out nevertheless, so the client does not learn that they succeeded. Raises ValueError.
        """
        if error is None and not delay_ms and not drop:
            raise ValueError("a fault needs error=, delay_ms= or drop=True")
        if error is not None and error not in ErrorCode.__members__:
            raise ValueError(f"there is no error code {error!r}; the names are those of Kafka: NOT_LEADER_OR_FOLLOWER")
        code = None if error is None else ErrorCode[error]
        requests = self.request_log
        fault = Fault(
            requests,
            next(requests.numbers),
            api_named(api),
            code,
            delay_ms,
            drop,
            after,
            topic,
            group,
            client_id,
            count,
        )
        requests.faults.append(fault)
        return fault

    def requests(
        self, api: str | None = None, *, topic: str | None = None, group: str | None = None,
        client_id: str | None = None,
    ) -> list[RecordedRequest]:  # fmt: skip
        """Return the requests of clients, in the order of their arrival: the last 10,000, without those of the test."""
        title = None if api is None else api_named(api)
        requests = list(self.request_log.requests)
        return [request for request in requests if request.is_about(title, topic, group, client_id)]

    # For subclasses.

    def _broker_configs(self, broker_id: int) -> Mapping[str, str]:
        """Return the configs that are those of one broker."""
        raise NotImplementedError

    def _open_session(self, broker_id: int) -> OpenSession | None:
        """Return what opens a session with the coordination store that brokers share."""
        return None

    def _start(self, broker_id: int) -> None:
        self._check_process()
        if broker_id in self._threads:
            return
        first, *others = self._configs.get("listeners", "PLAINTEXT://127.0.0.1:0").split(",")
        if local := self._local.get(broker_id):
            first = f"{first.rpartition(':')[0]}:{local[1]}"
        configs = {**self._configs, "listeners": ",".join([first, *others]), **self._broker_configs(broker_id)}
        session = self._open_session(broker_id)
        thread = BrokerThread(configs, self.clock, self.disks[broker_id], self.request_log, session)
        self._threads[broker_id] = thread
        self._local[broker_id], self._advertised[broker_id] = thread.local, thread.bootstrap

    def _end(self, broker_id: int, end: Callable[[BrokerThread], None]) -> bool:
        """End a broker; returns whether it ran."""
        self._check_process()
        thread = self._threads.pop(broker_id, None)
        if thread is not None:
            end(thread)
        return thread is not None

    def _open_directory(self) -> None:
        """Create the directory of the data. A temporary one is in memory if the system has /dev/shm."""
        self._pid = os.getpid()
        if self._given_directory is not None:
            os.makedirs(self._given_directory, exist_ok=True)
            self._directory = self._given_directory
        else:
            memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) and "TMPDIR" not in os.environ else None
            self._directory = tempfile.mkdtemp(prefix="kbroker-testing-", dir=memory)

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
