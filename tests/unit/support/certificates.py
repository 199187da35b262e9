"""Keys and certificates in PEM files, made by the openssl command."""

import subprocess
from pathlib import Path


class CertificateAuthority:
    """`ca`: the file with its certificate."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.ca = directory / "ca.pem"
        self._openssl(
            "req", "-x509", *self._new_key("ca"), "-out", "ca.pem", "-subj", f"/CN={directory.name}",
            "-addext", "basicConstraints=critical,CA:true",
        )  # fmt: skip

    def sign(self, name: str, host: str = "IP:127.0.0.1", days: int = 1) -> Path:
        """Return a file with a new key and its certificate, which replaces a former one. -1 day: it has expired."""
        (self.directory / "names").write_text(f"subjectAltName={host}\n")
        self._openssl("req", *self._new_key(name), "-out", f"{name}.csr", "-subj", f"/CN={name}")
        self._openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
            "-extfile", "names", "-days", str(days), "-out", f"{name}.crt",
        )  # fmt: skip
        parts = [(self.directory / f"{name}.{part}").read_text() for part in ("key", "crt")]
        written = self.directory / f"{name}.new"
        written.write_text("".join(parts))
        return written.rename(self.directory / f"{name}.pem")

    def _new_key(self, name: str) -> tuple[str, ...]:
        return "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", f"{name}.key"

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.directory, check=True, capture_output=True)
