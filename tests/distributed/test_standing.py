"""Where a process stands, for others that wait for it."""

import threading
import time

from penstock.distributed import standing


def test_a_process_gives_its_stacks_to_one_file_for_good():
    before = standing.description().dump
    thread = threading.Thread(target=standing.listen)
    thread.start()
    thread.join()
    assert standing.description().dump == before  # only the main thread can register a signal
    standing.listen()
    dump = standing.description().dump
    assert dump >= 0
    standing.listen()
    assert standing.description().dump == dump


def test_a_thread_for_which_the_main_thread_waits_is_shown():
    done, seen = threading.Event(), []

    def look():
        until = time.monotonic() + 20
        while time.monotonic() < until:
            seen.append(standing.own(["reads"]))
            if threading.__file__ in seen[-1].stack[0]:  # the main thread has come to `join`
                break
        done.set()

    reads = threading.Thread(target=done.wait, name="reads")
    looks = threading.Thread(target=look)
    reads.start()
    looks.start()
    reads.join()
    looks.join()
    stack = seen[-1].stack
    inner = stack[stack.index("in its thread 'reads':") + 1 :]
    assert "in wait" in inner[0]
    assert not seen[-1].waits  # for other ranks
