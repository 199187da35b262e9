"""Reads captured bytes from an argument, a file or standard input."""

import base64
import binascii
import re
import sys
from pathlib import Path

from kbroker.cli.common.errors import CliError, exception_text, usage_error

_HEX = re.compile(rb"(?:0x)?(?:[0-9a-fA-F]{2})+")
_SEPARATORS = re.compile(rb"[\s:]+")


def read_capture(text: str | None, file: str | None) -> bytes:
    """Return the bytes of the argument, or of the file; by default, of standard input."""
    if text is not None and file is not None:
        raise usage_error("FRAMES and --file exclude each other")
    if text is not None and text != "-":
        return read_text(text)
    if text is None and file is None and sys.stdin.isatty():
        raise usage_error("pass frames, a file or standard input")
    data = _read_file(file)
    if not data:
        raise CliError("no bytes to read")
    decoded = _decode(data)
    return data if decoded is None else decoded


def read_text(text: str) -> bytes:
    """Decode hex or base64. Hex may have white space or colons between the bytes."""
    data = _decode(text.encode(errors="replace"))
    if not data:
        raise usage_error("frames must be hex or base64")
    return data


def _read_file(file: str | None) -> bytes:
    if file is None or file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise CliError(exception_text(error)) from None


def _decode(data: bytes) -> bytes | None:
    text = _SEPARATORS.sub(b"", data)
    if _HEX.fullmatch(text):
        return bytes.fromhex(text.decode().removeprefix("0x"))
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return None
