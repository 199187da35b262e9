"""Requests for the state of share partitions as lines, with their results:

    init g-0 epoch=0 start=5 -> NONE
    write@1 g-0 state=0 leader=1 start=-1 count=3 5-9:2:1,10-10:0:1 -> NONE
    read g-0 leader=2 -> NONE state=0 start=5 5-9:2:1,10-10:0:1
    sum@1 g-0 -> NONE state=0 leader=2 start=5 count=3
    delete g-0 -> NONE

A range is FIRST-LAST:STATE:COUNT. The first line of a recording is `topic TOPIC-ID`, that of a topic with two
partitions. The results in data/share-states-4.4.0.txt are Apache Kafka 4.4.0's, recorded by
`python -m tests.compat.wire.share_states`; share-states-4.4.0.log has the record batches that it wrote.
"""

import random
from collections.abc import Callable
from typing import Any

from protocol.errors import error_name
from protocol.messages.k83_share_state import (
    DeleteShareGroupStateRequest,
    DeleteStateData,
    DeleteStatePartition,
    InitializeShareGroupStateRequest,
    InitializeStateData,
    InitializeStatePartition,
    ReadShareGroupStateRequest,
    ReadShareGroupStateSummaryRequest,
    ReadStateData,
    ReadStatePartition,
    ShareStateBatch,
    WriteShareGroupStateRequest,
    WriteStateData,
    WriteStatePartition,
)
from protocol.schema.message import Message

# The request's class, the classes of its topic and partition, and the names of the partition's fields in a line.
APIS: dict[str, tuple[Any, Any, Any, dict[str, str]]] = {
    "init": (
        InitializeShareGroupStateRequest, InitializeStateData, InitializeStatePartition,
        {"epoch": "state_epoch", "start": "start_offset"},
    ),
    "read": (ReadShareGroupStateRequest, ReadStateData, ReadStatePartition, {"leader": "leader_epoch"}),
    "write": (
        WriteShareGroupStateRequest, WriteStateData, WriteStatePartition,
        {
            "state": "state_epoch", "leader": "leader_epoch", "start": "start_offset",
            "count": "delivery_complete_count",
        },
    ),
    "delete": (DeleteShareGroupStateRequest, DeleteStateData, DeleteStatePartition, {}),
    "sum": (ReadShareGroupStateSummaryRequest, ReadStateData, ReadStatePartition, {"leader": "leader_epoch"}),
}  # fmt: skip
RESULT_FIELDS = {
    "read": {"state": "state_epoch", "start": "start_offset"},
    "sum": {
        "state": "state_epoch", "leader": "leader_epoch", "start": "start_offset", "count": "delivery_complete_count",
    },
}  # fmt: skip
# Sends a request in a version, and returns the response.
Send = Callable[[Message, int], Any]


def run(line: str, topic_id: bytes, send: Send) -> str:
    """Send the request of a line, and return the complete line."""
    request = line.partition(" -> ")[0]
    word, partition_name, *arguments = request.split(" ")
    api, _, version = word.partition("@")
    group, _, index = partition_name.rpartition("|")
    request_class, topic_class, partition_class, names = APIS[api]
    fields: dict[str, Any] = {"partition": int(index)}
    for argument in arguments:
        name, is_field, value = argument.partition("=")
        if is_field:
            fields[names[name]] = int(value)
        else:
            fields["state_batches"] = [parse_batch(text) for text in argument.split(",")]
    topic = topic_class(topic_id=topic_id, partitions=[partition_class(**fields)])
    response = send(request_class(group_id=group, topics=[topic]), int(version or 0))
    if not response.results:
        return f"{request} -> nothing"
    ((result,),) = [topic.partitions for topic in response.results]
    texts = [error_name(result.error_code)]
    if result.error_code:
        texts.append(repr(result.error_message))
    for name, field in RESULT_FIELDS.get(api, {}).items():
        texts.append(f"{name}={getattr(result, field)}")
    if getattr(result, "state_batches", None):
        texts.append(",".join(map(format_batch, result.state_batches)))
    return f"{request} -> {' '.join(texts)}"


def parse_batch(text: str) -> ShareStateBatch:
    offsets, state, count = text.split(":")
    first, last = offsets.split("-")
    return ShareStateBatch(
        first_offset=int(first), last_offset=int(last), delivery_state=int(state), delivery_count=int(count)
    )


