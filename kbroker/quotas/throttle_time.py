"""The throttle time in an encoded response. It is known only when the response is complete, and written over the 0."""

from collections.abc import Sequence
from struct import Struct

from kbroker.common import Buffer
from protocol.fast.fetch import Records

# As in api/context.py, which is above.
Body = bytes | Sequence[Buffer | Records]

_INT32 = Struct(">i")


def read_throttle_ms(body: Body, offset: int | None) -> int:
    """Return the throttle time of a body, 0 if it has none at `offset` (ApiHandler.throttle_offset)."""
    place = _place(body, offset)
    if place is None or (offset is not None and offset < 0):
        return 0
    part, start = place
    wait_ms: int = _INT32.unpack_from(part, start)[0]
    return wait_ms


def with_throttle_ms(body: Body, offset: int | None, throttle_ms: int) -> Body:
    """Return a body with a throttle time, unless it has none at `offset`. Parts may be shared: none is changed."""
    place = _place(body, offset)
    if place is None:
        return body
    part, start = place
    changed = bytes(part[:start]) + _INT32.pack(throttle_ms) + bytes(part[start + 4 :])
    if isinstance(body, bytes):
        return changed
    return [changed, *body[1:]] if start == offset else [*body[:-1], changed]


def _place(body: Body, offset: int | None) -> tuple[Buffer, int] | None:
    """Return the buffer that has the throttle time, and where. None if there is none."""
    if offset is None:
        return None
    part = body if isinstance(body, bytes) else body[0 if offset >= 0 else -1]
    if not isinstance(part, Buffer):
        return None
    start = offset if offset >= 0 else len(part) + offset
    if start < 0 or start + 4 > len(part) or (offset < 0 and any(part[start:])):
        # Tagged fields follow in the response of Produce.
        return None
    return part, start
