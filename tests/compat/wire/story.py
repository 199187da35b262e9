"""A story: requests of one API in one version, sent to a broker. The responses of its steps are recorded.

Other requests prepare the steps or look at their effects. They use the highest version of their API and are not
recorded, and what they create is deleted at the end.
"""

import secrets
import time
from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, NamedTuple
from uuid import UUID

from tests.compat.broker_connection import ConnectionClosedError
from tests.compat.support import eventually
from tests.compat.wire import kio_messages, stories
from tests.compat.wire.client import Client
from tests.compat.wire.normalizer import ResponseNormalizer

CLOSED = {"connection": "closed"}
KBROKER_CONFIG = "kbroker.record.validation"  # a topic config that only kbroker has
RUN = secrets.token_hex(4)

NAME_FIELDS = ("name", "topic", "group_id", "resource_name", "transactional_id")

# A response as dicts, lists and plain values (kio_messages.plain).
Response = dict[str, Any]


class Cluster:
    """The broker that stories send their requests to. The recorded responses are those of a single node."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        client = Client(bootstrap)
        api_versions = client.request("ApiVersions", 0)
        self.versions = {row.api_key: (row.min_version, row.max_version) for row in api_versions.api_keys}
        metadata = client.request("Metadata", 12, topics=[])
        self.nodes = len(metadata.brokers)
        node = metadata.brokers[0]
        self.node = (node.node_id, node.host, node.port)
        self.cluster_id = metadata.cluster_id
        self.is_kbroker = KBROKER_CONFIG in _topic_configs(client)
        client.close()

    def highest(self, api: str) -> int:
        """Return the highest version that both the broker and kio support."""
        return min(self.versions[kio_messages.api_key(api)][1], kio_messages.known_versions(api)[-1])


class Story:
    """One run of a story: `request` sends a recorded step, `call` an unrecorded request of any API."""

    def __init__(self, cluster: Cluster, api: str, version: int) -> None:
        self.cluster = cluster
        self.api = api
        self.version = version
        self.normalizer = ResponseNormalizer(cluster.node, cluster.cluster_id)
        self.steps: dict[str, dict[str, Any]] = {}
        self._client = Client(cluster.bootstrap)
        self._other_clients: list[Client] = [Client(cluster.bootstrap, "wire-setup")]
        self._topic_ids: dict[str, UUID] = {}
        self._topics_to_delete: set[str] = set()

    # Recorded steps.

    def request(self, step: str, **values: Any) -> Response:
        """Send a request of the story's API, record its response under `step` and return it."""
        response = self._send_step(values)
        self._record(step, response)
        return response

    def request_until(self, step: str, condition: Callable[[Response], bool], **values: Any) -> Response:
        """Like `request`, repeated until the response meets a condition. Only that response is recorded."""
        last: list[Response] = []

        def attempt() -> bool:
            last[:] = [self._send_step(values)]
            return condition(last[0])

        eventually(attempt, f"{self.api}, {step}", 15, 0.02)
        self._record(step, last[0])
        return last[0]

    def start_request(self, step: str, **values: Any) -> Callable[[], Response]:
        """Send a request on a connection of its own; returns a function that waits for its response and records it."""
        client = self._new_client()
        client.send(kio_messages.request(self.api, self.version, values))

        def finish() -> Response:
            response: Response = kio_messages.plain(client.receive(self.api, self.version))
            self._record(step, response)
            return response

        return finish

    def request_frame(self, step: str, frame: bytes, api: str, version: int) -> Response:
        """Send a raw frame; the response, if there is one, is decoded as one of the API in the version."""
        client = Client(self.cluster.bootstrap)
        client.send_raw(frame)
        try:
            cls = kio_messages.entity(api, "response", version)
            response = kio_messages.plain(kio_messages.decode_response_frame(cls, client.receive_raw()))
        except ConnectionClosedError:
            response = CLOSED
        client.close()
        self._record(step, response)
        return response

    def request_own(self, step: str, **values: Any) -> Response:
        """Like `request` for a response that lists everything: only the resources of this story are recorded."""
        response: Response = self._without_others(self._send_step(values))
        self._record(step, response)
        return response

    def _without_others(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self._without_others(item) for name, item in value.items()}
        if isinstance(value, list):
            return [self._without_others(item) for item in value if self._is_own(item)]
        return value

    def _is_own(self, item: Any) -> bool:
        names = [item[field] for field in NAME_FIELDS if field in item] if isinstance(item, dict) else []
        return not names or any(name.startswith(self.name("")) for name in names)

    def record(self, step: str, **values: Any) -> None:
        """Record values that are not the response of a step."""
        self._record(step, values)

    def record_only(self, field: str, *items: str) -> None:
        """From now on record only these items of a list."""
        self.normalizer.recorded_items[field] = set(items)

    def record_all(self, field: str) -> None:
        """Undo `record_only`."""
        del self.normalizer.recorded_items[field]

    def mask(self, *fields: str) -> None:
        """From now on record positive numbers in these fields as placeholders."""
        self.normalizer.masked.update(fields)

    def assign_placeholder(self, field: str, value: Any) -> None:
        """Assign the next placeholder of a field to a value that later responses contain."""
        self.normalizer.flat({field: value})

    def _send_step(self, values: dict[str, Any]) -> Response:
        self.normalizer.keep_chosen(values)
        try:
            response: Response = kio_messages.plain(self._client.request(self.api, self.version, **values))
            return response
        except ConnectionClosedError:
            return CLOSED

    def _record(self, step: str, response: Response) -> None:
        assert step not in self.steps, f"two steps are called {step!r}"
        self.steps[step] = self.normalizer.flat(response)

    def _new_client(self) -> Client:
        client = Client(self.cluster.bootstrap)
        self._other_clients.append(client)
        return client

    # Unrecorded requests.

    def call(self, api: str, **values: Any) -> Response:
        """Send a request of any API in its highest version; fails if the response contains an error."""
        return self.call_in_version(self.cluster.highest(api), api, **values)

    def call_in_version(self, version: int, api: str, **values: Any) -> Response:
        """Like `call`, in a version of the API."""
        response: Response = kio_messages.plain(self._other_clients[0].request(api, version, **values))
        codes = set(error_codes(response))
        assert codes <= {"NONE"}, f"{api}: {codes} in {response}"
        return response

    def try_call(self, api: str, **values: Any) -> Response:
        """Like `call`, but returns a response with errors too."""
        client = self._other_clients[0]
        response: Response = kio_messages.plain(client.request(api, self.cluster.highest(api), **values))
        return response

    def call_until(self, api: str, condition: Callable[[Response], bool], **values: Any) -> Response:
        """Like `try_call`, repeated until the response meets a condition."""
        last: list[Response] = []

        def attempt() -> bool:
            last[:] = [self.try_call(api, **values)]
            return condition(last[0])

        eventually(attempt, f"{api} for {self.api}", 15, 0.01)
        return last[0]

    def start_call(self, api: str, **values: Any) -> Callable[[], Response]:
        """Send a request on a connection of its own; returns a function that waits for its response."""
        client = self._new_client()
        version = self.cluster.highest(api)
        client.send(kio_messages.request(api, version, values))
        return lambda: kio_messages.plain(client.receive(api, version))

    # Names, groups, producers.

    def name(self, name: str) -> str:
        """Return the actual name of a topic, group or transactional id of this story."""
        return f"wire.{RUN}.{self.api}.{self.version}.{name}"

    def group(self, name: str) -> str:
        """Wait until the coordinator of a group is ready, and return the actual name of the group."""
        group = self.name(name)

        def is_ready() -> bool:
            coordinator = self.try_call("FindCoordinator", key_type=0, coordinator_keys=[group])
            offsets = self.try_call("OffsetFetch", groups=[{"group_id": group, "topics": None}])
            return {*error_codes(coordinator), *error_codes(offsets)} == {"NONE"}

        eventually(is_ready, "the coordinator", 30, 0.05)
        return group

    def producer_id(self) -> int:
        """Return a new producer id."""
        fields = {"transactional_id": None, "transaction_timeout": 60_000}
        response = self.call_until("InitProducerId", lambda response: response["error_code"] == "NONE", **fields)
        self.assign_placeholder("producer_id", response["producer_id"])
        return int(response["producer_id"])

    # Topics.

    def own_topic_name(self, name: str) -> str:
        """Return the actual name of a topic that a step may create; it is deleted at the end."""
        topic = self.name(name)
        self._topics_to_delete.add(topic)
        return topic

    def create_topic(self, name: str, partitions: int = 1, **configs: str) -> str:
        """Create a topic that keeps records of any age; returns its actual name. `configs`: underscores for dots."""
        topic = self.name(name)
        configs = {"retention_ms": "-1", **configs}
        rows = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
        fields = {"name": topic, "num_partitions": partitions, "replication_factor": 1, "configs": rows}
        self.call("CreateTopics", topics=[fields], timeout=10_000)
        self.wait_for_topic(topic, partitions)
        return topic

    def wait_for_topic(self, topic: str, partitions: int) -> None:
        """Wait until all partitions have a leader."""
        rows = [{"partition_index": index, "timestamp": -1} for index in range(partitions)]

        def has_leaders() -> bool:
            response = self.try_call("ListOffsets", replica_id=-1, topics=[{"name": topic, "partitions": rows}])
            return set(error_codes(response)) == {"NONE"}

        eventually(has_leaders, f"the partitions of {topic}", 15, 0.01)
        [metadata] = self.call("Metadata", **self._metadata_fields(topic))["topics"]
        self._topic_ids[topic] = UUID(metadata["topic_id"])
        if topic.startswith(self.name("")):
            self._topics_to_delete.add(topic)
        self.normalizer.replace_text(metadata["topic_id"], f"<id of {topic}>")

    def _metadata_fields(self, topic: str) -> dict[str, Any]:
        """Return the fields of a Metadata request that does not create the topic."""
        return {"topics": [{"name": topic, "topic_id": UUID(int=0)}], "allow_auto_topic_creation": False}

    def has_topic(self, topic: str) -> bool:
        """Return whether `create_topic` or `wait_for_topic` has returned for a topic."""
        return topic in self._topic_ids

    def topic_id(self, topic: str) -> UUID:
        return self._topic_ids[topic]

    def produce(self, topic: str, *batches: bytes, partition: int = 0) -> None:
        """Append batches, with a request for each."""
        for batch in batches:
            rows = [{"index": partition, "records": batch}]
            fields = {"name": topic, "topic_id": self.topic_id(topic), "partition_data": rows}
            self.call("Produce", acks=-1, timeout=10_000, topic_data=[fields])

    def end_offset(self, topic: str, partition: int = 0) -> int:
        rows = [{"partition_index": partition, "timestamp": -1}]
        response = self.call("ListOffsets", replica_id=-1, topics=[{"name": topic, "partitions": rows}])
        return int(response["topics"][0]["partitions"][0]["offset"])

    def delete_topic(self, topic: str) -> None:
        """Delete a topic and wait until brokers do not know it any more."""
        self.call("DeleteTopics", topics=[{"name": topic, "topic_id": UUID(int=0)}], timeout=10_000)

        def is_deleted(response: Response) -> bool:
            return bool(response["topics"][0]["error_code"] != "NONE")

        self.call_until("Metadata", is_deleted, **self._metadata_fields(topic))
        self._topic_ids.pop(topic, None)
        self._topics_to_delete.discard(topic)

    def clean_up(self) -> None:
        """Delete the topics of this story and close its connections."""
        topics = [{"name": topic, "topic_id": UUID(int=0)} for topic in sorted(self._topics_to_delete)]
        if topics:
            self.try_call("DeleteTopics", topics=topics, timeout=10_000)
        for client in (self._client, *self._other_clients):
            client.close()


