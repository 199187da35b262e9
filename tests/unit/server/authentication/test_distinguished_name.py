"""Principals of client certificates. The expected names are those that Java 17 prints."""

import subprocess
from pathlib import Path
from ssl import PEM_cert_to_DER_cert

import pytest

from kbroker.config.values import ConfigError
from kbroker.server.authentication.distinguished_name import PrincipalMapper, subject


@pytest.mark.parametrize(
    ("openssl", "java"),
    [
        (
            "/C=DE/ST=Bayern/L=München/O=Acme, Inc/OU=Ops+CN=multi/emailAddress=a@b.c/CN=client",
            "CN=client,1.2.840.113549.1.9.1=#16056140622e63,OU=Ops+CN=multi,O=Acme\\, Inc,L=München,ST=Bayern,C=DE",
        ),
        ("/DC=org/DC=example/UID=u1/CN= lead and trail ", "CN=\\ lead and trail\\ ,UID=u1,DC=example,DC=org"),
        ('/O=#hash/CN=quote " plus \\+ back \\\\ semi; <x>',
         'CN=quote \\" plus \\+ back \\\\ semi\\; \\<x\\>,O=\\#hash'),
        ("/serialNumber=77/street=Main 1/title=Dr/CN=日本",
         "CN=日本,2.5.4.12=#0c024472,STREET=Main 1,2.5.4.5=#13023737"),
    ],
)  # fmt: skip
def test_the_subject_is_that_of_java(tmp_path: Path, openssl: str, java: str) -> None:
    path = tmp_path / "cert.pem"
    command = ["openssl", "req", "-x509", "-utf8", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command += ["-keyout", str(tmp_path / "key"), "-out", str(path), "-multivalue-rdn", "-subj", openssl]
    subprocess.run(command, check=True, capture_output=True)
    assert subject(PEM_cert_to_DER_cert(path.read_text())) == java


@pytest.mark.parametrize(
    ("rules", "name", "user"),
    [
        ("DEFAULT", "CN=a,O=b", "CN=a,O=b"),
        ("RULE:^CN=(.*?),O=(.*)$/$1@$2/", "CN=Ann,O=Acme", "Ann@Acme"),
        ("RULE:^CN=(.*?),O=(.*)$/$1@$2/L, DEFAULT", "CN=Ann,O=Acme", "ann@acme"),
        ("RULE:^CN=(.*?),O=(.*)$/$1/U,DEFAULT", "CN=Ann,O=Acme", "ANN"),
        ("RULE:^OU=(.*)$/$1/,DEFAULT", "CN=Ann", "CN=Ann"),
        # No rule applies: the connection is closed.
        ("RULE:^OU=(.*)$/$1/", "CN=Ann", None),
        ("RULE:CN=(.*)/$1/", "CN=Ann,O=x\nCN=root", None),
    ],
)
def test_rules_map_a_name_to_a_user(rules: str, name: str, user: str | None) -> None:
    assert PrincipalMapper("x", rules).user(name) == user


@pytest.mark.parametrize("rules", ["rule:a/b/", "RULE:a/b", "RULE:(/b/", "RULE:a/$1/", "DEFAULTS", "RULE:a/b/X"])
def test_invalid_rules(rules: str) -> None:
    with pytest.raises(ConfigError, match=r"Invalid rule in ssl\.rules"):
        PrincipalMapper("ssl.rules", rules)
