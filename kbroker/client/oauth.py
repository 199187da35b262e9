"""What SASL OAUTHBEARER needs of an identity provider (KIP-768): its keys, and tokens for clients.

URLs are those of Kafka's configs: file:, http: and https:. Certificates are verified with those of the system.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import unquote, urlencode, urlsplit
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPSHandler,
    OpenerDirector,
    Request,
)

from kbroker.common import TokenSource

MAX_BYTES = 1 << 20
TIMEOUT_S = 5.0


def read_url(url: str, data: bytes | None = None, headers: Mapping[str, str] | None = None) -> bytes:
    """Read a file, or send a request: POST with `data`. Raises OSError, also for more than MAX_BYTES.

    It follows no redirect and uses no proxy: nothing but the configured address is read.
    """
    try:
        parts = urlsplit(url)
        if parts.scheme == "file":
            with Path(unquote(parts.path)).open("rb") as file:
                return _bounded(file.read(MAX_BYTES + 1))
        opener = OpenerDirector()
        for handler in (HTTPHandler(), HTTPSHandler(), HTTPErrorProcessor(), HTTPDefaultErrorHandler()):
            opener.add_handler(handler)
        response = opener.open(Request(url, data, dict(headers or {})), timeout=TIMEOUT_S)
        if response is None:
            raise OSError("the scheme is none of file, http and https")
        with response:
            return _bounded(response.read(MAX_BYTES + 1))
    except HTTPError as error:
        # The body may repeat secrets.
        raise OSError(f"the response is {error.code} {error.reason}") from None
    except (HTTPException, ValueError) as error:
        raise OSError(f"{type(error).__name__}: {error}") from None


def _bounded(content: bytes) -> bytes:
    if len(content) > MAX_BYTES:
        raise OSError(f"more than {MAX_BYTES} bytes")
    return content


def retrieve_token(source: TokenSource) -> str:
    """Return a token. Raises OSError."""
    try:
        if source.url.startswith("file:"):
            return read_url(source.url).decode().strip()
        form = {"grant_type": "client_credentials"} | ({"scope": source.scope} if source.scope else {})
        credentials = b64encode(f"{source.client_id}:{source.client_secret}".encode()).decode()
        headers = {"Authorization": f"Basic {credentials}", "Accept": "application/json"}
        token = json.loads(read_url(source.url, urlencode(form).encode(), headers))["access_token"]
        if isinstance(token, str) and token:
            return token
        raise OSError("access_token is no text")
    except (ValueError, KeyError, TypeError, RecursionError):
        raise OSError(f"there is no token at {source.url}") from None
    except OSError as error:
        raise OSError(f"no token from {source.url}: {error}") from None
