"""The queue of requests at its borders: blocks of the file, claims, and what comes back."""

import os
import pickle
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import pytest

from penstock.loading.workers import request_queue
from penstock.loading.workers.request_queue import RequestQueue, anonymous_file
from penstock.loading.workers.window import Task
from tests.loading import played

CLAIMS = request_queue._CLAIMS


@pytest.fixture
def queue():
    made = RequestQueue(played.Context(), 2)
    yield made
    made.close()


def test_requests_lie_in_blocks_from_the_start_of_the_file(queue):
    assert len(queue._claims) == 2 * (1 + CLAIMS)
    empty = len(ForkingPickler.dumps(b"x" * 8000)) - 8000
    requests = [b"x" * (size - empty) for size in (8192, 8193, 8191)]
    for request in requests:
        queue.put(Task(request))
    assert [block[1:] for block in queue._open.values()] == [
        (0, 8192),
        (8192, 16384),
        (8192 + 16384, 8192),
    ]
    assert pickle.loads(os.pread(queue._file, 8192, 0)) == requests[0]
    queue.put(Task("small"))
    assert queue._open[3][2] == 4096


def test_a_process_cannot_have_more_claims_than_are_kept(queue):
    for number in range(CLAIMS + 1):
        queue.put(Task(number))
        queue.reader.take(1)
    assert len(queue._open) == CLAIMS
    assert [task.request for task in queue._backlog] == [CLAIMS]
    assert [task.request for task in queue.claimed(1)] == list(range(CLAIMS))
    queue.flush()
    assert queue.reader.take(1) == CLAIMS
    assert [task.request for task in queue.claimed(1)] == [CLAIMS]


def test_so_many_come_back_as_are_asked_for(queue):
    tasks = [Task(number) for number in range(4)]
    for task in tasks:
        queue.put(task)
    assert queue.take_back(1) == tasks[:1]
    assert queue.take_back(2) == tasks[1:3]
    assert queue.take_back(2) == tasks[3:]
    assert queue.take_back(0) == []
    assert not queue.has_open


def test_what_seemed_lost_is_known_once_its_process_says_so(queue):
    task = Task("late")
    queue.put(task)
    number = request_queue._TOKEN.unpack(os.read(queue.reader.fileno(), 32))[0]
    assert queue.lost() == [task]
    claims = request_queue._claims_of(queue._claims, 0)
    claims[1], claims[0] = number, 1
    assert queue.claimed(0) == [task]
    assert queue.claimed(0) == []


@pytest.mark.parametrize("has_memfd", [True, False])
def test_a_file_has_no_name(has_memfd, monkeypatch):
    if not has_memfd:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    file = anonymous_file()
    name = str(Path(f"/proc/self/fd/{file}").readlink())
    os.close(file)
    assert not Path(name).exists()
    assert name.startswith("/memfd:") == has_memfd
