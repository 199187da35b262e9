"""Group scenarios as text: one command per line, with the responses that it caused indented below it.

The recorded responses are Apache Kafka 4.4.0's. A transcript runs against any target that accepts requests as plain
dicts (field names as in protocol/messages) and returns responses the same way, such as the handlers in virtual time.

    a join@9 group=g session=1000 rebalance=1000 protocols=range:x
      a< MEMBER_ID_REQUIRED member=a1
    sleep 500

The word before the command is the client; member ids are named after the client that received them (a1, a2, ...).
`null` and '' are written as such; `+` is a blank inside a value. A response that had to wait appears below the command
(or the sleep) that caused it, sorted by client.
"""

from collections.abc import Callable
from typing import Any, Protocol

from protocol.errors import ErrorCode
from tests.unit.support import streams_transcript
from tests.unit.support.transcript_names import Body, Names, data, items, value


class Target(Protocol):
    """The receiver of the requests. `responses` returns (client, API, version, body) since the last call."""

    def send(self, client: str, api: str, version: int, body: Body) -> None: ...

    def responses(self, sleep_ms: int) -> list[tuple[str, str, int, Body]]: ...

    def create_topic(self, name: str, partitions: int) -> bytes: ...

    def add_partitions(self, name: str, partitions: int) -> None: ...

    def remove_topic(self, name: str) -> None: ...


