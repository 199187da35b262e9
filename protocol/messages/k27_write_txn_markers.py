"""WriteTxnMarkers: write transaction markers to partitions, by a coordinator or to end a hanging transaction.

2: the transaction version, which determines which epochs are valid (KIP-1228).
"""

from protocol.schema.message import Message, Struct, row


class WritableTxnMarkerTopic(Struct):
    name: str = row("string", "0+")
    partition_indexes: list[int] = row(["int32"], "0+")


class WritableTxnMarker(Struct):
    producer_id: int = row("int64", "0+")
    producer_epoch: int = row("int16", "0+")
    transaction_result: bool = row("bool", "0+")
    topics: list[WritableTxnMarkerTopic] = row([WritableTxnMarkerTopic], "0+")
    coordinator_epoch: int = row("int32", "0+")
    transaction_version: int = row("int8", "2+", ignorable=True)


class WriteTxnMarkersRequest(Message, key=27, kind="request", versions="1-2", flexible="1+"):
    markers: list[WritableTxnMarker] = row([WritableTxnMarker], "0+")


class WritableTxnMarkerPartitionResult(Struct):
    partition_index: int = row("int32", "0+")
    error_code: int = row("int16", "0+")


class WritableTxnMarkerTopicResult(Struct):
    name: str = row("string", "0+")
    partitions: list[WritableTxnMarkerPartitionResult] = row([WritableTxnMarkerPartitionResult], "0+")


class WritableTxnMarkerResult(Struct):
    producer_id: int = row("int64", "0+")
    topics: list[WritableTxnMarkerTopicResult] = row([WritableTxnMarkerTopicResult], "0+")


class WriteTxnMarkersResponse(Message, key=27, kind="response", versions="1-2", flexible="1+"):
    markers: list[WritableTxnMarkerResult] = row([WritableTxnMarkerResult], "0+")
