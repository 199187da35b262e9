"""A client for topics, configs, offsets and groups, for which Spark's Kafka connector has no functions.

Times are milliseconds since 1970. All failures are raised as PipelineError, as BrokerUnavailableError if waiting for
the broker may help.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from time import monotonic, sleep
from typing import ParamSpec, TypeVar

from kbroker.archive.topic_state import TopicInfo
from kbroker.client import cluster as client
from kbroker.client.admin import TopicSpec, create_topics, describe_topics, topic_configs
from kbroker.client.cluster import ClusterClient
from kbroker.client.groups import commit_offsets, committed_offsets, list_groups
from kbroker.client.offsets import LATEST, READ_COMMITTED, READ_UNCOMMITTED, list_offsets, log_start_offsets
from kbroker.client.requests import Address, BrokerError
from kbroker.client.security import current_security
from kbroker.common import TopicPartition, uuid_text
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.leader_epochs import EpochEnd, epoch_ends
from protocol.client import UnsupportedVersionError
from protocol.errors import ErrorCode, error_name

P = ParamSpec("P")
R = TypeVar("R")

CLIENT_ID = "kbroker-pipeline"
# The leaders of a new topic are awaited for this time.
LEADERS_FOR_S, LEADERS_EVERY_S = 10.0, 0.1


class BrokerUnavailableError(PipelineError):
    """No broker can be reached, or a request has no response in time."""


def parse_bootstrap(bootstrap: str) -> list[Address]:
    """Parse HOST:PORT,... Raises PipelineError."""
    servers = [server.strip() for server in bootstrap.split(",") if server.strip()]
    if not servers:
        raise PipelineError("expected HOST:PORT of a broker, not an empty address")
    addresses = []
    for server in servers:
        host, _, port = server.rpartition(":")
        if not (host and port.isascii() and port.isdigit()) or int(port) > 65535:
            raise PipelineError(f"expected HOST:PORT of a broker, not {server!r}")
        addresses.append((host.removeprefix("[").removesuffix("]"), int(port)))
    return addresses


def require_reachable(bootstrap: str) -> None:
    """Raise BrokerUnavailableError if no address accepts a connection."""
    try:
        client.require_reachable(parse_bootstrap(bootstrap))
    except OSError as error:
        raise BrokerUnavailableError(str(error)) from None


def cluster_client(bootstrap: str) -> ClusterClient:
    """Return an unconnected client. Raises PipelineError for an address that cannot be parsed."""
    return ClusterClient(parse_bootstrap(bootstrap), client_id=CLIENT_ID, security=current_security())


def as_pipeline_errors(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function to raise the errors of a ClusterClient as PipelineError."""

    @wraps(function)
    def wrapped(*args: P.args, **named: P.kwargs) -> R:
        try:
            return function(*args, **named)
        except BrokerError as error:
            raise PipelineError(f"the broker rejected the request: {error}") from error
        except UnsupportedVersionError as error:
            raise PipelineError(str(error)) from error
        except OSError as error:
            raise PipelineError(f"the broker cannot be reached: {error}") from error

    return wrapped


