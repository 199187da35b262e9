"""franz-go, sarama and KafkaJS log in with PLAIN and SCRAM over TLS, and with certificates; wrong ones are refused.

A line for a program has the `client`, the `address`, a new `topic`, `mechanism` (empty for none), `user`, `password`,
and the files `ca`, `certificate` and `key` (empty without TLS or a certificate).
"""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.compat.security.secure_broker import LOGINS, Login, SecureBroker
from tests.compat.support import unique
from tests.compat.toolchains import go_program, javascript_directory

HERE = Path(__file__).parent
pytestmark = pytest.mark.feature("security")


class Program:
    def __init__(self, secure: SecureBroker, client: str, *command: str | Path) -> None:
        self._secure, self._client = secure, client
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def log_in(self, login: Login, has_certificate: bool = True) -> dict[str, Any]:
        path = self._secure.certificates.path
        files = {"ca": path("ca.pem")} if login.protocol.endswith("SSL") else {}
        if login.protocol == "SSL" and has_certificate:
            files |= {"certificate": path("client.crt"), "key": path("client.key")}
        line = {"client": self._client, "address": self._secure.address(login), "topic": unique(self._client)}
        line |= {"mechanism": login.mechanism, "user": login.user, "password": login.password} | files
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()
        response: dict[str, Any] = json.loads(self._process.stdout.readline())
        return response

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def go(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return go_program(HERE / "go", tmp_path_factory.mktemp("program") / "logins")


@pytest.fixture(
    params=[
        pytest.param(name, marks=pytest.mark.client(client))
        for name, client in {"franz-go": "go", "sarama": "sarama", "KafkaJS": "javascript"}.items()
    ],
    scope="module",
)
def program(request: pytest.FixtureRequest, secure: SecureBroker) -> Iterator[Program]:
    if request.param == "KafkaJS":
        directory = javascript_directory()
        shutil.copy(HERE / "logins.js", directory)
        opened = Program(secure, request.param, "node", directory / "logins.js")
    else:
        opened = Program(secure, request.param, request.getfixturevalue("go"))
    yield opened
    opened.close()


def test_logins(program: Program) -> None:
    for login in LOGINS:
        if login.protocol != "SASL_PLAINTEXT" and login.mechanism != "OAUTHBEARER":
            response = program.log_in(login)
            assert response.get("record", "").startswith("of "), f"{login}: {response}"


def test_wrong_and_missing_credentials(program: Program) -> None:
    for login in LOGINS[3:6]:
        response = program.log_in(login._replace(password="wrong"))
        error = response["error"].replace("SASL_AUTHENTICATION_FAILED", "Authentication failed")
        assert "uthentication failed" in error, f"{login}: {error}"
    for refused in (program.log_in(Login("SASL_SSL")), program.log_in(Login("SSL"), has_certificate=False)):
        assert refused["error"]
