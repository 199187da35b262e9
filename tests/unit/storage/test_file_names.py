"""File and directory names are Apache Kafka's."""

from kbroker.common import TopicPartition
from kbroker.storage import file_names

T1 = TopicPartition("a-b.c", 12)


def test_file_and_directory_names() -> None:
    assert file_names.segment_file("d", 9472, file_names.LOG) == "d/00000000000000009472.log"
    assert file_names.parse_segment_file("00000000000000009472.timeindex") == (9472, ".timeindex")
    for name in ("9472.log", "00000000000000009472.log.deleted", "leader-epoch-checkpoint", "x0000000000000009472.log"):
        assert file_names.parse_segment_file(name) is None
    assert file_names.partition_dir("/data", T1) == "/data/a-b.c-12"
    assert file_names.parse_partition_dir("a-b.c-12") == T1
    for name in ("t", "-1", "t-", "t-x", "t-0.b2dd6cc065d34fc999dda5545ec1c4f4-delete"):
        assert file_names.parse_partition_dir(name) is None
    assert file_names.deleted_dir("/data", T1, "0" * 32) == f"/data/a-b.c-12.{'0' * 32}-delete"
    long = file_names.deleted_dir("d", TopicPartition("t" * 249, 3), "f" * 32)
    assert len(long) == 2 + 255
    assert file_names.is_deleted_dir(long[2:])
    assert not file_names.is_deleted_dir("my-topic-delete-0")
