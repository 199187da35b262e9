"""The requests of one user to one API in one version, and the broker that they are sent to."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, NamedTuple
from uuid import UUID, uuid5

from protocol.messages.k17_sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from tests.compat.broker_connection import BrokerConnection, ConnectionClosedError
from tests.compat.security.authorization import rows
from tests.compat.security.authorization.users import PASSWORD, SUPER, all_users, grants_of, login, users_of
from tests.compat.support import eventually
from tests.compat.wire import kio_messages
from tests.compat.wire.client import Client
from tests.compat.wire.normalizer import ResponseNormalizer
from tests.compat.wire.recorded_responses import Steps
from tests.compat.wire.story import CLOSED, Response, error_codes

ANY_ACL = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}


class LoggedInClient(Client):
    """A client that logs in with PLAIN, and sends also requests of APIs that kbroker does not have."""

    def __init__(self, bootstrap: str, user: str) -> None:
        super().__init__(bootstrap)
        self._token = f"\0{login(user)}\0{PASSWORD}".encode()

    def _connected(self) -> BrokerConnection:
        is_new = self._connection is None
        connection = super()._connected()
        if is_new:
            connection.request(SaslHandshakeRequest(mechanism="PLAIN"), 1, SaslHandshakeResponse)
            token = SaslAuthenticateRequest(auth_bytes=self._token)
            response = connection.request(token, 2, SaslAuthenticateResponse)
            assert response.error_code == 0, response
        return connection

    def request(self, api: str, version: int, **values: Any) -> Any:
        self.send_raw(kio_messages.encode_request_frame(kio_messages.request(api, version, values), 1, "wire"))
        return kio_messages.decode_response_frame(kio_messages.entity(api, "response", version), self.receive_raw())


class World:
    """A new broker, with the ACLs of all users and what `prepare` functions have created."""

    def __init__(self, bootstrap: str, users: list[str]) -> None:
        self.bootstrap = bootstrap
        self.topic_ids: dict[str, UUID] = {}
        self._clients: dict[str, LoggedInClient] = {}
        api_versions = self.client(SUPER).request("ApiVersions", 0)
        self.versions = {row.api_key: (row.min_version, row.max_version) for row in api_versions.api_keys}
        metadata = self.call("Metadata", topics=[])
        [node] = metadata["brokers"]
        self.node = (node["node_id"], node["host"], node["port"])
        self.cluster_id = metadata["cluster_id"]
        self._create_acls(users)

    def _create_acls(self, users: list[str]) -> None:
        acls = [grant.acl(login(user)) for user in users for grant in grants_of(user)]
        self.call("CreateAcls", creations=acls)

        def are_known() -> bool:
            resources = self.call("DescribeAcls", **ANY_ACL)["resources"]
            return sum(len(row["acls"]) for row in resources) >= len(acls)

        eventually(are_known, "the ACLs")

    def client(self, user: str) -> LoggedInClient:
        if user not in self._clients:
            self._clients[user] = LoggedInClient(self.bootstrap, user)
        return self._clients[user]

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    # Requests of the super user, in the highest version.

    def highest(self, api: str) -> int:
        return min(self.versions[kio_messages.api_key(api)][1], kio_messages.known_versions(api)[-1])

    def try_call(self, api: str, **values: Any) -> Response:
        response: Response = kio_messages.plain(self.client(SUPER).request(api, self.highest(api), **values))
        return response

    def call(self, api: str, **values: Any) -> Response:
        """Send a request; fails if the response contains an error."""
        response = self.try_call(api, **values)
        codes = set(error_codes(response))
        assert codes <= {"NONE"}, f"{api}: {codes} in {response}"
        return response

    def call_until_done(self, api: str, **values: Any) -> Response:
        """Like `call`, repeated while there is an error, such as that of an internal topic that is just created."""
        last: list[Response] = []

        def attempt() -> bool:
            last[:] = [self.try_call(api, **values)]
            return set(error_codes(last[0])) <= {"NONE"}

        eventually(attempt, f"{api} {values}", 30, 0.02)
        return last[0]

    def ensure_topic(self, name: str, partitions: int = 1) -> UUID:
        """Create a topic if there is none; returns its id."""
        if name not in self.topic_ids:
            # Records of tests have timestamps of long ago.
            configs = [{"name": "retention.ms", "value": "-1"}]
            fields = {"name": name, "num_partitions": partitions, "replication_factor": 1, "configs": configs}
            self.call_until_done("CreateTopics", topics=[fields], timeout=10_000)
            row = {"name": name, "partitions": [{"partition_index": 0, "timestamp": -1}]}
            self.call_until_done("ListOffsets", replica_id=-1, topics=[row])
            [metadata] = self.call("Metadata", topics=[{"name": name}])["topics"]
            self.topic_ids[name] = UUID(metadata["topic_id"])
        return self.topic_ids[name]


class Case:
    """Sends requests and records the responses."""

    def __init__(self, world: World, api: str, version: int, user: str) -> None:
        self.world, self.api, self.version, self.user = world, api, version, user
        self.steps: dict[str, dict[str, Any]] = {}
        self.normalizer = ResponseNormalizer(world.node, world.cluster_id)

    def topic_id(self, topic: str) -> UUID:
        return self.world.topic_ids[topic]

    def topic_fields(self, topic: str, **fields: Any) -> dict[str, Any]:
        """Return the fields with which versions name a topic, and others; an unknown topic has an unknown id."""
        id = self.world.topic_ids.get(topic, UUID(int=len(topic)))
        return {"name": topic, "topic": topic, "topic_id": id, **fields}

    def fresh(self, name: str) -> str:
        """Return a name that no other case has."""
        fresh = f"{name}.{self.api}.{self.version}.{login(self.user)}"
        self.normalizer.replace_text(fresh, name)
        return fresh

    def request(self, step: str, **values: Any) -> Response:
        assert step not in self.steps, f"two steps are called {step!r}"
        for topic, id in self.world.topic_ids.items():
            self.normalizer.replace_text(str(id), f"<id of {topic}>")
        self.normalizer.keep_chosen(values)
        values = known_fields(self.api, values)
        try:
            client = self.world.client(self.user)
            response: Response = _named(kio_messages.plain(client.request(self.api, self.version, **values)))
        except ConnectionClosedError:
            response = CLOSED
        self.steps[step] = self.normalizer.flat(response)
        return response

    def fresh_uuid(self) -> UUID:
        """Return an id that no other case has."""
        return uuid5(UUID(int=0), f"{self.api} {self.version} {self.user}")

    def request_until(self, step: str, condition: Callable[[Response], bool], **values: Any) -> None:
        """Like `request`, repeated until the response meets a condition. Only that response is recorded."""

        def attempt() -> bool:
            self.steps.pop(step, None)
            return condition(self.request(step, **values))

        eventually(attempt, f"{self.api}, {step}", 30, 0.05)

    def record_only(self, field: str, *items: str) -> None:
        """From now on record only these items of a list."""
        self.normalizer.recorded_items[field] = set(items)

    def mask(self, *fields: str) -> None:
        """From now on record positive numbers in these fields as placeholders."""
        self.normalizer.masked.update(fields)


def known_fields(api: str, value: Any) -> Any:
    """Return a value without the fields that no version of an API has, such as one of the names of a topic."""
    known = kio_messages._all_names(api)
    if isinstance(value, dict):
        return {name: known_fields(api, item) for name, item in value.items() if name in known}
    return [known_fields(api, item) for item in value] if isinstance(value, list) else value


def _named(value: Any) -> Any:
    """Return a response without null names, and without ids of topics that have a name; plain lists are sorted."""
    if isinstance(value, dict):
        name = next((name for name in ("name", "topic_name") if name in value), "")
        removed = name if name and value[name] is None else "topic_id" if name == "topic_name" else ""
        return {name: _named(item) for name, item in value.items() if name != removed}
    if isinstance(value, list):
        is_plain = value and isinstance(value[0], str)
        return sorted(value) if is_plain else [_named(item) for item in value]
    return value


class Row(NamedTuple):
    """The requests of an API. `rights`: those that all of them need together."""

    rights: tuple[str, ...]
    run: Callable[[Case], None]

    def users(self, is_highest: bool) -> list[str]:
        return all_users(self.rights) if is_highest else users_of(self.rights)


_rows: dict[str, Row] = {}
_preparations: list[Callable[[World], None]] = []


def of_api(api: str, *rights: str) -> Callable[[Callable[[Case], None]], Callable[[Case], None]]:
    """Register the function as the row of an API."""

    def register(run: Callable[[Case], None]) -> Callable[[Case], None]:
        _rows[api] = Row(rights, run)
        return run

    return register


def preparation(prepare: Callable[[World], None]) -> Callable[[World], None]:
    """Register a function that is called once, before all rows."""
    _preparations.append(prepare)
    return prepare


def load_rows() -> dict[str, Row]:
    """Return the rows of all APIs, by the name of the API."""
    for module in iter_modules(rows.__path__):
        import_module(f"{rows.__name__}.{module.name}")
    return _rows


def matrix_users() -> list[str]:
    """Return all users."""
    return list(dict.fromkeys(user for row in load_rows().values() for user in row.users(True)))


@contextmanager
def new_world(bootstrap: str) -> Iterator[World]:
    world = World(bootstrap, matrix_users())
    for prepare in _preparations:
        prepare(world)
    yield world
    world.close()


def versions_of(world: World, api: str) -> list[int]:
    """Return the lowest and the highest version; of an API that is not advertised the one that kio has."""
    known = kio_messages.known_versions(api)
    first, last = world.versions.get(kio_messages.api_key(api), (known[-1], known[-1]))
    return sorted({max(first, known[0]), min(last, known[-1])})


def steps_of(world: World, api: str, version: int, user: str) -> Steps:
    case = Case(world, api, version, user)
    load_rows()[api].run(case)
    return case.steps
