"""A context of multiprocessing whose processes are played by the test, in this process.

They have what a real one gets: socket, queue, status and file for the stack.
"""

import multiprocessing
import os

from penstock.loading.workers import channel
from penstock.loading.workers.worker import _Sent

FIRST_PID = 1 << 23  # no process has it


class Context:
    """As `multiprocessing.get_context(method)`.

    Attributes:
        processes: in the order in which they were started.
    """

    def __init__(self, method="fork"):
        self.method, self.processes = method, []
        self.RawArray = multiprocessing.get_context("fork").RawArray

    def get_start_method(self):
        return self.method

    def Process(self, target, args, daemon):
        assert daemon
        return Process(self, *args)


class Process:
    """A process that does what the test makes it do.

    Attributes:
        worker_context: its `WorkerContext`.
        log: what was asked of it.
    """

    def __init__(self, context, sent):
        self._context, self.is_wrapped = context, isinstance(sent, _Sent)
        self.worker_context = sent._value if self.is_wrapped else sent
        self.pid = FIRST_PID + len(context.processes)
        self.exitcode = None
        self.is_stubborn = False
        self.log = []

    def start(self):
        self._context.processes.append(self)
        self.sock = self.worker_context.sock.dup()
        self._receiver = channel.Receiver(self.sock)
        self.sentinel, self._end = os.pipe()

    @property
    def cell(self):
        return self.worker_context.shared.cell(self.worker_context.number)

    def stand(self, epoch, step, place, stage):
        for field, number in enumerate((epoch, step, place, stage)):
            self.cell[field] = number

    def take(self):
        """The next request; None if there is none."""
        if self.worker_context.queue is not None:
            return self.worker_context.queue.take(self.worker_context.number)
        message = self._receiver.take()
        return None if message is None else channel.unpack(message)

    def give(self, result):
        channel.send(self.sock, channel.pack(result))

    def die(self, code):
        self.exitcode = code
        self.sock.close()
        if self._end is not None:
            os.close(self._end)
            self._end = None

    def kill(self):
        self.log.append("kill")
        if self.exitcode is None and not self.is_stubborn:
            self.die(-9)

    def terminate(self):
        self.log.append("terminate")

    def join(self, timeout=None):
        self.log.append(f"join {timeout}")
        if self.exitcode is None and self.worker_context.shared.is_done and not self.is_stubborn:
            self.die(0)

    def close(self):
        self.log.append("close")
        self.die(self.exitcode)
        os.close(self.sentinel)
