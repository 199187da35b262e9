"""A client for topics, configs, offsets and groups, for which Spark's Kafka connector has no functions.

It wraps kafka-python's admin client. Times are milliseconds since 1970. All failures are raised as PipelineError, as
BrokerUnavailableError if waiting for the broker may help.
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
MAX_NAMES = 200  # topics or groups in one request


class BrokerUnavailableError(PipelineError):
    """No broker can be reached, or a request has no response in time."""


class ClusterAdmin:
    """A connection to the cluster at `bootstrap` (HOST:PORT,...).

    It is opened by `with` or by the first request, and after a failure again by the next one. One thread may use it
    at a time.
    """

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._client: Any = None

    def __enter__(self) -> "ClusterAdmin":
        self._connect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; another request opens a new one."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def describe_topics(
        self, names: Iterable[str] | None = None, pattern: str | Callable[[str], bool] | None = None
    ) -> dict[str, TopicInfo]:
        """Return the topics with these names, or those that the pattern matches, or all.

        `pattern`: a regular expression that must match the whole name, or a function. Topics that do not exist are
        omitted, and so are internal topics unless they are named.
        """
        topics = self._describe_topics(names, pattern)
        configs = self._describe_configs(list(topics))
        return {
            name: TopicInfo(_format_topic_id(topic["topic_id"]), len(topic["partitions"]), configs.get(name, {}))
            for name, topic in sorted(topics.items())
        }

    def require_topics(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        """Return the topics with these names. Raises PipelineError if one of them does not exist."""
        required = set(names)
        topics = self.describe_topics(required)
        missing = sorted(required - set(topics))
        if len(missing) == 1:
            raise PipelineError(f"topic {missing[0]} does not exist")
        if missing:
            raise PipelineError(f"topics do not exist: {', '.join(missing)}")
        return topics

    def _describe_topics(
        self, names: Iterable[str] | None, pattern: str | Callable[[str], bool] | None
    ) -> dict[str, Mapping[str, Any]]:
        unique_names = None if names is None else list(dict.fromkeys(names))
        if unique_names == []:
            return {}
        matches = re.compile(pattern).fullmatch if isinstance(pattern, str) else pattern
        with self._request("DescribeTopics") as client:
            described = client.describe_topics(unique_names)
        topics = {}
        for topic in described:
            name, error_code = topic["name"], topic["error_code"]
            if unique_names is None and (topic["is_internal"] or (matches is not None and not matches(name))):
                continue
            if not error_code:
                topics[name] = topic
            elif error_code != _error_code("UnknownTopicOrPartitionError"):
                raise PipelineError(f"topic {name}: {_error_name(error_code)}")
        return topics

    def effective_configs(self, config: str, names: Iterable[str]) -> dict[str, str]:
        """Return the value of one config by topic, the broker's default where a topic does not set it."""
        configs = self._describe_configs(list(names), config)
        return {name: values[config] for name, values in configs.items() if config in values}

    def _describe_configs(self, names: list[str], only: str = "") -> dict[str, dict[str, str]]:
        """Return the configs that are set on the topics; with `only`, the effective value of this config."""
        if not names:
            return {}
        from kafka.admin import ConfigResource

        keys, config_filter = ({only: ""}, "all") if only else (None, "modified")
        configs: dict[str, dict[str, str]] = {}
        for chunk in _chunks(names):
            resources = [ConfigResource("TOPIC", name, keys) for name in chunk]
            with self._request("DescribeConfigs") as client:
                described = client.describe_configs(resources, config_filter=config_filter)["topic"]
            for name, values in described.items():
                configs[name] = {key: config["value"] for key, config in sorted(values.items())}
        return configs

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the log start offset of each partition."""
        from kafka.admin import OffsetSpec

        return self._list_offsets(dict.fromkeys(partitions, OffsetSpec.EARLIEST))

    def end_offsets(
        self, partitions: Iterable[TopicPartition], committed_only: bool = False
    ) -> dict[TopicPartition, int]:
        """Return the high watermark of each partition, with `committed_only` its last stable offset."""
        from kafka.admin import OffsetSpec

        return self._list_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST), committed_only)

    def offsets_for_time(self, partitions: Iterable[TopicPartition], time_ms: int) -> dict[TopicPartition, int]:
        """Return the offset of the first record with this timestamp or a later one, else the end offset."""
        offsets = self._list_offsets(dict.fromkeys(partitions, time_ms))
        ends = self.end_offsets(partition for partition, offset in offsets.items() if offset < 0)
        return {**offsets, **ends}

    def _list_offsets(
        self, specs: Mapping[TopicPartition, Any], committed_only: bool = False
    ) -> dict[TopicPartition, int]:
        if not specs:
            return {}
        from kafka import IsolationLevel
        from kafka import TopicPartition as KafkaTopicPartition

        level = IsolationLevel.READ_COMMITTED if committed_only else IsolationLevel.READ_UNCOMMITTED
        kafka_specs = {KafkaTopicPartition(*partition): spec for partition, spec in specs.items()}
        with self._request("ListOffsets") as client:
            listed = client.list_partition_offsets(kafka_specs, isolation_level=level)
        return {TopicPartition(at.topic, at.partition): found.offset for at, found in listed.items()}

    def committed_offsets(self, topics: Iterable[str]) -> GroupOffsets:
        """Return the committed offsets of every group for these topics, without groups that have none."""
        selected = set(topics)
        with self._request("ListGroups") as client:
            groups = sorted(group["group_id"] for group in client.list_groups())
        result: dict[str, dict[str, dict[int, int]]] = {}
        for chunk in _chunks(groups):
            with self._request("OffsetFetch") as client:
                fetched = client.list_group_offsets(chunk)
            for group, offsets in fetched.items():
                for at, committed in offsets.items():
                    if committed.offset >= 0 and at.topic in selected:
                        result.setdefault(group, {}).setdefault(at.topic, {})[at.partition] = committed.offset
        return result

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str] | None = None) -> None:
        """Create a topic and wait until its partitions have leaders. Raises PipelineError if it exists."""
        topic = {"num_partitions": partitions, "replication_factor": -1, "configs": dict(configs or {})}
        with self._request("CreateTopics") as client:
            (result,) = client.create_topics({name: topic}, raise_errors=False)["topics"]
            if result["error_code"]:
                reason = (result["error_message"] or _error_name(result["error_code"])).rstrip(".")
                raise PipelineError(f"topic {name} cannot be created: {reason}")
            client.wait_for_topics([name])

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets of a group that has no members."""
        from kafka import TopicPartition as KafkaTopicPartition
        from kafka.structs import OffsetAndMetadata

        to_commit = {KafkaTopicPartition(*at): OffsetAndMetadata(offset, "", -1) for at, offset in offsets.items()}
        with self._request("OffsetCommit") as client:
            for at, error in client.alter_group_offsets(group, to_commit).items():
                if error.errno:
                    raise PipelineError(
                        f"group {group}: the offset of {at.topic}-{at.partition} cannot be committed: "
                        f"{_error_name(error.errno)}"
                    )

    @contextmanager
    def _request(self, api: str) -> Iterator[Any]:
        """Yield kafka-python's admin client for one request; convert its errors, and close it after one."""
        from kafka.errors import BrokerResponseError, KafkaError

        client = self._connect()
        try:
            yield client
        except PipelineError:
            raise
        except BrokerResponseError as error:
            self.close()
            # kafka-python considers this error retriable, but a deleted topic does not come back.
            is_deleted = error.errno == _error_code("UnknownTopicOrPartitionError")
            error_type = BrokerUnavailableError if error.retriable and not is_deleted else PipelineError
            raise error_type(f"{api} failed at the broker at {self.bootstrap}: {_error_text(error)}") from error
        except (KafkaError, OSError) as error:
            self.close()
            raise BrokerUnavailableError(
                f"no response to {api} from the broker at {self.bootstrap}: {_error_text(error)}"
            ) from error

    def _connect(self) -> Any:
        if self._client is None:
            servers = require_reachable(self.bootstrap)
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
                raise BrokerUnavailableError(
                    f"no response from the broker at {self.bootstrap}: {_error_text(error)}"
                ) from error
        return self._client


