"""The dispatch table: finds the handler of each API. `ls kbroker/api` lists the supported APIs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple

from kbroker.api.context import ApiHandler, Body, Overlap, RequestContext, Services
from kbroker.api.forwarding import FORWARDED_APIS, forwarding
from kbroker.api.response_errors import error_reporter, report_fetch_errors, report_produce_errors
from kbroker.common import Buffer
from kbroker.runtime.metrics import RequestStats
from protocol.apis import ALL_APIS, APIS, INTER_BROKER_APIS, PRIVATE_APIS, Api, ApiKey
from protocol.fast.fetch import FetchResponse, append_fetch_response, decode_fetch_request, encode_fetch_response
from protocol.fast.produce import ProduceDecoder, append_produce_response, encode_produce_response
from protocol.limits import MAX_ELEMENTS_AT_ONCE
from protocol.messages import message_classes
from protocol.schema.codec import decoder, encode, encoder
from protocol.schema.message import Message, message_info


class UnsupportedRequest(Exception):
    """A request that gets no response: as in Kafka, its connection is closed. The reason is logged."""

    def __init__(self, reason: str, api_key: int, version: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.api_key = api_key
        self.version = version


# ApiVersions lists Produce 0-2, without which librdkafka does not compress, but such a request closes the connection
# like one of an unknown version, as with Kafka 4.3.1.
FIRST_SUPPORTED_VERSION = {ApiKey.PRODUCE: 3}

OVERLAPS = {ApiKey.PRODUCE: Overlap.ANY, ApiKey.OFFSET_COMMIT: Overlap.SAME_API}


CLIENT_LISTENER_APIS = APIS | PRIVATE_APIS
# The APIs of the listener for brokers. No broker sends older versions of Fetch and AddPartitionsToTxn.
BROKER_LISTENER_APIS = INTER_BROKER_APIS | {
    ApiKey.FETCH: APIS[ApiKey.FETCH]._replace(min_version=17),
    ApiKey.LIST_OFFSETS: APIS[ApiKey.LIST_OFFSETS],
    ApiKey.ADD_PARTITIONS_TO_TXN: APIS[ApiKey.ADD_PARTITIONS_TO_TXN]._replace(min_version=4),
    ApiKey.WRITE_TXN_MARKERS: APIS[ApiKey.WRITE_TXN_MARKERS],
    ApiKey.DESCRIBE_LOG_DIRS: APIS[ApiKey.DESCRIBE_LOG_DIRS]._replace(min_version=5),
}


class Dispatch:
    """Finds the handler of an API version. Handlers are imported at the first request of each version."""

    def __init__(self, apis: Mapping[int, Api] = CLIENT_LISTENER_APIS) -> None:
        """`apis`: the APIs of the listener: CLIENT_LISTENER_APIS or BROKER_LISTENER_APIS."""
        self._apis = apis
        self._handlers: dict[tuple[int, int], ApiHandler] = {}
        self._unsupported_api_versions = _unsupported_api_versions()

    def find(self, api_key: int, version: int) -> ApiHandler:
        """Return the handler of an API version. Raises UnsupportedRequest."""
        return self._handlers.get((api_key, version)) or self._load(api_key, version)

    def _load(self, api_key: int, version: int) -> ApiHandler:
        api = self._apis.get(api_key)
        if api is None:
            raise UnsupportedRequest("API not served", api_key, version)
        key = ApiKey(api_key)
        if not FIRST_SUPPORTED_VERSION.get(key, api.min_version) <= version <= api.max_version:
            if key is ApiKey.API_VERSIONS:
                return self._unsupported_api_versions
            raise UnsupportedRequest("version not served", api_key, version)
        handler = self._handlers[api_key, version] = load_handler(key, version)
        return handler

    def stats(self) -> list[RequestStats]:
        """Return the statistics of every API version that has been requested."""
        return [self._unsupported_api_versions.stats, *(handler.stats for handler in self._handlers.values())]


class Codec(NamedTuple):
    """The part of an ApiHandler that is derived from the messages of an API."""

    decode: Callable[..., Any]
    encode: Callable[[Any, int], Body]
    append: Callable[[Any, int, list[Any], Callable[[], None]], None]
    response_type: type
    report_errors: Callable[[RequestContext, Any, Any], bool | None]


FAST_CODECS: dict[ApiKey, Callable[[int], Codec]] = {
    ApiKey.PRODUCE: lambda version: Codec(
        ProduceDecoder(version).decode, encode_produce_response, append_produce_response, list, report_produce_errors
    ),
    ApiKey.FETCH: lambda version: Codec(
        decode_fetch_request, encode_fetch_response, append_fetch_response, FetchResponse, report_fetch_errors
    ),
}


def load_handler(key: ApiKey, version: int, *, forwards: bool = True) -> ApiHandler:
    """Import the handler of an API, with the codec of one version.

    `forwards`: whether requests that only the controller can handle are forwarded to it.
    """
    is_flexible = version >= ALL_APIS[key].flexible_from
    codec = FAST_CODECS[key](version) if key in FAST_CODECS else message_codec(key, version)
    module = import_module(f"kbroker.api.{ALL_APIS[key].module}")
    is_cacheable, find_response = getattr(module, "is_cacheable", None), getattr(module, "find_response", None)
    return ApiHandler(
        decode=codec.decode,
        handle=forwarding(key, module.handle) if forwards and key in FORWARDED_APIS else module.handle,
        encode=codec.encode,
        append=codec.append,
        report_errors=codec.report_errors,
        response_type=codec.response_type,
        stats=RequestStats(key, version),
        is_flexible=is_flexible,
        has_flexible_response_header=is_flexible and key is not ApiKey.API_VERSIONS,
        overlap=OVERLAPS.get(key, Overlap.NONE),
        is_cacheable=is_cacheable,
        find_response=find_response,
        keep_response=getattr(module, "keep_response", None),
        may_be_cached=is_cacheable is not None or find_response is not None,
        runs_in_turns=getattr(module, "RUNS_IN_TURNS", False),
        responds_in_turns=getattr(module, "RESPONDS_IN_TURNS", False),
        is_large_by_size=key is not ApiKey.PRODUCE,
    )


def message_codec(key: ApiKey, version: int) -> Codec:
    """Return the codec of an API whose messages are declared as rows."""
    request_class, response_class = message_classes(key)
    decode = decoder(request_class, version)
    append = encoder(response_class, version)
    max_elements = message_info(request_class).max_elements

    def decode_request(frame: memoryview, pos: int, version: int, pause: Callable[[], None] | None = None) -> Message:
        request: Message = decode(frame, pos, MAX_ELEMENTS_AT_ONCE if pause is None else max_elements, pause)[0]
        return request

    def append_response(response: Message, version: int, out: list[Buffer], pause: Callable[[], None]) -> None:
        append(response, out, pause)

    def encode_response(response: Message, version: int) -> bytes:
        out: list[Buffer] = []
        append(response, out)
        return b"".join(out)

    return Codec(decode_request, encode_response, append_response, response_class, error_reporter(response_class))


def _unsupported_api_versions() -> ApiHandler:
    """Return the handler for unknown versions of ApiVersions, whose response always has version 0 (KIP-511)."""

    def handle(services: Services, context: RequestContext, request: None) -> Message:
        response: Message = import_module("kbroker.api.k18_api_versions").unsupported_version_response()
        return response

    return ApiHandler(
        decode=lambda frame, pos, version: None,
        handle=handle,
        encode=lambda response, version: encode(response, 0),
        append=lambda response, version, out, pause: out.append(encode(response, 0)),
        report_errors=error_reporter(message_classes(ApiKey.API_VERSIONS)[1]),
        response_type=Message,
        stats=RequestStats(ApiKey.API_VERSIONS, 0),
        is_flexible=False,
        has_flexible_response_header=False,
        overlap=Overlap.NONE,
    )
