"""A small web server on loopback that can misbehave, one way a path."""

import contextlib
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class WebServer:
    """Serves `contents`, path -> bytes.

    Attributes:
        requests: "METHOD path" of each request, in order.
        faults: path -> what goes wrong with the next downloads of it, in order: an HTTP status,
            "cut" (half of the body, then the connection is closed), "short" (the same, and no
            length was told), "silent" (nothing comes for 5 s). After the last it is served well.
        wait: the `Retry-After` of faults.
        delay: seconds that each answer takes.
        bears: downloads at once; more are answered with 429, and the first answer waits until more
            have come. None: any number.
        most: downloads that were under way at once.
        lengths, ranges, etags: whether the server tells lengths, knows ranges, gives tags.
    """

    def __init__(self):
        self.contents = {}
        self.requests = []
        self.faults = {}
        self.wait, self.delay, self.bears = None, 0.0, None
        self.most = self._under_way = 0
        self._lock, self._crowded = threading.Lock(), threading.Event()
        self.lengths = self.ranges = self.etags = True

    @property
    def address(self):
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def downloads(self, path):
        return self.requests.count(f"GET {path}")

    def __enter__(self):
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    def _handler(web):
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_HEAD(self):
                self.answer(with_body=False)

            def do_GET(self):
                with web._lock:
                    web._under_way += 1
                    web.most = max(web.most, web._under_way)
                    too_many = web.bears is not None and web._under_way > web.bears
                try:
                    if too_many:
                        web._crowded.set()
                    elif web.bears is not None:
                        web._crowded.wait(20)
                    time.sleep(web.delay)
                    with contextlib.suppress(ConnectionError):
                        if too_many:
                            web.requests.append(f"429 {self.path}")
                            self.fail(429)
                        else:
                            self.answer(with_body=True)
                finally:
                    with web._lock:
                        web._under_way -= 1

            def answer(self, with_body):
                web.requests.append(f"{self.command} {self.path}")
                body = web.contents.get(self.path)
                faults = web.faults.get(self.path) if with_body else None
                fault = faults.pop(0) if faults else None
                if body is None:
                    return self.fail(404)
                if isinstance(fault, int):
                    return self.fail(fault)
                if fault == "silent":
                    time.sleep(5)
                return self.give(body, fault, with_body)

            def fail(self, status):
                self.send_response(status)
                self.send_header("Content-Length", "0")
                if web.wait is not None:
                    self.send_header("Retry-After", str(web.wait))
                self.end_headers()

            def give(self, body, fault, with_body):
                etag = f'"{hash(body):x}"'
                span = self.headers.get("Range") if web.ranges else None
                if span:
                    first, last = (int(part) for part in span.removeprefix("bytes=").split("-"))
                    total, body = len(body), body[first : last + 1]
                    self.send_response(206)
                    self.send_header("Content-Range", f"bytes {first}-{last}/{total}")
                else:
                    self.send_response(200)
                if web.etags:
                    self.send_header("ETag", etag)
                if web.lengths and fault != "short":
                    self.send_header("Content-Length", str(len(body)))
                else:
                    self.send_header("Connection", "close")
                if self.path.endswith("/"):
                    self.send_header("Content-Type", "text/html")
                self.end_headers()
                if not with_body:
                    return
                if fault in ("cut", "short"):
                    self.wfile.write(body[: len(body) // 2])
                    self.wfile.flush()
                    self.close_connection = True
                    return
                self.wfile.write(body)

        return Handler