def require_reachable(bootstrap: str) -> list[str]:
    """Return the addresses as a list if one of them accepts a connection. Raises BrokerUnavailableError.

    Without this check, kafka-python and the Java client retry a refused connection silently until they time out.
    """
    servers = [server.strip() for server in bootstrap.split(",") if server.strip()]
    if not servers:
        raise PipelineError("expected HOST:PORT of a broker, not an empty address")
    errors = []
    for server in servers:
        host, _, port = server.rpartition(":")
        if not host or not port.isdigit() or int(port) > 65535:
            raise PipelineError(f"expected HOST:PORT of a broker, not {server!r}")
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S).close()
            return servers
        except OSError as error:
            errors.append(f"{server}: {error.strerror or error}")
    raise BrokerUnavailableError(f"cannot connect to {'; '.join(errors)}")


def all_partitions(topics: Mapping[str, TopicInfo]) -> list[TopicPartition]:
    """Return all partitions of these topics, in order."""
    return [TopicPartition(name, number) for name, info in sorted(topics.items()) for number in range(info.partitions)]


def _format_topic_id(raw: Any) -> str:
    """Return a topic id as Kafka's tools print it: URL-safe base64 without padding; empty if there is none."""
    data = UUID(str(raw or UUID(int=0))).bytes
    return urlsafe_b64encode(data).decode().rstrip("=") if any(data) else ""


def _chunks(names: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(names), MAX_NAMES):
        yield names[start : start + MAX_NAMES]


def _error_code(error_class: str) -> int:
    import kafka.errors

    return int(getattr(kafka.errors, error_class).errno)


def _error_name(code: int) -> str:
    from protocol.errors import error_name

    return error_name(code)


def _error_text(error: BaseException) -> str:
    detail = ": ".join(str(argument) for argument in error.args if argument)
    return detail.rstrip(".") or type(error).__name__
