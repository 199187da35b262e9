"""One connection to a broker: several requests in flight, answers in their order, a deadline for each."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from struct import Struct
from typing import NamedTuple, TypeVar

from protocol.apis import APIS, ApiKey
from protocol.errors import ErrorCode
from protocol.framing import decode_response_header, encode_frame, encode_request_header
from protocol.messages.k18_api_versions import ApiVersionsRequest, ApiVersionsResponse
from protocol.schema.codec import decode, encode
from protocol.schema.message import Message

M = TypeVar("M", bound=Message)
Address = tuple[str, int]
# What an answer is given to: the frame and where its body begins; None when the connection was lost before.
Take = Callable[[bytes | None, int], None]

_SIZE = Struct(">i")
_FIRST_API_VERSIONS = 0


class LostError(ConnectionError):
    """The connection is gone: whether what was asked has had an effect is not known."""


class VersionError(Exception):
    """Broker and client know no common version of an API."""


class _Asked(NamedTuple):
    correlation_id: int
    deadline: float
    key: int
    version: int
    take: Take


class Connection(asyncio.Protocol):
    """`timeout_s` is how long an answer may take; with the first one that is late the connection is given up."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, client_id: str, caps: Mapping[int, int], timeout_s: float
    ) -> None:
        self.lost = False
        # The levels of the features that are finalized, as far as the broker tells them.
        self.features: dict[str, int] = {}
        self._loop = loop
        self._client_id = client_id
        self._caps = caps
        self._timeout_s = timeout_s
        self._ranges: dict[int, tuple[int, int]] = {}
        self._transport: asyncio.Transport | None = None
        self._partial = b""
        self._asked: deque[_Asked] = deque()
        self._correlation_id = 0
        self._timer: asyncio.TimerHandle | None = None

    # Asking.

    def version(self, key: int) -> int:
        """The version in which to use an API here. Raises VersionError."""
        lowest, highest = self._ranges.get(key, (0, -1))
        version = min(self._caps.get(key, highest), highest, APIS[key].max_version)
        if version < lowest:
            raise VersionError(f"{ApiKey(key).name} is known from {lowest} to {highest}")
        return version

    def post(self, request: Message, version: int, take: Take | None, timeout_s: float | None = None) -> None:
        """Send a request; `take` is called once, with the answer or without. None: there will be none.

        Raises LostError if the connection is gone already.
        """
        if self.lost or self._transport is None:
            raise LostError("the connection is gone")
        key: int = request.__class__.__options__["key"]
        self._correlation_id += 1
        header = encode_request_header(key, version, self._correlation_id, self._client_id)
        if take is not None:
            deadline = self._loop.time() + (self._timeout_s if timeout_s is None else timeout_s)
            self._asked.append(_Asked(self._correlation_id, deadline, key, version, take))
            if self._timer is None or deadline < self._timer.when():
                self._watch(deadline)
        self._transport.write(encode_frame(header, encode(request, version)))

    async def ask(
        self, request: Message, answer: type[M], *, version: int | None = None, timeout_s: float | None = None
    ) -> M:
        """Send a request and wait for its answer. Raises LostError, VersionError."""
        key: int = request.__class__.__options__["key"]
        used = self.version(key) if version is None else version
        asked: asyncio.Future[M] = self._loop.create_future()

        def take(body: bytes | None, pos: int) -> None:
            if asked.done():
                return
            if body is None:
                asked.set_exception(LostError(f"no answer to {ApiKey(key).name}"))
            else:
                asked.set_result(decode(answer, body, used, pos))

        self.post(request, used, take, timeout_s)
        return await asked

    async def introduce(self) -> None:
        """Ask which versions the broker knows. Raises LostError."""
        version = min(self._caps.get(ApiKey.API_VERSIONS, APIS[ApiKey.API_VERSIONS].max_version), 4)
        request = ApiVersionsRequest(client_software_name="kbroker-simulation", client_software_version="1")
        answer = await self.ask(request, ApiVersionsResponse, version=version)
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
            request = ApiVersionsRequest()
            answer = await self.ask(request, ApiVersionsResponse, version=_FIRST_API_VERSIONS)
        if answer.error_code:
            raise LostError(ErrorCode(answer.error_code).name)
        self.features = {one.name: one.max_version_level for one in answer.finalized_features}
        self._ranges = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}

    def close(self) -> None:
        """Leave; what was not answered counts as lost."""
        if self._transport is not None:
            self._transport.abort()
        self._lose()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._partial:
            data = self._partial + data
        pos, end = 0, len(data)
        while end - pos >= 4 and not self.lost:
            (size,) = _SIZE.unpack_from(data, pos)
            assert size >= 4, f"a frame of {size} bytes"
            if end - pos - 4 < size:
                break
            self._take(data[pos + 4 : pos + 4 + size])
            pos += 4 + size
        self._partial = data[pos:]

    def connection_lost(self, error: Exception | None) -> None:
        self._lose()

    def _take(self, body: bytes) -> None:
        assert self._asked, "an answer that nobody asked for"
        asked = self._asked.popleft()
        correlation_id, pos = decode_response_header(body, asked.key, asked.version)
        assert correlation_id == asked.correlation_id, "answers out of order"
        asked.take(body, pos)

    # The end.

    def _watch(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline, self._check)

    def _check(self) -> None:
        """The earliest deadline of some time ago has come: answers that came in time have left nothing here."""
        self._timer = None
        if not self._asked:
            return
        deadline = min(asked.deadline for asked in self._asked)
        if deadline <= self._loop.time():
            self.close()
        else:
            self._watch(deadline)

    def _lose(self) -> None:
        if self.lost:
            return
        self.lost = True
        if self._timer is not None:
            self._timer.cancel()
        asked, self._asked = self._asked, deque()
        for one in asked:
            one.take(None, 0)


async def connect(
    loop: asyncio.AbstractEventLoop, address: Address, client_id: str, caps: Mapping[int, int], timeout_s: float
) -> Connection:
    """A connection on which the versions are known. Raises OSError, of which LostError and TimeoutError are."""
    async with asyncio.timeout(timeout_s):
        _, connection = await loop.create_connection(lambda: Connection(loop, client_id, caps, timeout_s), *address)
        try:
            await connection.introduce()
        except BaseException:
            connection.close()
            raise
    return connection