class ClusterAdmin:
    """A client of the cluster at `bootstrap` (HOST:PORT,...). One thread may use it at a time.

    After a failure the next request opens new connections.
    """

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._client = cluster_client(bootstrap)

    def __enter__(self) -> "ClusterAdmin":
        with self._request() as connected:
            connected.any_broker()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; another request opens new ones."""
        self._client.reset()

    def describe_topics(
        self, names: Iterable[str] | None = None, matches: Callable[[str], bool] | None = None
    ) -> dict[str, TopicInfo]:
        """Return the topics with these names, or those whose name `matches`, or all.

        Topics that do not exist are omitted, and so are internal topics unless they are named.
        """
        unique_names = None if names is None else list(dict.fromkeys(names))
        if unique_names == []:
            return {}
        with self._request("DescribeTopics") as connected:
            described = describe_topics(connected, unique_names)
        topics = {}
        for topic in described:
            if unique_names is None and (topic.is_internal or (matches is not None and not matches(topic.name))):
                continue
            if not topic.error_code:
                topics[topic.name] = topic
            elif topic.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise PipelineError(f"topic {topic.name}: {error_name(topic.error_code)}")
        with self._request("DescribeConfigs") as connected:
            configs = topic_configs(connected, list(topics), set_only=True)
        return {
            name: TopicInfo(
                uuid_text(topic.topic_id) if any(topic.topic_id) else "",
                len(topic.partitions),
                dict(sorted(configs.get(name, {}).items())),
            )
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

    def effective_configs(self, config: str, names: Iterable[str]) -> dict[str, str]:
        """Return the value of one config by topic, the broker's default where a topic does not set it."""
        with self._request("DescribeConfigs") as connected:
            configs = topic_configs(connected, list(names), [config])
        return {name: values[config] for name, values in configs.items() if config in values}

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the log start offset of each partition."""
        with self._request("ListOffsets") as connected:
            return log_start_offsets(connected, partitions)

    def end_offsets(
        self, partitions: Iterable[TopicPartition], committed_only: bool = False
    ) -> dict[TopicPartition, int]:
        """Return the high watermark of each partition, with `committed_only` its last stable offset."""
        return self._list_offsets(partitions, LATEST, READ_COMMITTED if committed_only else READ_UNCOMMITTED)

    def offsets_for_time(self, partitions: Iterable[TopicPartition], time_ms: int) -> dict[TopicPartition, int]:
        """Return the offset of the first record with this timestamp or a later one, else the end offset."""
        offsets = self._list_offsets(partitions, time_ms)
        ends = self.end_offsets(partition for partition, offset in offsets.items() if offset < 0)
        return {**offsets, **ends}

    def _list_offsets(
        self, partitions: Iterable[TopicPartition], timestamp: int, isolation_level: int = READ_UNCOMMITTED
    ) -> dict[TopicPartition, int]:
        timestamps = dict.fromkeys(partitions, timestamp)
        if not timestamps:
            return {}
        with self._request("ListOffsets") as connected:
            return list_offsets(connected, timestamps, isolation_level)

    def leader_epochs(self, names: Iterable[str]) -> dict[TopicPartition, int]:
        """Return the epoch of each partition's leader, -1 where it has none."""
        unique_names = sorted(set(names))
        if not unique_names:
            return {}
        with self._request("DescribeTopics") as connected:
            return {
                TopicPartition(topic.name, row.partition_index): row.leader_epoch
                for topic in describe_topics(connected, unique_names)
                for row in topic.partitions
            }

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, EpochEnd]:
        """Return for each epoch the largest one of the log that is not larger, and where it ends."""
        if not epochs:
            return {}
        with self._request("OffsetForLeaderEpoch") as connected:
            return epoch_ends(connected, epochs)

    def committed_offsets(self, topics: Iterable[str]) -> Mapping[str, Mapping[str, Mapping[int, int]]]:
        """Return the committed offsets of every group for these topics, by group, topic and partition.

        Groups without any are omitted.
        """
        selected = set(topics)
        result: dict[str, dict[str, dict[int, int]]] = {}
        with self._request("OffsetFetch") as connected:
            for group in sorted(group.group_id for group in list_groups(connected)):
                for at, offset in committed_offsets(connected, group).items():
                    if at.topic in selected:
                        result.setdefault(group, {}).setdefault(at.topic, {})[at.partition] = offset
        return result

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str] | None = None) -> None:
        """Create a topic and wait until its partitions have leaders. Raises PipelineError if it exists."""
        with self._request("CreateTopics") as connected:
            [result] = create_topics(connected, {name: TopicSpec(partitions, configs=configs or {})})
            if result.error_code:
                reason = (result.error_message or error_name(result.error_code)).rstrip(".")
                raise PipelineError(f"topic {name} cannot be created: {reason}")
            deadline = monotonic() + LEADERS_FOR_S
            while True:
                [topic] = describe_topics(connected, [name])
                if len(topic.partitions) == partitions and all(row.leader_id >= 0 for row in topic.partitions):
                    return
                if monotonic() > deadline:
                    raise BrokerUnavailableError(f"topic {name} has no leaders after {LEADERS_FOR_S:g} s")
                sleep(LEADERS_EVERY_S)

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets of a group that has no members."""
        with self._request("OffsetCommit") as connected:
            for at, code in commit_offsets(connected, group, offsets).items():
                if code:
                    raise PipelineError(f"group {group}: the offset of {at} cannot be committed: {error_name(code)}")

    @contextmanager
    def _request(self, api: str = "") -> Iterator[ClusterClient]:
        """Yield a client for one request; convert its errors, and close it after one."""
        try:
            yield self._client
        except PipelineError:
            raise
        except (BrokerError, UnsupportedVersionError) as error:
            self.close()
            # A deleted topic does not come back, though Kafka's clients try again.
            is_retriable = (
                isinstance(error, BrokerError)
                and error.code.retriable
                and error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )
            error_type = BrokerUnavailableError if is_retriable else PipelineError
            raise error_type(f"{api} failed at the broker at {self.bootstrap}: {error}") from error
        except OSError as error:
            self.close()
            subject = f"no response to {api}" if api else "no response"
            raise BrokerUnavailableError(f"{subject} from the broker at {self.bootstrap}: {error}") from error


def all_partitions(topics: Mapping[str, TopicInfo]) -> list[TopicPartition]:
    """Return all partitions of these topics, in order."""
    return [TopicPartition(name, number) for name, info in sorted(topics.items()) for number in range(info.partitions)]
