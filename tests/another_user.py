"""What another user of this machine can do, where the tests run as root and so can become one."""

import json
import os
import traceback

import pytest

NOBODY = 65534

needs_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become another user"
)


def does(function, *arguments):
    """What `function` returns, as JSON has it, in a process of another user."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            with os.fdopen(writing, "w") as file:
                json.dump(function(*arguments), file)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as file:
        text = file.read()
    _, status = os.waitpid(pid, 0)
    assert status == 0
    return json.loads(text)
