"""Which requests reach a page: those of this host, from the console's own pages, with the token if there is one.

A page of another site can make the browser send requests to a loopback address. It cannot choose the Host header of a
name that it does not own (DNS rebinding), nor the headers Origin and Sec-Fetch-Site.
"""

import hmac
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kbroker.console.settings import ConsoleSettings

COOKIE = "kbroker-console"
TOKEN_PARAMETER = "token"
READ_METHODS = ("GET", "HEAD")
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    # With no-referrer, browsers send `Origin: null` with the console's own forms.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Guard:
    """ASGI middleware that refuses requests, and adds the headers of security to every response."""

    def __init__(self, app: ASGIApp, settings: ConsoleSettings) -> None:
        self._app = app
        self._settings = settings
        self._hosts = {"localhost", *(name.lower() for name in settings.hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                # Scripts and styles are validated with their ETag.
                headers["Cache-Control"] = "no-cache" if scope["path"].startswith("/static/") else "no-store"
            await send(message)

        app = self._refusal(scope) or self._app
        await app(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        """Return the response to a request that does not reach a page."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._is_known(_host_name(host)):
            return PlainTextResponse("This console has another name: see `kbroker console --host`.\n", 421)
        is_read = scope["method"] in READ_METHODS
        if not _is_same_origin(headers, host, is_read):
            return PlainTextResponse("Requests of other sites are refused.\n", 403)
        if self._settings.token is not None and (response := self._check_token(scope, headers)):
            return response
        if not is_read and not self._settings.allows_writes:
            return PlainTextResponse("The console is read-only: start it with --write.\n", 403)
        return None

    def _is_known(self, name: str) -> bool:
        """Return whether this is a name of the console, or an address: rebinding needs a name."""
        if name in self._hosts:
            return True
        try:
            ip_address(name)
            return True
        except ValueError:
            return False

    def _check_token(self, scope: Scope, headers: Headers) -> Response | None:
        """Return None for a user who has presented the token. A URL with the token sets the cookie."""
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = dict(query).get(TOKEN_PARAMETER)
        name = _cookie_name(headers.get("host", ""))
        if given is not None and self._is_token(given):
            rest = urlencode([(key, value) for key, value in query if key != TOKEN_PARAMETER])
            # One slash: a URL that begins with two names another host.
            path = "/" + scope["path"].lstrip("/")
            response = RedirectResponse(f"{path}?{rest}" if rest else path, 303)
            response.set_cookie(name, given, httponly=True, samesite="strict")
            return response
        try:
            morsel = SimpleCookie(headers.get("cookie", "")).get(name)
        except CookieError:
            morsel = None
        if morsel is not None and self._is_token(morsel.value):
            return None
        return PlainTextResponse("Open the URL with the token that the console printed when it started.\n", 401)

    def _is_token(self, text: str) -> bool:
        assert self._settings.token is not None
        return hmac.compare_digest(text.encode(), self._settings.token.encode())


def _host_name(host: str) -> str:
    """Return the name of a Host header, without the port; an IPv6 address without brackets."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _cookie_name(host: str) -> str:
    """Return a name that differs for each port: browsers send cookies to all ports of a host."""
    return f"{COOKIE}-{host.rpartition(':')[2] if ':' in host else 80}"


def _is_same_origin(headers: Headers, host: str, is_read: bool) -> bool:
    """Return whether a request comes from a page of the console, or for reads from no other page.

    Links of other sites may lead to the console.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if is_read:
        return site in (None, "same-origin", "none") or headers.get("sec-fetch-mode") == "navigate"
    if site is None and origin is None:
        return False
    return site in (None, "same-origin") and (origin is None or urlsplit(origin).netloc == host)
