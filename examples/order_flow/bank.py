"""A bank for the example, which is away while the file `bank-is-away` exists. Usage: bank.py [PORT]"""

import json
import signal
import sys
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
server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 8080), Bank)
print(f"bank: http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