class Builder:
    """Builds request bodies from the words of commands."""

    def __init__(self, names: Names) -> None:
        self.names = names

    def join(self, a: dict[str, str], version: int) -> tuple[str, Body]:
        protocols = [item.partition(":") for item in items(a.get("protocols"))]
        body: Body = {
            "group_id": value(a.get("group", "g")),
            "session_timeout_ms": int(a.get("session", 1000)),
            "member_id": self.names.member_id(a.get("member")),
            "protocol_type": value(a.get("type", "consumer")),
            "protocols": [{"name": name, "metadata": data(text)} for name, _, text in protocols],
        }
        optional = {
            "rebalance_timeout_ms": (1, int(a.get("rebalance", 2000))),
            "group_instance_id": (5, value(a.get("instance"))),
            "reason": (8, value(a.get("reason"))),
        }
        return "JoinGroup", body | {name: v for name, (since, v) in optional.items() if version >= since}

    def _member(self, a: dict[str, str], version: int) -> Body:
        body: Body = {
            "group_id": value(a.get("group", "g")),
            "generation_id": int(a.get("gen", -1)),
            "member_id": self.names.member_id(a.get("member")),
        }
        return body | ({"group_instance_id": value(a.get("instance"))} if version >= 3 else {})

    def sync(self, a: dict[str, str], version: int) -> tuple[str, Body]:
        parts = [item.partition(":") for item in items(a.get("assign"))]
        body = self._member(a, version)
        body["assignments"] = [{"member_id": self.names.member_id(m), "assignment": data(t)} for m, _, t in parts]
        if version >= 5:
            body |= {"protocol_type": value(a.get("type")), "protocol_name": value(a.get("protocol"))}
        return "SyncGroup", body

    def heartbeat(self, a: dict[str, str], version: int) -> tuple[str, Body]:
        return "Heartbeat", self._member(a, version)

    def leave(self, a: dict[str, str], version: int) -> tuple[str, Body]:
        body: Body = {"group_id": value(a.get("group", "g"))}
        if version < 3:
            return "LeaveGroup", body | {"member_id": self.names.member_id(a.get("member"))}
        parts = [item.partition("/") for item in items(a.get("members"))]
        body["members"] = [
            {"member_id": self.names.member_id(value(m)), "group_instance_id": i or None} for m, _, i in parts
        ]
        return "LeaveGroup", body

    @staticmethod
    def _topics(text: str | None) -> dict[str, list[list[str]]]:
        topics: dict[str, list[list[str]]] = {}
        for item in items(text):
            topic, *rest = item.split(":")
            topics.setdefault(topic, []).append(rest)
        return topics

    def _topic(self, name: str, version: int, id_since: int) -> Body:
        return {"topic_id": self.names.topics[name]} if version >= id_since else {"name": name}

    def commit(self, a: dict[str, str], version: int) -> tuple[str, Body]:
        body: Body = {
            "group_id": value(a.get("group", "g")),
            "member_id": self.names.member_id(a.get("member")),
            "generation_id_or_member_epoch": int(a.get("gen", -1)),
            "topics": [],
        }
        if version >= 7:
            body["group_instance_id"] = value(a.get("instance"))
        if version <= 4:
            body["retention_time_ms"] = int(a.get("retention", -1))
        for name, rows in self._topics(a.get("offsets")).items():
            partitions = [
                {"partition_index": int(p), "committed_offset": int(o), "committed_metadata": self._metadata(words)}
                for p, o, *words in rows
            ]
            if version >= 6:
                partitions = [row | {"committed_leader_epoch": int(a.get("epoch", -1))} for row in partitions]
            body["topics"].append(self._topic(name, version, 10) | {"partitions": partitions})
        return "OffsetCommit", body

    @staticmethod
    def _metadata(words: list[str]) -> str | None:
        text = value(words[0]) if words else None
        return "m" * int(text[1:]) if text and text.startswith("*") else text

    def fetch(self, a: dict[str, str], version: int) -> tuple[str, Body]:
        """`groups=g(t:0,t:1);h(all)`; before version 8 there is one group."""
        body: Body = {"require_stable": "stable" in a} if version >= 7 else {}
        groups = []
        for text in items(a["groups"], ";"):
            name, _, rest = text.partition("(")
            rest, topics = rest.removesuffix(")"), None
            if rest != "all":
                topics = [
                    self._topic(topic, version, 10) | {"partition_indexes": [int(row[0]) for row in rows]}
                    for topic, rows in self._topics(rest).items()
                ]
            identity: Body = {}
            if "member" in a:
                identity = {"member_id": value(a["member"]), "member_epoch": int(a.get("memberepoch", -1))}
            groups.append({"group_id": value(name), "topics": topics} | identity)
        return "OffsetFetch", body | (groups[0] if version < 8 else {"groups": groups})

    def beat(self, a: dict[str, str], version: int) -> tuple[str, Body]:
        """A heartbeat of the consumer protocol: `topics=t,u`, `owned=t:0,t:1`; what is not named is null.

        A member that joins has a rebalance timeout and no partitions, unless it says something else.
        """
        epoch = int(a.get("epoch", 0))
        joins = epoch == 0
        owned = a.get("owned", "" if joins else "null")
        topics = a.get("topics", "null")
        body: Body = {
            "group_id": value(a.get("group", "g")),
            "member_id": self.names.member_id(value(a.get("member", "''"))),
            "member_epoch": epoch,
            "instance_id": value(a.get("instance")),
            "rack_id": value(a.get("rack")),
            "rebalance_timeout_ms": int(a.get("rebalance", 5000 if joins else -1)),
            "server_assignor": value(a.get("assignor")),
            "subscribed_topic_names": None if topics == "null" else items(topics),
            "topic_partitions": None
            if owned == "null"
            else [
                {"topic_id": self.names.topics[name], "partitions": [int(row[0]) for row in rows]}
                for name, rows in self._topics(owned).items()
            ],
        }
        return "ConsumerGroupHeartbeat", body | ({"subscribed_topic_regex": value(a.get("regex"))} if version else {})

    def cdescribe(self, a: dict[str, str], version: int) -> tuple[str, Body]:
        body: Body = {"group_ids": [value(g) for g in a.get("groups", "g").split(",")]}
        return "ConsumerGroupDescribe", body | {"include_authorized_operations": "ops" in a}

    # Share groups.

    def share(self, a: dict[str, str], version: int) -> tuple[str, Body]:
        """A heartbeat of the share protocol: `topics=t,u`; what is not named is null."""
        topics = a.get("topics", "null")
        return "ShareGroupHeartbeat", {
            "group_id": value(a.get("group", "g")),
            "member_id": value(a.get("member", "''")),
            "member_epoch": int(a.get("epoch", 0)),
            "rack_id": value(a.get("rack")),
            "subscribed_topic_names": None if topics == "null" else items(topics),
        }

    def sdescribe(self, a: dict[str, str], version: int) -> tuple[str, Body]:
        body: Body = {"group_ids": [value(g) for g in a.get("groups", "g").split(",")]}
        return "ShareGroupDescribe", body | {"include_authorized_operations": "ops" in a}

    def soffsets(self, a: dict[str, str], version: int) -> tuple[str, Body]:
        """`groups=g(t:0,t:1);h(all)`."""
        groups = []
        for text in items(a.get("groups", "g(all)"), ";"):
            name, _, rest = text.partition("(")
            rest, topics = rest.removesuffix(")"), None
            if rest != "all":
                topics = [
                    {"topic_name": topic, "partitions": [int(row[0]) for row in rows]}
                    for topic, rows in self._topics(rest).items()
                ]
            groups.append({"group_id": value(name), "topics": topics})
        return "DescribeShareGroupOffsets", {"groups": groups}

    def salter(self, a: dict[str, str], version: int) -> tuple[str, Body]:
        """`offsets=t:0:5`: start offsets."""
        topics = [
            {
                "topic_name": topic,
                "partitions": [{"partition_index": int(p), "start_offset": int(start)} for p, start in rows],
            }
            for topic, rows in self._topics(a.get("offsets")).items()
        ]
        return "AlterShareGroupOffsets", {"group_id": value(a.get("group", "g")), "topics": topics}

    def sforget(self, a: dict[str, str], version: int) -> tuple[str, Body]:
        topics = [{"topic_name": topic} for topic in items(a.get("topics"))]
        return "DeleteShareGroupOffsets", {"group_id": value(a.get("group", "g")), "topics": topics}

    # Streams groups (streams_transcript.py).

    def stream(self, a: dict[str, str], version: int) -> tuple[str, Body]:
        member = self.names.member_id(value(a.get("member", "''")))
        return "StreamsGroupHeartbeat", streams_transcript.heartbeat(a, member)

    def tdescribe(self, a: dict[str, str], version: int) -> tuple[str, Body]:
        body: Body = {"group_ids": [value(g) for g in a.get("groups", "g").split(",")]}
        topology = {"include_topology_description": "topology" in a} if version else {}
        return "StreamsGroupDescribe", body | {"include_authorized_operations": "ops" in a} | topology

    def _share_partition(self, a: dict[str, str], fields: Body) -> Body:
        topic, _, index = a.get("partition", "t:0").partition(":")
        row = {"partition": int(index), **fields}
        topics = [{"topic_id": self.names.topics[topic], "partitions": [row]}]
        return {"group_id": value(a.get("group", "g")), "topics": topics}

    def sread(self, a: dict[str, str], version: int) -> tuple[str, Body]:
        """A leader reads the state of a share partition."""
        return "ReadShareGroupState", self._share_partition(a, {"leader_epoch": int(a.get("leader", 0))})

    def swrite(self, a: dict[str, str], version: int) -> tuple[str, Body]:
        """A leader writes a start offset: `state=EPOCH start=OFFSET count=COMPLETED`."""
        fields = {
            "state_epoch": int(a.get("state", 0)),
            "leader_epoch": int(a.get("leader", 0)),
            "start_offset": int(a.get("start", -1)),
            "delivery_complete_count": int(a.get("count", 0)),
        }
        return "WriteShareGroupState", self._share_partition(a, fields)

    def init(self, a: dict[str, str], version: int) -> tuple[str, Body]:
        return "InitProducerId", {"transactional_id": value(a["id"]), "transaction_timeout_ms": 60_000}

    def _in_transaction(self, a: dict[str, str]) -> Body:
        """`epoch=+1` and `epoch=-1` are relative to the epoch of the producer."""
        producer_id, epoch = self.names.producers.get(a["id"], (4_000_000, 0))
        text = a.get("epoch", "+0")
        epoch = epoch + int(text) if text[0] in "+-" else int(text)
        return {
            "transactional_id": value(a["id"]),
            "producer_id": int(a.get("producer", producer_id)),
            "producer_epoch": epoch,
        }

    def addoffsets(self, a: dict[str, str], version: int) -> tuple[str, Body]:
        return "AddOffsetsToTxn", self._in_transaction(a) | {"group_id": value(a.get("group", "g"))}

    def txncommit(self, a: dict[str, str], version: int) -> tuple[str, Body]:
        body = self._in_transaction(a) | {"group_id": value(a.get("group", "g"))}
        if version >= 3:
            body["generation_id_or_member_epoch"] = int(a.get("gen", -1))
            body["member_id"] = self.names.member_id(a.get("member"))
            body["group_instance_id"] = value(a.get("instance"))
        body["topics"] = [
            {
                "name": name,
                "partitions": [
                    {"partition_index": int(p), "committed_offset": int(o), "committed_metadata": self._metadata(words)}
                    for p, o, *words in rows
                ],
            }
            for name, rows in self._topics(a.get("offsets")).items()
        ]
        return "TxnOffsetCommit", body

    def end(self, a: dict[str, str], version: int) -> tuple[str, Body]:
        return "EndTxn", self._in_transaction(a) | {"committed": "commit" in a}

    def find(self, a: dict[str, str], version: int) -> tuple[str, Body]:
        kind = {"key_type": int(a.get("type", 0))} if version else {}
        keys = [value(key) for key in a.get("key", "g").split(",")]
        return "FindCoordinator", kind | ({"key": keys[0]} if version < 4 else {"coordinator_keys": keys})

    def describe(self, a: dict[str, str], version: int) -> tuple[str, Body]:
        body: Body = {"groups": [value(g) for g in a.get("groups", "g").split(",")]}
        return "DescribeGroups", body | ({"include_authorized_operations": "ops" in a} if version >= 3 else {})

    def list(self, a: dict[str, str], version: int) -> tuple[str, Body]:
        body: Body = {"states_filter": items(a.get("states"))} if version >= 4 else {}
        return "ListGroups", body | ({"types_filter": items(a.get("types"))} if version >= 5 else {})

    def delete(self, a: dict[str, str], version: int) -> tuple[str, Body]:
        return "DeleteGroups", {"groups_names": [value(g) for g in a.get("groups", "g").split(",")]}

    def offsetdelete(self, a: dict[str, str], version: int) -> tuple[str, Body]:
        topics = [
            {"name": name, "partitions": [{"partition_index": int(row[0])} for row in rows]}
            for name, rows in self._topics(a.get("offsets")).items()
        ]
        return "OffsetDelete", {"group_id": value(a.get("group", "g")), "topics": topics}


