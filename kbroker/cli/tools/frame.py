"""`kbroker tools frame`: print captured frames field by field."""

import os
import sys

from kbroker.cli.common.errors import usage_error
from kbroker.cli.tools.frame_fields import ResponseType, ResponseTypes, parse_capture, response_types_of
from kbroker.cli.tools.frame_text import FrameText
from protocol.apis import ALL_APIS


def response_source(api: str | None, version: int | None, requests: bytes | None) -> ResponseTypes | None:
    """Return where the types of responses come from; None if the frames are requests."""
    if requests is not None:
        if api is not None or version is not None:
            raise usage_error("--request excludes --response and --version")
        return response_types_of(parse_capture(requests, None)).get
    if api is None:
        if version is not None:
            raise usage_error("--version needs --response")
        return None
    if version is None:
        raise usage_error("--response needs --version")
    response_type = ResponseType(_api_key(api), version)
    return lambda correlation_id: response_type


def _api_key(text: str) -> int:
    name = text.lower().replace("_", "")
    for api in ALL_APIS.values():
        if name in (api.name.lower(), str(api.key.value)):
            return api.key
    raise usage_error(f"unknown API: {text!r}")


def print_frames(data: bytes, response_types: ResponseTypes | None, as_json: bool) -> bool:
    """Print all frames of a capture; returns whether one is damaged."""
    text = FrameText(sys.stdout.isatty() and "NO_COLOR" not in os.environ)
    for number, frame in enumerate(parse_capture(data, response_types)):
        if as_json:
            print(text.to_json(frame))
            continue
        if number:
            print()
        for line in text.lines(frame):
            print(line)
    return text.found_damage
