"""The buffers in which brokers receive frames of each other."""

from kbroker.interbroker.frame_protocol import MAX_KEPT, MAX_KEPT_BYTES, RECEIVE_BYTES, PeerFrameBuffers

MIB = 1 << 20


def test_a_buffer_is_reused_when_nothing_refers_to_it() -> None:
    buffers = PeerFrameBuffers()
    first = buffers.take(2 * MIB + 100)
    part = first[10:20]
    second = buffers.take(2 * MIB)
    assert second.obj is not first.obj
    kept = first.obj
    del first
    assert buffers.take(MIB).obj is not kept
    del part
    del second
    again = buffers.take(2 * MIB + 200)
    assert again.obj is kept
    assert len(again) == 2 * MIB + 200


def test_small_buffers_are_not_kept() -> None:
    buffers = PeerFrameBuffers()
    assert len(buffers.take(RECEIVE_BYTES)) == RECEIVE_BYTES
    assert sum(map(len, buffers._kept)) == 0


def test_a_catch_up_does_not_keep_memory() -> None:
    """Responses of 10 MiB come while a follower catches up. Later ones are small."""
    buffers = PeerFrameBuffers()
    for size in (10 * MIB, 3 * MIB, 16 * MIB, 2 * MIB, MIB, 4 * MIB, 4 * MIB + 1):
        in_use = [buffers.take(size) for _ in range(6)]
        assert [len(view) for view in in_use] == [size] * 6
        assert sum(map(len, buffers._kept)) <= MAX_KEPT_BYTES
        assert len(buffers._kept) <= MAX_KEPT
        for number, view in enumerate(in_use):
            view[:1], view[-1:] = bytes([number]), bytes([number])
        assert [(view[0], view[-1]) for view in in_use] == [(number, number) for number in range(6)]