# Values with which a field is left out of a rendered response.
HIDDEN_VALUES: dict[str, Any] = {
    "throttle_time_ms": 0,
    "error_code": 0,
    "generation_id": -1,
    "leader": "",
    "skip_assignment": False,
    "members": [],
    "protocol_type": None,
    "protocol_name": None,
    "group_instance_id": None,
    "committed_leader_epoch": -1,
    "producer_id": -1,
    "producer_epoch": -1,
    "authorized_operations": -(2**31),
    "results": [],
    # Of streams groups.
    "acceptable_recovery_lag": 10_000,
    "acceptable_recovery_lag_legacy": 0,
    "task_offset_interval_ms": 60_000,
    "status": None,
    "active_tasks": None,
    "standby_tasks": None,
    "warmup_tasks": None,
    "topology_description": None,
    "topology_description_required": False,
    "topology_description_status": 0,
    "partitions_by_user_endpoint": None,
    "user_endpoint": None,
    "client_tags": [],
    "task_offsets": [],
    "task_end_offsets": [],
    "is_classic": False,
}


# Lists without an order.
SORTED = {
    "members",
    "groups",
    "topics",
    "partitions",
    "results",
    "subscribed_topic_names",
    "topic_partitions",
    "active_tasks",
    "standby_tasks",
    "warmup_tasks",
    "active_partitions",
    "standby_partitions",
    "partitions_by_user_endpoint",
    "client_tags",
    "task_offsets",
    "task_end_offsets",
}


