"""The keys and values of records in __share_group_state, each preceded by its version (int16).

The version of a key is its kind: 0 is a snapshot of a share partition, 1 an update of the snapshot before it.
"""

from protocol.messages.k83_share_state import ShareStateBatch
from protocol.schema.message import Message, row


class ShareSnapshotKey(Message, kind="data", versions="0", flexible="none"):
    group_id: str = row("string", "0+")
    topic_id: bytes = row("uuid", "0+")
    partition: int = row("int32", "0+")


class ShareSnapshotValue(Message, kind="data", versions="0", flexible="0+"):
    snapshot_epoch: int = row("int32", "0+")
    state_epoch: int = row("int32", "0+")
    leader_epoch: int = row("int32", "0+")
    start_offset: int = row("int64", "0+")
    delivery_complete_count: int = row("int32", "0+", tag=0, default=-1)
    create_timestamp: int = row("int64", "0+")
    write_timestamp: int = row("int64", "0+")
    state_batches: list[ShareStateBatch] = row([ShareStateBatch], "0+")


class ShareUpdateKey(Message, kind="data", versions="1", flexible="none"):
    group_id: str = row("string", "1+")
    topic_id: bytes = row("uuid", "1+")
    partition: int = row("int32", "1+")


class ShareUpdateValue(Message, kind="data", versions="0", flexible="0+"):
    snapshot_epoch: int = row("int32", "0+")
    leader_epoch: int = row("int32", "0+")
    start_offset: int = row("int64", "0+")
    delivery_complete_count: int = row("int32", "0+", tag=0, default=-1)
    state_batches: list[ShareStateBatch] = row([ShareStateBatch], "0+")
