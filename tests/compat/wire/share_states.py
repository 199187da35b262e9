"""Records what Apache Kafka responds to requests for the state of share partitions, and the records that it writes:

    python -m tests.compat.wire.share_states HOST:PORT LOG-DIRECTORY

The broker must be new, with one node.
"""

import sys
import time
from base64 import urlsafe_b64encode
from pathlib import Path

from protocol.messages import message_classes
from protocol.messages.k10_find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from protocol.messages.k19_create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from protocol.schema.message import Message, message_info
from tests.compat.broker_connection import BrokerConnection
from tests.unit.support.share_lines import FIXED_REQUESTS, random_requests, run

DATA = Path(__file__).parents[2] / "unit" / "coordinator" / "data"
TOPIC = "share-states"


def main(bootstrap: str, directory: str) -> None:
    connection = BrokerConnection(bootstrap)
    created = CreateTopicsRequest(
        topics=[CreatableTopic(name=TOPIC, num_partitions=2, replication_factor=1)], timeout_ms=5000
    )
    topic_id = connection.request(created, 7, CreateTopicsResponse).topics[0].topic_id
    key = f"g:{urlsafe_b64encode(topic_id).decode().rstrip('=')}:0"
    find = FindCoordinatorRequest(key_type=2, coordinator_keys=[key])
    while connection.request(find, 6, FindCoordinatorResponse).coordinators[0].error_code:
        time.sleep(0.2)

    def send(request: Message, version: int) -> Message:
        api_key = message_info(type(request)).key
        assert api_key is not None
        return connection.request(request, version, message_classes(api_key)[1])

    requests = [*FIXED_REQUESTS, *[request for seed in range(20) for request in random_requests(seed)]]
    lines = [f"topic {topic_id.hex()}", *[run(request, topic_id, send) for request in requests]]
    (DATA / "share-states-4.4.0.txt").write_text("".join(f"{line}\n" for line in lines))
    logs = sorted(Path(directory).glob("__share_group_state-*/*.log"))
    (DATA / "share-states-4.4.0.log").write_bytes(b"".join(log.read_bytes() for log in logs))


if __name__ == "__main__":
    main(*sys.argv[1:])
