"""Frames between the broker and its history process."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.replica.history.frames import FrameAssembler, encode_frame


@given(st.lists(st.binary(max_size=300), max_size=8), st.integers(1, 50))
def test_frames_arrive_in_any_pieces(bodies: list[bytes], piece: int) -> None:
    stream = b"".join(encode_frame({"id": number}, body) for number, body in enumerate(bodies))
    assembler, frames = FrameAssembler(), []
    for start in range(0, len(stream), piece):
        frames += assembler.feed(stream[start : start + piece])
    assert [(frame.header["id"], frame.body) for frame in frames] == list(enumerate(bodies))


@pytest.mark.parametrize(
    "stream",
    [b"\xff\xff\xff\xff", b"\0\0\0\0", b"\0\0\0\2[]", b"\0\0\0\2{x", b'\0\0\0\x0b{"body":-1}', b"GET / HTTP/1.1"],
)
def test_what_is_not_a_frame(stream: bytes) -> None:
    """It is an error, not a reason to wait for gigabytes."""
    with pytest.raises(ValueError, match=r"header|Expecting"):
        FrameAssembler().feed(stream)
