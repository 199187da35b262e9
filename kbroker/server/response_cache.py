"""Encoded responses that are sent again, byte for byte, to requests with the same bytes.

Clients request the same metadata again and again, and it rarely changes. A cached response depends on the
request, the listener and the principal, which are in its key, the metadata image and the broker's config, so all
responses are dropped when the image or the config changes.
The correlation id is in the response's header, which is not cached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kbroker.api.context import Services
    from kbroker.config import BrokerConfig

MAX_BYTES = 2 * 1024 * 1024
# The responses to longer requests are not cached, nor are longer responses.
MAX_REQUEST_BYTES = 1024
MAX_RESPONSE_BYTES = MAX_BYTES // 2
# The approximate size of an entry without its request and response.
ENTRY_OVERHEAD = 200


class ResponseCache:
    """Responses without errors, by a key of who sends the request (Identity.cache_prefix), API key, version and body.

    `size`: bytes, at most MAX_BYTES.
    """

    def __init__(self) -> None:
        self.size = 0
        # In the order in which they were added.
        self._responses: dict[bytes, bytes] = {}
        # The image and the config from which the responses were made.
        self._image_version = -1
        self._config: BrokerConfig | None = None

    def __len__(self) -> int:
        return len(self._responses)

    def get(self, services: Services, request: bytes) -> bytes | None:
        """Return the response to a request if it is cached and still valid."""
        if services.metadata.version != self._image_version or services.config is not self._config:
            self._responses.clear()
            self.size = 0
            self._image_version, self._config = services.metadata.version, services.config
        return self._responses.get(request)

    def put(self, request: bytes, response: bytes) -> None:
        """Add the response to the request of the last `get`, made from the same image and config."""
        if len(response) > MAX_RESPONSE_BYTES:
            return
        self._responses[request] = response
        self.size += len(request) + len(response) + ENTRY_OVERHEAD
        while self.size > MAX_BYTES:
            oldest = next(iter(self._responses))
            self.size -= len(oldest) + len(self._responses.pop(oldest)) + ENTRY_OVERHEAD
