"""The dispatch table: finds the handler of each API. `ls kbroker/api` lists the supported APIs."""

from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

from kbroker.api.audit import auditing
from kbroker.api.authorization import anybody, authorized
from kbroker.api.authorization_rules import rule_of
from kbroker.api.context import ApiHandler, Body, Handle, Overlap, RequestContext, Services
from kbroker.api.forwarding import forwarding
from kbroker.api.response_errors import error_reporter, failed_response, no_failed_response
from kbroker.common import Buffer, KafkaError
from kbroker.runtime.metrics import RequestStats
from protocol.apis import ALL_APIS, CLIENT_LISTENER_APIS, Api, ApiKey
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


class Dispatch(dict[tuple[int, int], ApiHandler]):
    """The handlers by API key and version, each imported at its first request. A lookup raises UnsupportedRequest.

    `authorizes`: whether requests are checked; set before the first one.
    """

    def __init__(self, apis: Mapping[int, Api] = CLIENT_LISTENER_APIS) -> None:
        """`apis`: those of the listener (protocol/apis.py)."""
        super().__init__()
        self.authorizes = False
        self._apis = apis
        self._unsupported_api_versions = _unsupported_api_versions()

    def __missing__(self, key: tuple[int, int]) -> ApiHandler:
        api_key, version = key
        api = self._apis.get(api_key)
        if api is None:
            raise UnsupportedRequest("API not served", api_key, version)
        if not api.serves(version):
            if api.key is ApiKey.API_VERSIONS:
                return self._unsupported_api_versions
            raise UnsupportedRequest("version not served", api_key, version)
        handler = self[key] = load_handler(api.key, version, authorizes=self.authorizes)
        return handler

    def stats(self) -> list[RequestStats]:
        """Return the statistics of every API version that has been requested."""
        return [self._unsupported_api_versions.stats, *(handler.stats for handler in self.values())]


class Codec(NamedTuple):
    """The part of an ApiHandler that is derived from the messages of an API, or in its file: `codec(version)`."""

    decode: Callable[..., Any]
    encode: Callable[[Any, int], Body]
    append: Callable[[Any, int, list[Any], Callable[[], None]], object]
    response_type: type
    report_errors: Callable[[RequestContext, Any, Any], bool | None]


def handler_module(key: int) -> ModuleType:
    return import_module(f"kbroker.api.{ALL_APIS[key].module}")


def is_forwarded(key: int) -> bool:
    """Return whether brokers forward requests of an API to the controller."""
    return key in ALL_APIS and _applies(handler_module(key), "FORWARDED", key)


def _applies(module: ModuleType, name: str, key: int) -> bool:
    """Return whether a constant of a handler's file applies to an API. In a file of several it may be a set of them."""
    value: bool | set[ApiKey] = getattr(module, name, False)
    return value if isinstance(value, bool) else key in value


def load_handler(key: ApiKey, version: int, *, forwards: bool = True, authorizes: bool = False) -> ApiHandler:
    """Import the handler of an API, with the codec of one version.

    `forwards`: whether requests that only the controller can handle are forwarded to it. `authorizes`: whether the
    handler is behind the rule of its API (authorization_rules.py).
    """
    is_flexible = version >= ALL_APIS[key].flexible_from
    module = handler_module(key)
    codec: Codec = module.codec(version) if hasattr(module, "codec") else message_codec(key, version)
    is_cacheable, find_response = getattr(module, "is_cacheable", None), getattr(module, "find_response", None)
    return ApiHandler(
        decode=codec.decode,
        handle=_handle_function(key, module, forwards and is_forwarded(key), authorizes),
        fail=_fail_function(key, module),
        encode=codec.encode,
        append=codec.append,
        report_errors=codec.report_errors,
        response_type=codec.response_type,
        stats=RequestStats(key, version),
        is_flexible=is_flexible,
        has_flexible_response_header=is_flexible and key is not ApiKey.API_VERSIONS,
        overlap=getattr(module, "OVERLAP", Overlap.NONE),
        is_cacheable=is_cacheable,
        find_response=find_response,
        keep_response=getattr(module, "keep_response", None),
        may_be_cached=is_cacheable is not None or find_response is not None,
        runs_in_turns=_applies(module, "RUNS_IN_TURNS", key),
        responds_in_turns=_applies(module, "RESPONDS_IN_TURNS", key),
        is_large_by_size=getattr(module, "IS_LARGE_BY_SIZE", True),
        throttle_offset=_throttle_offset(key, version),
    )


def _throttle_offset(key: ApiKey, version: int) -> int | None:
    if key is ApiKey.PRODUCE:
        # Before the tagged fields; if there are any, the response does not say it.
        return -5 if version >= ALL_APIS[key].flexible_from else -4
    offset = 0
    for name, row in message_classes(key)[1].__rows__.items():
        if row.is_in(version) and row.tag < 0:
            if name == "throttle_time_ms":
                return offset
            if row.type != "int16":
                return None  # ApiVersions
            offset += 2
    return None


def _handle_function(key: ApiKey, module: ModuleType, forwards: bool, authorizes: bool) -> Handle:
    handle = auditing(key, module.HANDLERS[key] if ALL_APIS[key].family else module.handle)
    if authorizes and (rule := rule_of(key, module)) is not anybody:
        handle = authorized(rule, handle)
    return forwarding(handle, getattr(module, "forward", None)) if forwards else handle


def _fail_function(key: ApiKey, module: ModuleType) -> Callable[[RequestContext, Any, KafkaError], Any]:
    if hasattr(module, "failed_response"):
        function: Callable[[RequestContext, Any, KafkaError], Any] = module.failed_response
        return function
    has_code = not hasattr(module, "codec") and "error_code" in message_classes(key)[1].__rows__
    return failed_response if has_code else no_failed_response


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
        fail=no_failed_response,
        encode=lambda response, version: encode(response, 0),
        append=lambda response, version, out, pause: out.append(encode(response, 0)),
        report_errors=error_reporter(message_classes(ApiKey.API_VERSIONS)[1]),
        response_type=Message,
        stats=RequestStats(ApiKey.API_VERSIONS, 0),
        is_flexible=False,
        has_flexible_response_header=False,
        overlap=Overlap.NONE,
    )