def format_batch(batch: ShareStateBatch) -> str:
    return f"{batch.first_offset}-{batch.last_offset}:{batch.delivery_state}:{batch.delivery_count}"


def random_requests(seed: int) -> list[str]:
    """Return the requests of a random story of one group, most of them valid."""
    rng = random.Random(seed)
    group = f"g{seed}"
    requests = []
    epochs = {0: 0, 1: 0, 2: 0}
    for _ in range(60):
        index = rng.choice([0, 0, 0, 0, 1, 1, 2])
        name = f"{group}|{index}"
        leader = epochs[index] + rng.choice([-1, 0, 0, 0, 0, 0, 1])
        state = rng.choice([0, 1, 2, 2])
        kind = rng.choice(["init", "read", "read", "sum", "delete", *["write"] * 12])
        if kind == "init":
            requests.append(f"init {name} epoch={state} start={rng.choice([-1, 0, 3, 10])}")
        elif kind == "read":
            epochs[index] = max(leader, epochs[index])
            requests.append(f"read {name} leader={leader}")
        elif kind == "sum":
            requests.append(f"sum@{rng.randrange(2)} {name} leader={leader}")
        elif kind == "delete":
            if rng.random() < 0.3:
                requests.append(f"delete {name}")
        else:
            batches = ",".join(_random_batch(rng) for _ in range(rng.randrange(1, 5)))
            version = rng.choice([0, 1, 1])
            count = f" count={rng.choice([-1, 0, 2, 5])}" if version else ""
            start = rng.choice([-1, -1, 0, 2, 4, 8, 12])
            requests.append(f"write@{version} {name} state={state} leader={leader} start={start}{count} {batches}")
    return requests


def _random_batch(rng: random.Random) -> str:
    first = rng.randrange(24)
    return f"{first}-{first + rng.randrange(6)}:{rng.choice([0, 0, 2, 2, 3, 4])}:{rng.randrange(1, 4)}"


# Every error, and a snapshot after 500 updates.
FIXED_REQUESTS = [
    "sum@1 f|0 leader=0",
    "read f|0 leader=0",
    "write@1 f|0 state=0 leader=0 start=0 count=0 0-1:2:1",
    "init f|0 epoch=-1 start=0",
    "init f|-1 epoch=0 start=0",
    "init f|2 epoch=0 start=0",
    "init |0 epoch=0 start=0",
    "init f|0 epoch=3 start=7",
    "sum@0 f|0 leader=0",
    "sum@1 f|0 leader=9",
    "sum@1 f|2 leader=0",
    "sum@1 f|-1 leader=0",
    "init f|0 epoch=2 start=0",
    "read f|0 leader=-1",
    "read f|-1 leader=0",
    "read f|2 leader=0",
    "read f|0 leader=4",
    "read f|0 leader=4",
    "read f|0 leader=3",
    "write@1 f|0 state=3 leader=3 start=-1 count=0 7-9:2:1",
    "write@1 f|0 state=2 leader=4 start=-1 count=0 7-9:2:1",
    "write@1 f|0 state=3 leader=-1 start=-1 count=0 7-9:2:1",
    "write@1 f|0 state=-1 leader=4 start=-1 count=0 7-9:2:1",
    "write@1 f|2 state=3 leader=4 start=-1 count=0 7-9:2:1",
    "write@1 f|-1 state=3 leader=4 start=-1 count=0 7-9:2:1",
    "write@1 f|0 state=4 leader=6 start=-1 count=2 7-9:2:1",
    "sum@1 f|0 leader=0",
    "read f|0 leader=6",
    "init f|0 epoch=3 start=5",
    "sum@1 f|0 leader=0",
    "read f|0 leader=5",
    "read f|0 leader=6",
    "delete f|2",
    "delete f|-1",
    "delete f|1",
    "delete f|0",
    "read f|0 leader=9",
    "init f|0 epoch=0 start=-1",
    "sum@1 f|0 leader=0",
    "read f|0 leader=1",
    *[f"write@1 f|0 state=0 leader=1 start={n} count=1 {n}-{n}:2:1,{n + 1}-{n + 9}:0:1" for n in range(503)],
    "read f|0 leader=1",
]
