"""DescribeBroker: the process of the broker that responds. Kafka has no such API.

The fields with tags came later.
"""

from protocol.schema.message import Message, Struct, row


class DescribeBrokerRequest(Message, key=10003, kind="request", versions="0", flexible="0+"):
    pass


class FailedHandshake(Struct):
    broker_id: int = row("int32", "0+")
    reason: str = row("string", "0+")


class DescribeBrokerResponse(Message, key=10003, kind="response", versions="0", flexible="0+"):
    throttle_time_ms: int = row("int32", "0+")
    error_code: int = row("int16", "0+")
    broker_id: int = row("int32", "0+")
    broker_epoch: int = row("int64", "0+", default=-1)
    started_ms: int = row("int64", "0+")
    software_version: str = row("string", "0+")
    # Of all brokers, those that cannot write to their disks, and those that could not until recently.
    failing_brokers: list[int] = row(["int32"], "0+", tag=0)
    brokers_on_probation: list[int] = row(["int32"], "0+", tag=1)
    recovering_partitions: int = row("int32", "0+", tag=2)
    # The brokers to which this one cannot connect, although they run.
    failed_handshakes: list[FailedHandshake] = row([FailedHandshake], "0+", tag=3)
