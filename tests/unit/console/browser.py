"""A browser of the console's pages for tests: it follows the forms of previews."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from html import unescape

from starlette.testclient import TestClient

from kbroker.cli.common.client import parse_bootstrap
from kbroker.console.app import create_app
from kbroker.console.rendering import CONFIRMED
from kbroker.console.settings import ConsoleSettings

URL = "http://localhost"


class Browser:
    """`client`: sends requests as pages of the console do."""

    def __init__(self, client: TestClient) -> None:
        self.client = client

    def open(self, path: str, status: int = 200) -> str:
        """Return a page as it is now, not one of the last seconds."""
        self.client.app.state.console.kafka.forget()  # type: ignore[attr-defined]
        response = self.client.get(path)
        assert response.status_code == status, response.text
        return response.text

    def preview(self, path: str, status: int = 200, **fields: object) -> str:
        """Return what a form shows before anything is changed."""
        response = self.client.post(path, data=fields)
        assert response.status_code == status, response.text
        assert "location" not in response.headers
        return response.text

    def confirm(self, path: str, preview: str) -> str:
        """Send the form of a preview, and return the page to which it leads."""
        fields = hidden_fields(preview)
        assert fields[CONFIRMED] == "yes"
        response = self.client.post(path, data=fields)
        assert response.status_code == 200, response.text
        assert response.history[0].status_code == 303
        return response.text


def hidden_fields(page: str) -> Mapping[str, str]:
    """Return the hidden fields of the form that confirms a change."""
    [form] = [form for form in re.findall(r"(?s)<form.*?</form>", page) if f'name="{CONFIRMED}"' in form]
    return {name: unescape(value) for name, value in re.findall(r'name="(\w+)" value="([^"]*)"', form)}


def rows(page: str, table: str) -> list[list[str]]:
    """Return the texts of the cells of a table's body."""
    body = page.partition(f'<table id="{table}">')[2].partition("<tbody>")[2].partition("</tbody>")[0]
    cells = [re.findall(r"(?s)<td[^>]*>(.*?)</td>", row) for row in body.split("</tr>") if "<td" in row]
    return [[" ".join(unescape(re.sub(r"<[^>]*>", " ", cell)).split()) for cell in row] for row in cells]


@contextmanager
def browse(bootstrap: str, *, allows_writes: bool = True) -> Iterator[Browser]:
    app = create_app(ConsoleSettings(parse_bootstrap(bootstrap), allows_writes=allows_writes))
    with TestClient(app, base_url=URL, headers={"origin": URL}) as client:
        yield Browser(client)
