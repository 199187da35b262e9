"""A server under load: requests to prepare it, and the processor time that it uses."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import TypeVar

from protocol.apis import ApiKey
from protocol.errors import ErrorCode, error_name
from protocol.messages import message_classes
from protocol.messages.k02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from protocol.messages.k10_find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from protocol.messages.k19_create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
)
from protocol.schema.message import Message
from scripts.benchmark.capacity.requests import Topic, api_key
from scripts.benchmark.clients import BROKER, LATEST, Connection
from scripts.benchmark.peers import Peer

M = TypeVar("M", bound=Message)

READY_S = 60
RETRY_S = 0.05
# How long a broker keeps the files of a deleted topic: Kafka begins to look for them 30 s after its start.
DELETE_DELAY_MS = 200
# Errors that a request may have soon after a topic or a coordinator was created, and not later.
TEMPORARY = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.UNKNOWN_TOPIC_ID,
}
# The published table has these versions of requests, so that its figures are comparable with earlier ones.
PINNED_VERSIONS = {ApiKey.PRODUCE: 8, ApiKey.FETCH: 11, ApiKey.METADATA: 8, ApiKey.OFFSET_COMMIT: 5}
_numbers = count()


class Server:
    """A started peer. `label` names it in the table.

    `port`: that of one broker of a cluster. With `node_id`, all partitions of new topics are on that broker.
    """

    def __init__(
        self, peer: Peer, label: str, *, newest_versions: bool = False, port: int = 0, node_id: int | None = None
    ) -> None:
        self.peer = peer
        self.label = label
        self.port = port or peer.port
        self._node_id = node_id
        self.connection = Connection(self.port)
        self._kept_topics: dict[str, Topic] = {}
        self._pinned = {} if newest_versions else PINNED_VERSIONS
        self.connection.alter_configs(BROKER, "", {"log.segment.delete.delay.ms": str(DELETE_DELAY_MS)})

    def version(self, key: ApiKey) -> int:
        """Return the version of the requests of a case."""
        return self._pinned.get(key) or self.connection.version(key)

    def request(self, request: Message, error_of: Callable[..., int], version: int | None = None) -> Message:
        """Send a request until its response has no temporary error. Raises SystemExit for other errors."""
        response_class = message_classes(api_key(request))[1]
        deadline = time.monotonic() + READY_S
        while True:
            response = self.connection.request(request, response_class, version)
            code = error_of(response)
            if not code:
                return response
            if code not in TEMPORARY or time.monotonic() > deadline:
                raise SystemExit(f"{self.label}: {api_key(request).name} failed: {error_name(code)}")
            time.sleep(RETRY_S)

    def create_topic(self, partitions: int, **configs: str) -> Topic:
        """Create a topic, and wait until all its partitions have a leader."""
        name = f"capacity-{os.getpid()}-{next(_numbers):06}"
        rows = [CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()]
        row = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=rows)
        if self._node_id is not None:
            row.num_partitions = row.replication_factor = -1
            row.assignments = [
                CreatableReplicaAssignment(partition_index=index, broker_ids=[self._node_id])
                for index in range(partitions)
            ]
        created = self.connection.create_topic(row)
        self.offsets(name, range(partitions))
        return name, created.topic_id

    def kept_topic(self, key: str, partitions: int) -> Topic:
        """Return the topic of a key, which is created at the first call and stays until the server is removed."""
        if key not in self._kept_topics:
            self._kept_topics[key] = self.create_topic(partitions)
        return self._kept_topics[key]

    def offsets_request(self, topic: str, partitions: Sequence[int]) -> ListOffsetsRequest:
        rows = [ListOffsetsPartition(partition_index=index, timestamp=LATEST) for index in partitions]
        return ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=rows)])

    def offsets(self, topic: str, partitions: Sequence[int]) -> list[int]:
        """Return the high watermarks of some partitions. Each partition's leader responds."""

        def error_of(response: ListOffsetsResponse) -> int:
            return next((row.error_code for row in response.topics[0].partitions if row.error_code), 0)

        response = self.request(self.offsets_request(topic, partitions), error_of)
        assert isinstance(response, ListOffsetsResponse)
        return [row.offset for row in response.topics[0].partitions]

    def delete_topic(self, topic: str) -> None:
        """Delete a topic, and wait until its files are gone: removing them is not part of the next measurement."""
        self.connection.delete_topic(topic)
        deadline = time.monotonic() + READY_S
        while any(self.peer.directory.glob(f"data/**/{topic}-*")) and time.monotonic() < deadline:
            time.sleep(RETRY_S)

    @contextmanager
    def topic(self, partitions: int, **configs: str) -> Iterator[Topic]:
        created = self.create_topic(partitions, **configs)
        yield created
        self.delete_topic(created[0])

    def find_coordinator(self, key: str, key_type: int) -> None:
        """Wait until the coordinator of a group (type 0) or a transactional id (1) is available."""

        def error_of(response: FindCoordinatorResponse) -> int:
            return response.coordinators[0].error_code

        self.request(FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key]), error_of)


@contextmanager
def started(peers: Sequence[tuple[str, Peer]], *, newest_versions: bool = False) -> Iterator[list[Server]]:
    """Start servers; stop them and remove their files at the end of the context. `peers`: with their labels."""
    try:
        servers = []
        for label, peer in peers:
            peer.prepare()
            peer.start()
            servers.append(Server(peer, label, newest_versions=newest_versions))
        yield servers
    finally:
        for _, peer in peers:
            # The data is removed, so a clean shutdown is not necessary.
            peer.kill()
            peer.remove()