def _topic_configs(client: Client) -> list[str]:
    """Return the names of all topic configs, from a CreateTopics request that only validates."""
    fields = {"name": f"wire.{RUN}", "num_partitions": 1, "replication_factor": 1}
    [topic] = client.request("CreateTopics", 7, topics=[fields], timeout=10_000, validate_only=True).topics
    return [config.name for config in topic.configs]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def error_codes(response: Any) -> list[str]:
    """Return all error codes of a response, of every level."""
    if isinstance(response, dict):
        codes = [value for name, value in response.items() if name in ("error_code", "partition_error_code")]
        return codes + [code for value in response.values() for code in error_codes(value)]
    return [code for item in response for code in error_codes(item)] if isinstance(response, list) else []


class StoryEntry(NamedTuple):
    """The story of an API. `feature`: the feature of the test matrix that it belongs to."""

    feature: str
    run: Callable[[Story], None]


_stories: dict[str, StoryEntry] = {}


def of_api(api: str, feature: str) -> Callable[[Callable[[Story], None]], Callable[[Story], None]]:
    """Register the function as the story of an API."""

    def register(run: Callable[[Story], None]) -> Callable[[Story], None]:
        _stories[api] = StoryEntry(feature, run)
        return run

    return register


def load_stories() -> dict[str, StoryEntry]:
    """Return the stories of all APIs, by the name of the API."""
    for module in iter_modules(stories.__path__):
        import_module(f"{stories.__name__}.{module.name}")
    return _stories
