"""What pages have in common: the state of the console, templates, forms, and how numbers and times are shown."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from time import time
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse

from kbroker.cli.common.errors import usage_error
from kbroker.cli.common.values import format_duration, format_size
from kbroker.console.kafka import KafkaReader, Samples
from kbroker.console.redrive_job import RedriveJob
from kbroker.console.settings import ConsoleSettings

MAX_FORM_BYTES = 4 << 20
# A change is carried out if its form has this field; otherwise it is shown.
CONFIRMED = "confirmed"
MAX_PREVIEWED = 200
UNKNOWN = "-"


class Console(NamedTuple):
    """The state of the console. `ends`: log end offsets summed by topic. `lags`: by group. `redrives`: by topic."""

    settings: ConsoleSettings
    kafka: KafkaReader
    ends: Samples
    lags: Samples
    redrives: dict[str, RedriveJob]


def console(request: Request) -> Console:
    found: Console = request.app.state.console
    return found


def page(request: Request, template: str, status: int = 200, /, **context: Any) -> HTMLResponse:
    """Render a template of kbroker/console/templates. Templates know `path`, `allows_writes` and the filters below."""
    return HTMLResponse(render(request, template, **context), status)


def render(request: Request, template: str, /, **context: Any) -> str:
    settings = console(request).settings
    return (
        environment()
        .get_template(template)
        .render(path=request.url.path, allows_writes=settings.allows_writes, bootstrap=settings.bootstrap, **context)
    )


def see_other(path: str) -> RedirectResponse:
    """Return the response to a form that was carried out: the browser shows a page that may be loaded again."""
    return RedirectResponse(path, 303)


def confirmation(
    request: Request,
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    verb: str,
    fields: Mapping[str, object],
    back: str,
    notes: Sequence[str] = (),
) -> HTMLResponse:
    """Return the preview of a change, with a form that sends `fields` to the same path again, and `confirmed`.

    The fields say exactly what the preview shows, so that what changes meanwhile does not change what is done.
    """
    return page(
        request, "confirm.html", title=title, columns=columns, rows=rows[:MAX_PREVIEWED],
        left=len(rows) - MAX_PREVIEWED, verb=verb, fields={**fields, CONFIRMED: "yes"}, back=back, notes=notes,
    )  # fmt: skip


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form, without empty ones. Raises CliError."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_FORM_BYTES:
            raise usage_error(f"a form may have at most {format_size(MAX_FORM_BYTES)}")
    try:
        return dict(parse_qsl(body.decode(), errors="strict", max_num_fields=1000))
    except ValueError:
        raise usage_error("the form cannot be parsed") from None


def integer(parameters: Mapping[str, str], name: str, default: int, most: int) -> int:
    """Return a number of a query or a form, from 0 to `most`. Raises CliError."""
    text = parameters.get(name, "").strip()
    if not text:
        return default
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(most)) or int(text) > most:
        raise usage_error(f"{name} must be a number from 0 to {most}, not {text[:40]!r}")
    return int(text)


@cache
def environment() -> Environment:
    loader = PackageLoader("kbroker.console")
    # Every text is escaped: records, names and errors may be hostile.
    created = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    created.filters |= {
        "count": count,
        "size": lambda size_bytes: UNKNOWN if size_bytes is None else format_size(size_bytes),
        "rate": rate,
        "time": iso_time,
        "ago": ago,
        "segment": lambda text: quote(text, safe=""),
    }
    return created


# Filters.


def count(number: int | None) -> str:
    """Return a number with separators of thousands."""
    return UNKNOWN if number is None else f"{number:,}"


def rate(per_s: float | None) -> str:
    if per_s is None:
        return UNKNOWN
    return f"{per_s:,.0f}/s" if per_s >= 10 or per_s == 0 else f"{per_s:.1f}/s"


def iso_time(timestamp_ms: int | None) -> str:
    """Return milliseconds since the epoch as ISO 8601 in UTC; a number out of range unchanged."""
    if timestamp_ms is None or timestamp_ms < 0:
        return UNKNOWN
    try:
        return (
            datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        )
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)


def ago(timestamp_ms: int | None) -> str:
    """Return the time since then, as "2h5m ago" or "in 5m"."""
    if timestamp_ms is None or timestamp_ms < 0:
        return UNKNOWN
    passed_ms = round(time() * 1000) - timestamp_ms
    # Whole seconds: the page is seconds old when it is read.
    text = format_duration(abs(passed_ms) // 1000 * 1000)
    if abs(passed_ms) < 1000:
        return "now"
    return f"{text} ago" if passed_ms > 0 else f"in {text}"