def code(number: int) -> str:
    return ErrorCode(number).name


def render(names: Names, body: Body) -> str:
    """Return a response on one line: the error first, then the other fields, with nested ones in brackets."""
    words = [code(body["error_code"])] if "error_code" in body else []
    for name, item in body.items():
        if name == "error_code" or (name in HIDDEN_VALUES and HIDDEN_VALUES[name] == item):
            continue
        words.append(f"{_short(name)}={_shown(names, name, item)}")
    return " ".join(words)


def _short(name: str) -> str:
    return name.removesuffix("_id").removesuffix("_code").removesuffix("_ms")


def _shown(names: Names, name: str, item: Any) -> str:
    if name in ("member_id", "leader"):
        return "null" if item is None else names.shown(item)
    if name == "topic_id":
        return names.topic_name(item)
    if name == "producer_id":
        return names.producer(item)
    if name == "port":
        return "PORT"
    if item is None:
        return "null"
    if isinstance(item, dict):
        return "{" + render(names, item) + "}"
    if isinstance(item, (bytes, memoryview)):
        raw = bytes(item)
        return repr(raw.decode()) if raw.isascii() and raw.decode().isprintable() else "x" + raw.hex()
    if isinstance(item, list):
        rows = [render(names, value) if isinstance(value, dict) else str(value) for value in item]
        if name in SORTED:
            rows.sort(key=lambda row: row.partition(" ")[2] if row.split(" ")[0].isupper() else row)
        return "[" + ", ".join(rows) + "]"
    return (
        (item if item.isprintable() and " " not in item and item else repr(item))
        if isinstance(item, str)
        else str(item)
    )


