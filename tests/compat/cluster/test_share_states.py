"""The state of a share partition while its share coordinator is killed in the midst of writes (KIP-932)."""

from base64 import urlsafe_b64encode
from typing import Any
from uuid import UUID

from tests.compat.broker_connection import ConnectionClosedError
from tests.compat.cluster.cluster import Cluster
from tests.compat.cluster.views import SHARE
from tests.compat.cluster.work import create_topic
from tests.compat.support import eventually, unique
from tests.compat.wire import kio_messages
from tests.compat.wire.client import Client

KILLS, WRITES = 3, 10
NOT_NOW = ("NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS", "REQUEST_TIMED_OUT")


class SharePartition:
    """Partition 0 of a topic for a new group, as the leader of the partition reads and writes its state."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster = cluster
        metadata = Client(cluster.brokers[1].bootstrap).request("Metadata", 12, topics=[{"name": topic}])
        self._topic_id: UUID = metadata.topics[0].topic_id
        self._group = unique("share")
        self.key = f"{self._group}:{urlsafe_b64encode(self._topic_id.bytes).decode().rstrip('=')}:0"

    def coordinator(self) -> int:
        return self._cluster.coordinator(self.key, SHARE)

    def send(self, api: str, version: int, **fields: Any) -> Client:
        """Send a request to the coordinator without waiting for the response."""
        client = Client(self._cluster.brokers[self.coordinator()].bootstrap)
        client.send(kio_messages.request(api, version, self._values(fields)))
        return client

    def call(self, api: str, version: int, **fields: Any) -> dict[str, Any]:
        """Return the response for the partition, which is no error that passes."""

        def attempt() -> dict[str, Any] | None:
            try:
                response = self.send(api, version, **fields).receive(api, version)
            except (ConnectionClosedError, OSError):
                return None
            row: dict[str, Any] = kio_messages.plain(response)["results"][0]["partitions"][0]
            return None if row["error_code"] in NOT_NOW else row

        result = eventually(attempt, f"{api} for {self.key}", interval=0.1)
        assert result is not None
        assert result["error_code"] == "NONE", result
        return result

    def _values(self, fields: dict[str, Any]) -> dict[str, Any]:
        return {
            "group_id": self._group,
            "topics": [{"topic_id": self._topic_id, "partitions": [{"partition": 0, **fields}]}],
        }


def written(start: int) -> dict[str, Any]:
    ranges = [{"first_offset": start + 1, "last_offset": start + 1, "delivery_state": 0, "delivery_count": 2}]
    state = {"start_offset": start, "delivery_complete_count": 0, "state_batches": ranges}
    return {"state_epoch": 1, "leader_epoch": 5, **state}


def test_acknowledged_writes_survive_kills_of_the_coordinator(cluster: Cluster) -> None:
    """A state has the last acknowledged write or the one in flight, whole; its floor for leader epochs stays."""
    part = SharePartition(cluster, create_topic(cluster, [[1, 2, 3]]))
    part.call("InitializeShareGroupState", 0, state_epoch=1, start_offset=0)
    start = 0
    for _ in range(KILLS):
        for _ in range(WRITES):
            start += 10
            part.call("WriteShareGroupState", 1, **written(start))
        victim = part.coordinator()
        part.send("WriteShareGroupState", 1, **written(start + 10))
        cluster.kill(victim)
        state = part.call("ReadShareGroupState", 0, leader_epoch=5)
        assert part.coordinator() != victim
        assert state["start_offset"] in (start, start + 10)
        start = state["start_offset"]
        [only] = state["state_batches"]
        assert (only["first_offset"], only["delivery_count"]) == (start + 1, 2)
        older = part.send("WriteShareGroupState", 1, **{**written(0), "leader_epoch": 4})
        row = kio_messages.plain(older.receive("WriteShareGroupState", 1))["results"][0]["partitions"][0]
        assert row["error_code"] == "FENCED_LEADER_EPOCH"
        cluster.restore()
