"""Sets the fields of an encoded batch that no CRC covers."""

from struct import pack_into


def patch_base_offset(buf: bytearray | memoryview, pos: int, offset: int) -> None:
    pack_into(">q", buf, pos, offset)


def patch_leader_epoch(buf: bytearray | memoryview, pos: int, epoch: int) -> None:
    pack_into(">i", buf, pos + 12, epoch)
