"""Values that have no type of their own as strings of JSON (pure)."""

import base64
import json
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID


def to_json_text(value: Any) -> str:
    """Return the JSON text of a value. Bytes are in Base64, times in ISO 8601, decimals and UUIDs are strings."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_to_plain)


def _to_plain(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(f"no JSON for {type(value).__name__}")
