"""DescribeLogDirs: directories, and the replicas in them with their sizes in bytes.

3: an error code for the whole response.
4: total and usable bytes (KIP-827).
5: cordoned directories (KIP-1066).
"""

from protocol.schema.message import Message, Struct, row


class DescribableLogDirTopic(Struct):
    topic: str = row("string", "0+")
    partitions: list[int] = row(["int32"], "0+")


class DescribeLogDirsRequest(Message, key=35, kind="request", versions="1-5", flexible="2+"):
    topics: list[DescribableLogDirTopic] | None = row([DescribableLogDirTopic], "0+", nullable="0+")


class DescribeLogDirsPartition(Struct):
    partition_index: int = row("int32", "0+")
    partition_size: int = row("int64", "0+")
    offset_lag: int = row("int64", "0+")
    is_future_key: bool = row("bool", "0+")


class DescribeLogDirsTopic(Struct):
    name: str = row("string", "0+")
    partitions: list[DescribeLogDirsPartition] = row([DescribeLogDirsPartition], "0+")


class DescribeLogDirsResult(Struct):
    error_code: int = row("int16", "0+")
    log_dir: str = row("string", "0+")
    topics: list[DescribeLogDirsTopic] = row([DescribeLogDirsTopic], "0+")
    total_bytes: int = row("int64", "4+", default=-1, ignorable=True)
    usable_bytes: int = row("int64", "4+", default=-1, ignorable=True)
    is_cordoned: bool = row("bool", "5+", ignorable=True)


class DescribeLogDirsResponse(Message, key=35, kind="response", versions="1-5", flexible="2+"):
    throttle_time_ms: int = row("int32", "0+")
    error_code: int = row("int16", "3+", ignorable=True)
    results: list[DescribeLogDirsResult] = row([DescribeLogDirsResult], "0+")
