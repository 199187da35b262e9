"""The commands of transcripts (group_transcript.py) as request bodies: a method of `Builder` for each verb."""

from tests.unit.support import streams_transcript
from tests.unit.support.transcript_names import Body, Names, data, items, value


def _group(a: dict[str, str]) -> str | None:
    return value(a.get("group", "g"))


def _groups(a: dict[str, str]) -> list[str | None]:
    return [value(group) for group in a.get("groups", "g").split(",")]


class Builder:
    """Builds request bodies from the words of commands."""

    def __init__(self, names: Names) -> None:
        self.names = names

    def join(self, a: dict[str, str], version: int) -> tuple[str, Body]:
        protocols = [item.partition(":") for item in items(a.get("protocols"))]
        body: Body = {
            "group_id": _group(a),
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
            "group_id": _group(a),
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
        body: Body = {"group_id": _group(a)}
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

    def _chosen(self, text: str) -> tuple[str, dict[str, list[int]] | None]:
        """`g(t:0,t:1)`: a group and its partitions by topic, None if they are `all`."""
        name, _, rest = text.partition("(")
        if rest == "all)":
            return name, None
        return name, {
            topic: [int(row[0]) for row in rows] for topic, rows in self._topics(rest.removesuffix(")")).items()
        }

    def _topic(self, name: str, version: int, id_since: int) -> Body:
        return {"topic_id": self.names.topics[name]} if version >= id_since else {"name": name}

    def commit(self, a: dict[str, str], version: int) -> tuple[str, Body]:
        body: Body = {
            "group_id": _group(a),
            "member_id": self.names.member_id(a.get("member")),
            "generation_id_or_member_epoch": int(a.get("gen", -1)),
            "topics": [],
        }
        if version >= 7:
            body["group_instance_id"] = value(a.get("instance"))
        if version <= 4:
            body["retention_time_ms"] = int(a.get("retention", -1))
        for name, rows in self._topics(a.get("offsets")).items():
            partitions = self._committed(rows)
            if version >= 6:
                partitions = [row | {"committed_leader_epoch": int(a.get("epoch", -1))} for row in partitions]
            body["topics"].append(self._topic(name, version, 10) | {"partitions": partitions})
        return "OffsetCommit", body

    def _committed(self, rows: list[list[str]]) -> list[Body]:
        return [
            {"partition_index": int(p), "committed_offset": int(o), "committed_metadata": self._metadata(words)}
            for p, o, *words in rows
        ]

    @staticmethod
    def _metadata(words: list[str]) -> str | None:
        text = value(words[0]) if words else None
        return "m" * int(text[1:]) if text and text.startswith("*") else text

    def fetch(self, a: dict[str, str], version: int) -> tuple[str, Body]:
        """`groups=g(t:0,t:1);h(all)`; before version 8 there is one group."""
        body: Body = {"require_stable": "stable" in a} if version >= 7 else {}
        groups = []
        for text in items(a["groups"], ";"):
            name, chosen = self._chosen(text)
            topics = chosen and [
                self._topic(topic, version, 10) | {"partition_indexes": partitions}
                for topic, partitions in chosen.items()
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
            "group_id": _group(a),
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
        body: Body = {"group_ids": _groups(a)}
        return "ConsumerGroupDescribe", body | {"include_authorized_operations": "ops" in a}

    # Share groups.

    def share(self, a: dict[str, str], version: int) -> tuple[str, Body]:
        """A heartbeat of the share protocol: `topics=t,u`; what is not named is null."""
        topics = a.get("topics", "null")
        return "ShareGroupHeartbeat", {
            "group_id": _group(a),
            "member_id": value(a.get("member", "''")),
            "member_epoch": int(a.get("epoch", 0)),
            "rack_id": value(a.get("rack")),
            "subscribed_topic_names": None if topics == "null" else items(topics),
        }

    def sdescribe(self, a: dict[str, str], version: int) -> tuple[str, Body]:
        body: Body = {"group_ids": _groups(a)}
        return "ShareGroupDescribe", body | {"include_authorized_operations": "ops" in a}

    def soffsets(self, a: dict[str, str], version: int) -> tuple[str, Body]:
        """`groups=g(t:0,t:1);h(all)`."""
        groups = []
        for text in items(a.get("groups", "g(all)"), ";"):
            name, chosen = self._chosen(text)
            topics = chosen and [{"topic_name": topic, "partitions": part} for topic, part in chosen.items()]
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
        return "AlterShareGroupOffsets", {"group_id": _group(a), "topics": topics}

    def sforget(self, a: dict[str, str], version: int) -> tuple[str, Body]:
        topics = [{"topic_name": topic} for topic in items(a.get("topics"))]
        return "DeleteShareGroupOffsets", {"group_id": _group(a), "topics": topics}

    def _share_partition(self, a: dict[str, str], fields: Body) -> Body:
        topic, _, index = a.get("partition", "t:0").partition(":")
        row = {"partition": int(index), **fields}
        topics = [{"topic_id": self.names.topics[topic], "partitions": [row]}]
        return {"group_id": _group(a), "topics": topics}

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

    # Streams groups (streams_transcript.py).

    def stream(self, a: dict[str, str], version: int) -> tuple[str, Body]:
        member = self.names.member_id(value(a.get("member", "''")))
        return "StreamsGroupHeartbeat", streams_transcript.heartbeat(a, member)

    def tdescribe(self, a: dict[str, str], version: int) -> tuple[str, Body]:
        body: Body = {"group_ids": _groups(a)}
        topology = {"include_topology_description": "topology" in a} if version else {}
        return "StreamsGroupDescribe", body | {"include_authorized_operations": "ops" in a} | topology

    # Transactions, and all kinds of groups.

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
        return "AddOffsetsToTxn", self._in_transaction(a) | {"group_id": _group(a)}

    def txncommit(self, a: dict[str, str], version: int) -> tuple[str, Body]:
        body = self._in_transaction(a) | {"group_id": _group(a)}
        if version >= 3:
            body["generation_id_or_member_epoch"] = int(a.get("gen", -1))
            body["member_id"] = self.names.member_id(a.get("member"))
            body["group_instance_id"] = value(a.get("instance"))
        body["topics"] = [
            {"name": name, "partitions": self._committed(rows)} for name, rows in self._topics(a.get("offsets")).items()
        ]
        return "TxnOffsetCommit", body

    def end(self, a: dict[str, str], version: int) -> tuple[str, Body]:
        return "EndTxn", self._in_transaction(a) | {"committed": "commit" in a}

    def find(self, a: dict[str, str], version: int) -> tuple[str, Body]:
        kind = {"key_type": int(a.get("type", 0))} if version else {}
        keys = [value(key) for key in a.get("key", "g").split(",")]
        return "FindCoordinator", kind | ({"key": keys[0]} if version < 4 else {"coordinator_keys": keys})

    def describe(self, a: dict[str, str], version: int) -> tuple[str, Body]:
        body: Body = {"groups": _groups(a)}
        return "DescribeGroups", body | ({"include_authorized_operations": "ops" in a} if version >= 3 else {})

    def list(self, a: dict[str, str], version: int) -> tuple[str, Body]:
        body: Body = {"states_filter": items(a.get("states"))} if version >= 4 else {}
        return "ListGroups", body | ({"types_filter": items(a.get("types"))} if version >= 5 else {})

    def delete(self, a: dict[str, str], version: int) -> tuple[str, Body]:
        return "DeleteGroups", {"groups_names": _groups(a)}

    def offsetdelete(self, a: dict[str, str], version: int) -> tuple[str, Body]:
        topics = [
            {"name": name, "partitions": [{"partition_index": int(row[0])} for row in rows]}
            for name, rows in self._topics(a.get("offsets")).items()
        ]
        return "OffsetDelete", {"group_id": _group(a), "topics": topics}
