"""Producers and transactions."""

from typing import Any

from tests.compat.security.authorization.case import Case, World, of_api, preparation
from tests.compat.security.authorization.rows.topics import HIDDEN, KNOWN, MISSING, UNKNOWN_PRODUCER_ID

# in.x has an open transaction with a visible and a hidden topic; in.i is initialized again and again.
IDS = ("in.x", "out.x", "in.i", "out.i")
QUARTER_HOUR_MS = 900_000
PRODUCER = {"producer_id": UNKNOWN_PRODUCER_ID, "producer_epoch": 0}


@preparation
def transactions(world: World) -> None:
    for name in IDS:
        world.call_until_done("FindCoordinator", key_type=1, coordinator_keys=[name])
        for _ in range(2):
            fields = {"transactional_id": name, "transaction_timeout": QUARTER_HOUR_MS}
            response = world.call_until_done("InitProducerId", **fields)
        if name in ("in.x", "out.x"):
            identity = {"producer_id": response["producer_id"], "producer_epoch": response["producer_epoch"]}
            topics = [{"name": topic, "partitions": [1]} for topic in (KNOWN, HIDDEN)]
            row = {"transactional_id": name, **identity, "verify_only": False, "topics": topics}
            world.call_until_done("AddPartitionsToTxn", transactions=[row])


@of_api("InitProducerId", "WRITE transactional-id")
def init_producer_id(case: Case) -> None:
    case.mask("producer_epoch")
    for title, name in {"no transactional id": None, "a transactional id": "in.i", "a hidden one": "out.i"}.items():
        case.request(title, transactional_id=name, transaction_timeout=QUARTER_HOUR_MS)


@of_api("AddPartitionsToTxn", "WRITE transactional-id", "WRITE topic", "CLUSTER_ACTION cluster")
def add_partitions_to_txn(case: Case) -> None:
    def request(step: str, *transactions: tuple[str, list[str]]) -> None:
        rows: list[dict[str, Any]] = []
        for name, topics in transactions:
            topic_rows = [{"name": topic, "partitions": [0]} for topic in topics]
            rows.append({"transactional_id": name, **PRODUCER, "verify_only": False, "topics": topic_rows})
        older = {f"v3_and_below_{name}": value for name, value in rows[0].items() if name != "verify_only"}
        case.request(step, transactions=rows, **older)

    request("a topic", ("in.x", [KNOWN]))
    request("topics", ("in.x", [KNOWN, HIDDEN, MISSING]))
    request("another id", ("out.x", [KNOWN]))
    request("two transactions", ("in.x", [KNOWN, HIDDEN]), ("out.x", [KNOWN]))


@of_api("AddOffsetsToTxn", "WRITE transactional-id", "READ group")
def add_offsets_to_txn(case: Case) -> None:
    case.request("a group", transactional_id="in.x", group_id="in.g", **PRODUCER)
    case.request("a hidden group", transactional_id="in.x", group_id="out.g", **PRODUCER)
    case.request("a hidden id", transactional_id="out.x", group_id="in.g", **PRODUCER)


@of_api("EndTxn", "WRITE transactional-id")
def end_txn(case: Case) -> None:
    for title, name in {"an id": "in.x", "a hidden id": "out.x"}.items():
        case.request(title, transactional_id=name, **PRODUCER, committed=True)


@of_api("TxnOffsetCommit", "WRITE transactional-id", "READ group", "READ topic")
def txn_offset_commit(case: Case) -> None:
    def request(step: str, transactional_id: str, group: str, *topics: str) -> None:
        row = {"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}
        rows = [case.topic_fields(topic, partitions=[row]) for topic in topics]
        case.request(step, transactional_id=transactional_id, group_id=group, **PRODUCER, topics=rows)

    request("a topic", "in.x", "in.g", KNOWN)
    request("topics", "in.x", "in.g", KNOWN, HIDDEN, MISSING)
    request("a hidden topic", "in.x", "in.g", HIDDEN)
    request("a hidden group", "in.x", "out.g", KNOWN)
    request("a hidden id", "out.x", "in.g", KNOWN)


@of_api("WriteTxnMarkers", "ALTER cluster")
def write_txn_markers(case: Case) -> None:
    topics = [{"name": topic, "partition_indexes": [0]} for topic in (MISSING, HIDDEN)]
    marker = {**PRODUCER, "transaction_result": False, "coordinator_epoch": 0, "topics": topics[:1]}
    case.request("a marker", markers=[marker])


@of_api("DescribeTransactions", "DESCRIBE transactional-id", "DESCRIBE topic")
def describe_transactions(case: Case) -> None:
    case.mask("producer_epoch")
    case.request("ids", transactional_ids=["in.x", "out.x", "in.missing", "out.missing"])


@of_api("ListTransactions", "DESCRIBE transactional-id")
def list_transactions(case: Case) -> None:
    case.record_only("transaction_states", *IDS)
    case.request("all")