def run(text: str, target: Target) -> str:
    """Run the commands of a transcript, and return it with the responses of the target."""
    names, out = Names(), []
    builder = Builder(names)
    for line in text.splitlines():
        if line.startswith("  "):
            continue
        out.append(line)
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        sleep_ms = 0
        if words[0] == "sleep":
            sleep_ms = int(words[1])
        elif words[0] == "topic":
            topic, _, partitions = words[1].partition(":")
            names.topics[topic] = target.create_topic(topic, int(partitions))
        elif words[0] == "grow":
            topic, _, partitions = words[1].partition(":")
            target.add_partitions(topic, int(partitions))
        elif words[0] == "drop":
            target.remove_topic(words[1])
        else:
            _send(builder, target, words)
        responses = target.responses(sleep_ms)
        transactional_id = next((word[3:] for word in words if word.startswith("id=")), None)
        for client, _, _, body in responses:
            names.learn_member(client, body.get("member_id", ""))
            names.learn_producer(transactional_id, body)
        responses.sort(key=lambda response: response[0])
        out.extend(f"  {client}< {render(names, body)}" for client, _, _, body in responses)
    return "\n".join(out) + "\n"


def _send(builder: Builder, target: Target, words: list[str]) -> None:
    client, command, *rest = words
    verb, _, version = command.partition("@")
    arguments = {key: text for key, _, text in (word.partition("=") for word in rest)}
    make: Callable[[dict[str, str], int], tuple[str, Body]] = getattr(builder, verb)
    api, body = make(arguments, int(version))
    target.send(client, api, int(version), body)
