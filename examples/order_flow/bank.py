"""A bank for the example, which is away while the file `bank-is-away` exists. BANK: its address."""

import json
import os
import signal
import sys
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

receipts: dict[str, str] = {}


class Bank(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        amount = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["amount"]
        if Path("bank-is-away").exists():
            self.send_error(503)
        elif amount <= 0:
            self.send_error(422)
        else:
            # A repeated request has the same key, and gets the same receipt.
            receipt = receipts.setdefault(self.headers["Idempotency-Key"], f"receipt-{len(receipts) + 1}")
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"receipt": receipt}).encode())


signal.signal(signal.SIGTERM, lambda *_: sys.exit())
address = os.environ.get("BANK", "http://127.0.0.1:8080")
server = ThreadingHTTPServer(("127.0.0.1", urllib.parse.urlsplit(address).port or 80), Bank)
print(f"the bank is open at {address}", flush=True)
server.serve_forever()
