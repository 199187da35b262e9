"""What the pipeline asks of brokers itself, by kafka-python: Spark's connector tells nothing of topics and groups.

Offsets are Kafka's, times milliseconds since 1970. Whatever goes wrong leaves here as a PipelineError: BrokerGone where
nobody answers, so that a caller may wait for the broker to be back.
"""

import logging
import re
import socket
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any
from uuid import UUID

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.manifest.model import GroupOffsets, TopicInfo
from kbroker.pipeline.errors import PipelineError

CONNECT_TIMEOUT_S = 5.0
BOOTSTRAP_TIMEOUT_MS = 10_000
REQUEST_TIMEOUT_MS = 30_000
MOST_NAMES = 200  # topics or groups in one request


class BrokerGone(PipelineError):
    """Nobody answers at the address, or a request was not answered in time."""


class Cluster:
    """A connection to the brokers at `bootstrap` (A:9092,B:9092), made when it is first needed or by `with`.

    After a failure the next question connects anew. To be used by one thread at a time.
    """

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._client: Any = None

    def __enter__(self) -> "Cluster":
        self._connected()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection; another question makes a new one."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def topics(
        self, names: Iterable[str] | None = None, pattern: str | Callable[[str], bool] | None = None
    ) -> dict[str, TopicInfo]:
        """The topics of these names, or those that the whole pattern matches (a regular expression, or a function of
        the name), or all of them; absent ones are left out, and internal ones unless they are named."""
        found = self._described(names, pattern)
        configs = self._configs(list(found))
        return {
            name: TopicInfo(_topic_id(topic["topic_id"]), len(topic["partitions"]), configs.get(name, {}))
            for name, topic in sorted(found.items())
        }

    def require_topics(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        """The topics of these names. Raises PipelineError where one of them does not exist."""
        wanted = set(names)
        topics = self.topics(wanted)
        absent = sorted(wanted - set(topics))
        if absent:
            raise PipelineError(
                f"topic {absent[0]} does not exist" if len(absent) == 1 else f"topics do not exist: {', '.join(absent)}"
            )
        return topics

    def _described(
        self, names: Iterable[str] | None, pattern: str | Callable[[str], bool] | None
    ) -> dict[str, Mapping[str, Any]]:
        wanted = None if names is None else list(dict.fromkeys(names))
        if wanted == []:
            return {}
        matches = re.compile(pattern).fullmatch if isinstance(pattern, str) else pattern
        with self._asking("the topics") as client:
            topics = client.describe_topics(wanted)
        found = {}
        for topic in topics:
            if wanted is None and (topic["is_internal"] or (matches is not None and not matches(topic["name"]))):
                continue
            if not topic["error_code"]:
                found[topic["name"]] = topic
            elif topic["error_code"] != _code("UnknownTopicOrPartitionError"):
                raise PipelineError(f"topic {topic['name']}: {_named(topic['error_code'])}")
        return found

    def in_force(self, config: str, names: Iterable[str]) -> dict[str, str]:
        """What a config of these topics is, the broker's default where the topic itself sets nothing."""
        found = self._configs(list(names), config)
        return {name: configs[config] for name, configs in found.items() if config in configs}

    def _configs(self, names: list[str], only: str = "") -> dict[str, dict[str, str]]:
        """Those that the topics themselves set; or one of them, whoever sets it."""
        if not names:
            return {}
        from kafka.admin import ConfigResource

        wanted, kind = ({only: ""}, "all") if only else (None, "modified")
        found: dict[str, dict[str, str]] = {}
        for some in _parts(names):
            resources = [ConfigResource("TOPIC", name, wanted) for name in some]
            with self._asking("the topics' configs") as client:
                answer = client.describe_configs(resources, config_filter=kind)["topic"]
            for name, configs in answer.items():
                found[name] = {key: config["value"] for key, config in sorted(configs.items())}
        return found

    def beginnings(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Where the log of each partition starts now."""
        from kafka.admin import OffsetSpec

        return self._offsets(dict.fromkeys(partitions, OffsetSpec.EARLIEST), False)

    def ends(self, partitions: Iterable[TopicPartition], committed_only: bool = False) -> dict[TopicPartition, int]:
        """The offset after the last record that a consumer may read: the high watermark, or with `committed_only`
        the last stable offset."""
        from kafka.admin import OffsetSpec

        return self._offsets(dict.fromkeys(partitions, OffsetSpec.LATEST), committed_only)

    def offsets_at(self, partitions: Iterable[TopicPartition], time_ms: int) -> dict[TopicPartition, int]:
        """The first record with this timestamp or a later one; where there is none, the end."""
        wanted = list(partitions)
        found = self._offsets(dict.fromkeys(wanted, time_ms), False)
        ends = self.ends(partition for partition in wanted if found[partition] < 0)
        return {**found, **ends}

    def _offsets(self, specs: Mapping[TopicPartition, Any], committed_only: bool) -> dict[TopicPartition, int]:
        if not specs:
            return {}
        from kafka import IsolationLevel
        from kafka import TopicPartition as KafkaTopicPartition

        level = IsolationLevel.READ_COMMITTED if committed_only else IsolationLevel.READ_UNCOMMITTED
        asked = {KafkaTopicPartition(*partition): spec for partition, spec in specs.items()}
        with self._asking("offsets") as client:
            answer = client.list_partition_offsets(asked, isolation_level=level)
        return {TopicPartition(at.topic, at.partition): found.offset for at, found in answer.items()}

    def groups(self, topics: Iterable[str] | None = None) -> GroupOffsets:
        """What every group has committed for these topics, or for all; groups that have nothing are left out."""
        wanted = None if topics is None else set(topics)
        with self._asking("the groups") as client:
            names = sorted(group["group_id"] for group in client.list_groups())
        found: dict[str, dict[str, dict[int, int]]] = {}
        for some in _parts(names):
            with self._asking("the groups' offsets") as client:
                answer = client.list_group_offsets(some)
            for group, offsets in answer.items():
                for at, committed in offsets.items():
                    if committed.offset >= 0 and (wanted is None or at.topic in wanted):
                        found.setdefault(group, {}).setdefault(at.topic, {})[at.partition] = committed.offset
        return found

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str] | None = None) -> None:
        """Creates a topic and waits until its partitions have leaders; one that exists already is a PipelineError."""
        wanted = {"num_partitions": partitions, "replication_factor": -1, "configs": dict(configs or {})}
        with self._asking("a new topic") as client:
            (result,) = client.create_topics({name: wanted}, raise_errors=False)["topics"]
            if result["error_code"]:
                reason = (result["error_message"] or _named(result["error_code"])).rstrip(".")
                raise PipelineError(f"topic {name} cannot be created: {reason}")
            client.wait_for_topics([name])

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commits offsets for a group that has no members; PipelineError where the group or a partition refuses."""
        from kafka import TopicPartition as KafkaTopicPartition
        from kafka.structs import OffsetAndMetadata

        wanted = {KafkaTopicPartition(*at): OffsetAndMetadata(offset, "", -1) for at, offset in offsets.items()}
        with self._asking(f"offsets of group {group}") as client:
            for at, error in client.alter_group_offsets(group, wanted).items():
                if error.errno:
                    raise PipelineError(
                        f"group {group} does not take an offset for {at.topic}-{at.partition}: {_named(error.errno)}"
                    )

    @contextmanager
    def _asking(self, what: str) -> Iterator[Any]:
        """kafka-python's admin client; its failures leave as PipelineError, and the next question connects anew."""
        from kafka.errors import BrokerResponseError, KafkaError

        client = self._connected()
        try:
            yield client
        except PipelineError:
            raise
        except BrokerResponseError as error:
            self.close()
            # It counts as one that may pass, which it does not where a topic was deleted.
            gone = error.errno == _code("UnknownTopicOrPartitionError")
            kind = BrokerGone if error.retriable and not gone else PipelineError
            raise kind(f"the broker at {self.bootstrap} refuses {what}: {_told(error)}") from error
        except (KafkaError, OSError) as error:
            self.close()
            raise BrokerGone(f"the broker at {self.bootstrap} does not answer about {what}: {_told(error)}") from error

    def _connected(self) -> Any:
        if self._client is None:
            servers = reachable(self.bootstrap)
            from kafka.admin import KafkaAdminClient
            from kafka.errors import KafkaError

            logging.getLogger("kafka").setLevel(logging.CRITICAL + 1)
            try:
                self._client = KafkaAdminClient(
                    bootstrap_servers=servers,
                    client_id="kbroker-pipeline",
                    bootstrap_timeout_ms=BOOTSTRAP_TIMEOUT_MS,
                    request_timeout_ms=REQUEST_TIMEOUT_MS,
                )
            except (KafkaError, OSError) as error:
                raise BrokerGone(f"no answer from the broker at {self.bootstrap}: {_told(error)}") from error
        return self._client


def reachable(bootstrap: str) -> list[str]:
    """The addresses as a list, once one of them takes a connection; otherwise BrokerGone.

    kafka-python and Java's clients would retry a refused connection until their timeouts, without a word.
    """
    servers = [server.strip() for server in bootstrap.split(",") if server.strip()]
    refusals = []
    for server in servers:
        host, _, port = server.rpartition(":")
        if not host or not port.isdigit() or int(port) > 65535:
            raise PipelineError(f"expected HOST:PORT of a broker, not {server!r}")
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S).close()
            return servers
        except OSError as error:
            refusals.append(f"{server}: {error.strerror or error}")
    if not servers:
        raise PipelineError("no broker is named: expected HOST:PORT")
    raise BrokerGone(f"cannot connect to {'; '.join(refusals)}")


def partitions_of(topics: Mapping[str, TopicInfo]) -> list[TopicPartition]:
    """All partitions of these topics, in order."""
    return [TopicPartition(name, number) for name, info in sorted(topics.items()) for number in range(info.partitions)]


def _topic_id(raw: Any) -> str:
    """As Kafka's tools print it: URL-safe base64 of its 16 bytes without padding; empty where there is none."""
    data = UUID(str(raw or UUID(int=0))).bytes
    return urlsafe_b64encode(data).decode().rstrip("=") if any(data) else ""


def _parts(names: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(names), MOST_NAMES):
        yield names[start : start + MOST_NAMES]


def _code(name: str) -> int:
    import kafka.errors

    return int(getattr(kafka.errors, name).errno)


def _named(code: int) -> str:
    from protocol.errors import ErrorCode

    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"


def _told(error: BaseException) -> str:
    detail = ": ".join(str(argument) for argument in error.args if argument)
    return detail.rstrip(".") or type(error).__name__
