"""Records the responses of a real Apache Kafka to transcripts (tests/unit/support/group_transcript.py):

    python -m tests.compat.wire.record_transcripts HOST:PORT FILE...

The broker must be new, and have the configs in the first lines of the files (`#! name=value`).
"""

import select
import sys
import time
from pathlib import Path
from typing import Any

from protocol.apis import ALL_APIS
from protocol.messages import message_classes
from protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from protocol.messages.k15_groups import ListGroupsRequest, ListGroupsResponse
from protocol.messages.k19_create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from protocol.messages.k20_delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from protocol.messages.k37_create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from protocol.messages.k42_delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from tests.compat.broker_connection import BrokerConnection
from tests.compat.support import eventually
from tests.unit.support import group_transcript
from tests.unit.support.group_coordinator import from_dict, to_dict

API_KEYS = {api.name: key for key, api in ALL_APIS.items()}
# The time after which a response without a sleep is one that waits for other clients.
MAX_WAIT_MS = 2_000


class Kafka:
    """The target of a transcript: a connection for each client."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._admin = BrokerConnection(bootstrap, "admin")
        self._connections: dict[str, BrokerConnection] = {}
        self._in_flight: dict[str, list[tuple[str, int]]] = {}
        self._topics: list[str] = []

    def send(self, client: str, api: str, version: int, body: dict[str, Any]) -> None:
        if client not in self._connections:
            self._connections[client] = BrokerConnection(self._bootstrap, client)
        request_class, _ = message_classes(API_KEYS[api])
        connection = self._connections[client]
        connection.send(connection.client.send(from_dict(request_class, body), version).frame)
        self._in_flight.setdefault(client, []).append((api, version))

    def responses(self, sleep_ms: int) -> list[tuple[str, str, int, dict[str, Any]]]:
        found = []
        end = time.monotonic() + (sleep_ms or MAX_WAIT_MS) / 1000
        while (left := end - time.monotonic()) > 0 and (sleep_ms or any(self._in_flight.values())):
            by_socket = {connection.socket: client for client, connection in self._connections.items()}
            for ready in select.select(list(by_socket), [], [], left)[0]:
                client = by_socket[ready]
                api, version = self._in_flight[client].pop(0)
                _, response_class = message_classes(API_KEYS[api])
                response = self._connections[client].receive_response().decode(response_class)
                found.append((client, api, version, to_dict(response, version)))
        return found

    def create_topic(self, name: str, partitions: int) -> bytes:
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
        response = self._admin.request(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 5, CreateTopicsResponse)
        if response.topics[0].error_code:
            raise SystemExit(f"the topic {name} exists: the broker is not new")
        self._topics.append(name)
        topic_id = eventually(lambda: self._topic_id(name), f"topic {name}", 10, 0.05)
        # Coordinators follow the metadata a little later.
        time.sleep(0.3)
        return topic_id

    def add_partitions(self, name: str, partitions: int) -> None:
        request = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name=name, count=partitions, assignments=None)], timeout_ms=10_000
        )
        self._admin.request(request, 3, CreatePartitionsResponse)
        time.sleep(0.3)

    def remove_topic(self, name: str) -> None:
        self._admin.request(DeleteTopicsRequest(topic_names=[name], timeout_ms=10_000), 5, DeleteTopicsResponse)
        self._topics.remove(name)
        time.sleep(0.3)

    def _topic_id(self, name: str) -> bytes | None:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
        (topic,) = self._admin.request(request, 12, MetadataResponse).topics
        return topic.topic_id if topic.partitions else None

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        eventually(self._delete_groups, "groups without members", 30, 0.2)
        self._admin.request(DeleteTopicsRequest(topic_names=self._topics, timeout_ms=10_000), 5, DeleteTopicsResponse)
        self._admin.close()

    def _delete_groups(self) -> bool:
        """Delete the groups that have no members. Returns whether these are all."""
        groups = [group.group_id for group in self._admin.request(ListGroupsRequest(), 5, ListGroupsResponse).groups]
        deleted = self._admin.request(DeleteGroupsRequest(groups_names=groups), 2, DeleteGroupsResponse)
        return not any(result.error_code for result in deleted.results)


def main(bootstrap: str, *files: str) -> None:
    for path in map(Path, files):
        kafka = Kafka(bootstrap)
        try:
            path.write_text(group_transcript.run(path.read_text(), kafka))
        finally:
            kafka.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
