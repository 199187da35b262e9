"""One story, played in one version of the API that it is about. Its steps are recorded, what prepares them is not."""

import secrets
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

from tests.compat.support import eventually
from tests.compat.wire import entities
from tests.compat.wire.client import Closed, Connection
from tests.compat.wire.normal import Normaliser

CLOSED = {"connection": "closed"}
OWN_CONFIG = "kbroker.record.validation"  # of topics; a broker that has it is a kbroker
RUN = secrets.token_hex(4)

NAMES = ("name", "topic", "group_id", "resource_name", "transactional_id")

Answer = dict[str, Any]


class Cluster:
    """The broker that stories are played against; they are meant for one node."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        connection = Connection(bootstrap)
        answer = connection.ask("ApiVersions", 0)
        self.versions = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}
        metadata = connection.ask("Metadata", 12, topics=[])
        self.nodes = len(metadata.brokers)
        node = metadata.brokers[0]
        self.node = (node.node_id, node.host, node.port)
        self.cluster_id = metadata.cluster_id
        self.is_kbroker = OWN_CONFIG in _topic_configs(connection)
        connection.close()

    def highest(self, api: str) -> int:
        """The highest version that the broker and kio have."""
        return min(self.versions[entities.api_key(api)][1], entities.known_versions(api)[-1])


class Play:
    """What a story uses: `ask` for a step that is recorded, `do` for what must work besides."""

    def __init__(self, cluster: Cluster, api: str, version: int) -> None:
        self.cluster = cluster
        self.api = api
        self.version = version
        self.normal = Normaliser(cluster.node, cluster.cluster_id)
        self.steps: dict[str, dict[str, Any]] = {}
        self._connection = Connection(cluster.bootstrap)
        self._others: list[Connection] = [Connection(cluster.bootstrap, "wire-setup")]
        self._topics: dict[str, UUID] = {}
        self._made: set[str] = set()

    # What is recorded.

    def ask(self, step: str, **values: Any) -> Answer:
        """Asks the story's API in the story's version, records the answer under `step`, and gives it."""
        answer = self._asked(self._connection, values)
        self._record(step, answer)
        return answer

    def ask_until(self, step: str, done: Callable[[Answer], bool], **values: Any) -> Answer:
        """As `ask`, again and again until the answer is such; only that one is recorded."""
        last: list[Answer] = []

        def asked() -> bool:
            last[:] = [self._asked(self._connection, values)]
            return done(last[0])

        eventually(asked, f"{self.api}, {step}", 15, 0.02)
        self._record(step, last[0])
        return last[0]

    def begin(self, step: str, **values: Any) -> Callable[[], Answer]:
        """Asks on a connection of its own; what is given waits for the answer and records it."""
        connection = Connection(self.cluster.bootstrap)
        self._others.append(connection)
        connection.send(entities.request(self.api, self.version, values))

        def finish() -> Answer:
            answer: Answer = entities.plain(connection.receive(self.api, self.version))
            self._record(step, answer)
            return answer

        return finish

    def begin_do(self, api: str, **values: Any) -> Callable[[], Answer]:
        """As `do`, on a connection of its own; what is given waits for the answer."""
        connection = Connection(self.cluster.bootstrap)
        self._others.append(connection)
        version = self.cluster.highest(api)
        connection.send(entities.request(api, version, values))
        return lambda: entities.plain(connection.receive(api, version))

    def frame(self, step: str, frame: bytes, api: str, version: int) -> Answer:
        """Sends bytes; the answer, if there is one, is read as that API's in that version."""
        connection = Connection(self.cluster.bootstrap)
        connection.send_raw(frame)
        try:
            cls = entities.entity(api, "response", version)
            answer = entities.plain(entities.decode_frame(cls, connection.receive_raw())[1])
        except Closed:
            answer = CLOSED
        connection.close()
        self._record(step, answer)
        return answer

    def ask_own(self, step: str, **values: Any) -> Answer:
        """As `ask`, for what answers with everything there is: records only what belongs to this story."""
        answer: Answer = self._own(self._asked(self._connection, values))
        self._record(step, answer)
        return answer

    def _own(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self._own(item) for name, item in value.items()}
        if isinstance(value, list):
            return [self._own(item) for item in value if self._is_own(item)]
        return value

    def _is_own(self, item: Any) -> bool:
        names = [item[key] for key in NAMES if key in item] if isinstance(item, dict) else []
        return not names or any(name.startswith(self.name("")) for name in names)

    def note(self, step: str, **what: Any) -> None:
        """Records what was seen otherwise than in an answer."""
        self._record(step, what)

    def show_only(self, field: str, *items: str) -> None:
        """From now on only these items of a list are recorded."""
        self.normal.shown[field] = set(items)

    def show_all(self, field: str) -> None:
        """Takes back `show_only`."""
        del self.normal.shown[field]

    def mask(self, *fields: str) -> None:
        """From now on the numbers of these fields, if they are above zero, are recorded as the fields' names."""
        self.normal.masked.update(fields)

    def learn(self, field: str, value: Any) -> None:
        """A value that the next answers will hold gets its name now."""
        self.normal.flat({field: value})

    def _asked(self, connection: Connection, values: dict[str, Any]) -> Answer:
        self.normal.keep_chosen(values)
        try:
            answer: Answer = entities.plain(connection.ask(self.api, self.version, **values))
            return answer
        except Closed:
            return CLOSED

    def _record(self, step: str, answer: Answer) -> None:
        assert step not in self.steps, f"two steps are called {step!r}"
        self.steps[step] = self.normal.flat(answer)

    # What is not.

    def send(self, **values: Any) -> None:
        """Sends the story's API a request that gets no answer."""
        self._connection.send(entities.request(self.api, self.version, values))

    def do(self, api: str, **values: Any) -> Answer:
        """Asks any API in its highest version; fails on an error in the answer."""
        return self.do_in(self.cluster.highest(api), api, **values)

    def do_in(self, version: int, api: str, **values: Any) -> Answer:
        """As `do`, in a version of the API."""
        answer: Answer = entities.plain(self._others[0].ask(api, version, **values))
        codes = set(error_codes(answer))
        assert codes <= {"NONE"}, f"{api}: {codes} in {answer}"
        return answer

    def try_(self, api: str, **values: Any) -> Answer:
        """Asks any API in its highest version."""
        answer: Answer = entities.plain(self._others[0].ask(api, self.cluster.highest(api), **values))
        return answer

    def name(self, name: str) -> str:
        """The name that a topic or group of this story really has."""
        return f"wire.{RUN}.{self.api}.{self.version}.{name}"

    def made(self, name: str) -> str:
        """The real name of a topic that the story may make itself; it is deleted at the end."""
        real = self.name(name)
        self._made.add(real)
        return real

    def group(self, name: str) -> str:
        """The real name of a group whose coordinator is ready."""
        real = self.name(name)

        def ready() -> bool:
            found = self.try_("FindCoordinator", key_type=0, coordinator_keys=[real])
            fetched = self.try_("OffsetFetch", groups=[{"group_id": real, "topics": None}])
            return {*error_codes(found), *error_codes(fetched)} == {"NONE"}

        eventually(ready, "the coordinator", 30, 0.05)
        return real

    def producer(self) -> int:
        """A new producer id."""
        asked = {"transactional_id": None, "transaction_timeout": 60_000}
        answer = self.until("InitProducerId", lambda got: got["error_code"] == "NONE", **asked)
        self.learn("producer_id", answer["producer_id"])
        return int(answer["producer_id"])

    def until(self, api: str, done: Callable[[Answer], bool], **values: Any) -> Answer:
        """As `try_`, again and again until the answer is such."""
        last: list[Answer] = []

        def asked() -> bool:
            last[:] = [self.try_(api, **values)]
            return done(last[0])

        eventually(asked, f"{api} for {self.api}", 15, 0.01)
        return last[0]

    def topic(self, name: str, partitions: int = 1, **configs: str) -> str:
        """Makes a topic that keeps its records whatever their time; gives its real name. `configs`: _ for each dot."""
        real = self.name(name)
        settings = {"retention_ms": "-1", **configs}
        listed = [{"name": key.replace("_", "."), "value": value} for key, value in settings.items()]
        spec = {"name": real, "num_partitions": partitions, "replication_factor": 1, "configs": listed}
        self.do("CreateTopics", topics=[spec], timeout=10_000)
        self.wait_for(real, partitions)
        return real

    def wait_for(self, real: str, partitions: int) -> None:
        """Returns when the topic's partitions can be used; learns its id."""
        wanted = [{"partition_index": index, "timestamp": -1} for index in range(partitions)]

        def led() -> bool:
            answer = self.try_("ListOffsets", replica_id=-1, topics=[{"name": real, "partitions": wanted}])
            return set(error_codes(answer)) == {"NONE"}

        eventually(led, f"the partitions of {real}", 15, 0.01)
        [found] = self.do("Metadata", **self._looked_up(real))["topics"]
        self._topics[real] = UUID(found["topic_id"])
        if real.startswith(self.name("")):
            self._made.add(real)
        self.normal.name_text(found["topic_id"], f"<id of {real}>")

    def _looked_up(self, real: str) -> dict[str, Any]:
        """The fields of a Metadata request that does not make the topic."""
        return {"topics": [{"name": real, "topic_id": UUID(int=0)}], "allow_auto_topic_creation": False}

    def has(self, real: str) -> bool:
        """Whether the story has made such a topic."""
        return real in self._topics

    def id(self, real: str) -> UUID:
        """The id of a topic that the story has made."""
        return self._topics[real]

    def produce(self, real: str, *batches: bytes, partition: int = 0) -> None:
        """Appends batches, one after the other."""
        for data in batches:
            part = [{"index": partition, "records": data}]
            topic = {"name": real, "topic_id": self.id(real), "partition_data": part}
            self.do("Produce", acks=-1, timeout=10_000, topic_data=[topic])

    def end_offset(self, real: str, partition: int = 0) -> int:
        wanted = [{"partition_index": partition, "timestamp": -1}]
        answer = self.do("ListOffsets", replica_id=-1, topics=[{"name": real, "partitions": wanted}])
        return int(answer["topics"][0]["partitions"][0]["offset"])

    def drop_topic(self, real: str) -> None:
        """Deletes a topic and returns when it is gone."""
        self.do("DeleteTopics", topics=[{"name": real, "topic_id": UUID(int=0)}], timeout=10_000)
        self.until("Metadata", lambda got: got["topics"][0]["error_code"] != "NONE", **self._looked_up(real))
        self._topics.pop(real, None)
        self._made.discard(real)

    def end(self) -> None:
        """Takes away what the story has left."""
        wanted = [{"name": real, "topic_id": UUID(int=0)} for real in sorted(self._made)]
        if wanted:
            self.try_("DeleteTopics", topics=wanted, timeout=10_000)
        for connection in (self._connection, *self._others):
            connection.close()


def _topic_configs(connection: Connection) -> list[str]:
    """The names of all configs that a topic has, learned from one that is not made."""
    spec = {"name": f"wire.{RUN}", "num_partitions": 1, "replication_factor": 1}
    [topic] = connection.ask("CreateTopics", 7, topics=[spec], timeout=10_000, validate_only=True).topics
    return [config.name for config in topic.configs]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def error_codes(answer: Any) -> list[str]:
    """All error codes of a plain answer."""
    if isinstance(answer, dict):
        found = [value for name, value in answer.items() if name in ("error_code", "partition_error_code")]
        return found + [code for value in answer.values() for code in error_codes(value)]
    return [code for item in answer for code in error_codes(item)] if isinstance(answer, list) else []
