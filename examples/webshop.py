"""Enqueueing from code that is not asynchronous, as in Flask or Django views: `app.sync`.

    treadle worker examples/webshop.py:app
    python examples/webshop.py

The web server is the one of the standard library; with Flask the functions below would be the views.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.request import Request, urlopen

from treadle import App, UnknownJob

app = App()


@app.task(queue="orders")
def confirm(order: int, address: str) -> str:
    """Runs in a thread of the worker, so it may use blocking libraries."""
    time.sleep(0.05)
    return f"order {order} confirmed to {address}"


def place_order(order: int, address: str) -> dict[str, str]:
    """A view: the job is stored before the response. A second click returns the same job."""
    job = confirm.options(id=f"order-{order}").enqueue_sync(order, address)
    return {"job": job.id}


def order_state(id: str) -> dict[str, str | None]:
    """A view that a browser polls."""
    try:
        row = app.sync.jobs.get(id)
    except UnknownJob:
        return {"state": "unknown", "result": None}
    return {"state": str(row.state), "result": row.result}


class Web(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.answer(202, place_order(order["order"], order["address"]))

    def do_GET(self) -> None:
        self.answer(200, order_state(self.path.rpartition("/")[2]))

    def answer(self, status: int, body: dict[str, str | None] | dict[str, str]) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args: object) -> None:
        pass


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Web)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    root = f"http://127.0.0.1:{server.server_port}"

    def ask(path: str, body: object = None) -> dict[str, str]:
        data = None if body is None else json.dumps(body).encode()
        with urlopen(Request(root + path, data), timeout=10) as answer:
            return json.load(answer)

    ordered = [ask("/orders", {"order": number, "address": f"c{number}@example.org"}) for number in (1, 2, 3, 3)]
    assert ordered[2] == ordered[3], "a second click is the same job"
    until = time.monotonic() + 30
    for each in ordered[:3]:
        while (seen := ask(f"/orders/{each['job']}"))["state"] != "succeeded":
            if time.monotonic() > until:
                sys.exit(f"no worker has run it within 30 s: {seen}")
            time.sleep(0.05)
        print(seen["result"])
    server.shutdown()
    server.server_close()
    app.sync.close()


if __name__ == "__main__":
    main()
