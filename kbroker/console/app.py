"""The console as an ASGI application: its pages, and what its users see when something fails."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from kbroker.cli.common.client import CLIENT_ERRORS, client_error_text
from kbroker.cli.common.errors import CliError
from kbroker.client.connection import BrokerUnreachable
from kbroker.client.requests import BrokerError
from kbroker.console.guard import Guard
from kbroker.console.kafka import ClusterTimeout, KafkaReader, Samples
from kbroker.console.pages import brokers, configs, dead_letters, groups, queues, record, records, topics, transactions
from kbroker.console.rendering import Console, page
from kbroker.console.settings import ConsoleSettings
from protocol.errors import ErrorCode

PAGES = (topics, records, record, groups, configs, brokers, queues, dead_letters, transactions)


# A minute of a page that is refreshed: rates need no more, and there may be thousands of topics.
RATE_SAMPLES = 12


def create_app(settings: ConsoleSettings) -> Starlette:
    """Create the application. Nothing connects to the cluster before the first request."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        state.kafka.close()

    state = Console(settings, KafkaReader(settings), ends=Samples(RATE_SAMPLES), lags=Samples(), redrives={})
    app = Starlette(
        routes=[
            Route("/", lambda _: RedirectResponse("/topics")),
            Mount("/static", StaticFiles(packages=[("kbroker.console", "static")])),
            *(route for module in PAGES for route in module.routes),
        ],
        middleware=[Middleware(Guard, settings=settings)],
        exception_handlers={
            CliError: _on_wrong_input,
            ClusterTimeout: _on_unreachable,
            HTTPException: _on_http_error,
            **dict.fromkeys(CLIENT_ERRORS, _on_client_error),
        },
        lifespan=lifespan,
    )
    app.state.console = state
    return app


def _error(request: Request, status: int, text: str, *, retry_s: int = 0) -> Response:
    """Return a page with an error, or only its sentence to a script. With `retry_s` it is loaded again, but no form."""
    if request.method == "POST":
        retry_s = 0
    if request.headers.get("accept") == "application/json":
        return PlainTextResponse(text, status)
    return page(request, "error.html", status, text=text, retry_s=retry_s)


def _on_wrong_input(request: Request, error: Exception) -> Response:
    return _error(request, 400, str(error))


def _on_client_error(request: Request, error: Exception) -> Response:
    if isinstance(error, BrokerError) and error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return _error(request, 404, f"{error.subject} does not exist")
    is_away = isinstance(error, BrokerUnreachable)
    return _error(request, 502, client_error_text(error), retry_s=3 if is_away else 0)


def _on_unreachable(request: Request, error: Exception) -> Response:
    sent = " What was sent may still be carried out." if request.method == "POST" else ""
    return _error(request, 504, f"{error}.{sent}", retry_s=3)


def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = "There is no such page." if error.status_code == 404 else error.detail
    return _error(request, error.status_code, text)
