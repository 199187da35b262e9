"""meta.properties, as Kafka writes it."""

import pytest

from kbroker.storage.metadata_files import MetaProperties, decode_meta_properties, encode_meta_properties

KAFKA_4_3 = b"""#
#Sat Nov 21 09:04:11 UTC 2026
cluster.id=4L6g3nShT-eMCtK--X86sw
directory.id=j8qNTVLCQNOZ8k6BXeQlFA
node.id=1
version=1
"""


def test_kafkas_own_file() -> None:
    properties = MetaProperties("4L6g3nShT-eMCtK--X86sw", 1, "j8qNTVLCQNOZ8k6BXeQlFA")
    assert decode_meta_properties(KAFKA_4_3) == properties
    assert encode_meta_properties(properties) == b"".join(KAFKA_4_3.splitlines(keepends=True)[2:])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "unknown version None"),
        (b"version=0\nbroker.id=1\ncluster.id=x\n", "unknown version 0"),
        (b"version=1\nnode.id=1\n", "cluster.id is missing"),
        (b"version=1\ncluster.id=x\n", "node.id is missing"),
        (b"version=1\ncluster.id=x\nnode.id=one\n", "one"),
        (b"\xff\xfe", "utf-8"),
    ],
)
def test_damage(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        decode_meta_properties(data)


def test_spaces_and_no_directory_id() -> None:
    assert decode_meta_properties(b" version = 1\r\n!x\ncluster.id= c\nnode.id =7") == MetaProperties("c", 7, "")
