"""An S3 server on loopback (moto) that serves a folder, in a process that can be killed.

`python -m tests.s3_server PORT FOLDER LOG DELAY` is that process. The bucket is `data`, filled
before the port is open, so a server that is started again has what it had.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from tests.ports import free_port

ROOT = Path(__file__).parent.parent
BUCKET = "data"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


class S3Server:
    """Serves `folder` at `s3://data`.

    Args:
        folder: the files.
        log: file that gets a line for each request: method and path.
        delay: seconds that each download takes.
    """

    def __init__(self, folder, log, delay=0.0):
        self.folder, self.log, self.delay = folder, log, delay
        self.port = free_port()
        self.process = None

    def start(self):
        command = [
            sys.executable,
            "-m",
            "tests.s3_server",
            str(self.port),
            str(self.folder),
            str(self.log),
            str(self.delay),
        ]
        self.process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **ENVIRONMENT})
        wait_until(lambda: is_open(self.port) or self.process.poll() is not None, 120)
        assert self.process.poll() is None
        return self

    def kill(self):
        """End the process at once, in the middle of whatever it does."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    @property
    def options(self):
        return {"endpoint_url": f"http://127.0.0.1:{self.port}"}

    def requests(self):
        """ "METHOD path" of the requests so far, in order."""
        return self.log.read_text().splitlines() if self.log.exists() else []

    def downloads(self):
        """Keys that were downloaded so far, in order."""
        start = f"GET /{BUCKET}/"
        return [line.removeprefix(start) for line in self.requests() if line.startswith(start)]


def is_open(port):
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def wait_until(condition, seconds):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"nothing happened within {seconds} s"
        time.sleep(0.02)


def serve(port, folder, log, delay):
    """Serve until killed."""
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from moto.s3.models import s3_backends
    from werkzeug.serving import WSGIRequestHandler, make_server

    backend = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
    backend.create_bucket(BUCKET, "us-east-1")
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        backend.put_object(BUCKET, path.relative_to(folder).as_posix(), path.read_bytes())
    application = DomainDispatcherApplication(create_backend_app)

    def logged(environ, start_response):
        line = f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}"
        if line.startswith("GET") and line.count("/") > 1 and not line.endswith("/"):
            time.sleep(delay)
        with log.open("a") as file:
            file.write(line + "\n")
        return application(environ, start_response)

    class Quiet(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"  # connections are kept open, as S3 does

        def log_request(self, *args):
            pass

    make_server("127.0.0.1", port, logged, threaded=True, request_handler=Quiet).serve_forever()


if __name__ == "__main__":
    serve(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4]))
