"""What starts from a warm process is a program as any other; see tests/support/warm.py."""

import json
import os
import subprocess
import sys

import pytest

from tests.support import warm

SHOW = """
import json, os, sys
print(json.dumps({
    "argv": sys.argv, "main": getattr(sys.modules["__main__"], "__file__", None), "name": __name__,
    "folder": os.getcwd(), "path": sys.path[:2], "variables": sorted(os.environ),
    "pid": os.getpid(),
    "session": os.getsid(0),
    "threads": len(os.listdir("/proc/self/task")), "hidden": "pytest" in dir(),
}))
"""
ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "PYTHONPATH": "here",
    "LC_CTYPE": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
}


@pytest.mark.parametrize("way", ["script", "-m", "-c"])
def test_it_finds_what_a_program_finds(way, tmp_path):
    (tmp_path / "shows.py").write_text(SHOW)
    words = {"script": ["shows.py"], "-m": ["-m", "shows"], "-c": ["-c", SHOW]}[way]
    command = [sys.executable, *words, "a", "b c"]
    found = []
    for begin in (warm.start, subprocess.Popen):
        program = begin(
            command,
            cwd=tmp_path,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        out, err = program.communicate(timeout=600)
        shown = json.loads(out)
        assert program.pid == shown.pop("pid") == shown.pop("session") != os.getpid()
        assert (program.returncode, err) == (0, None)
        found.append(shown)
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("code", "returned", "said"),
    [
        ("pass", 0, ""),
        ("import sys; sys.exit(75)", 75, ""),
        ("raise SystemExit('no')", 1, "no\n"),
        ("1 / 0", 1, "ZeroDivisionError"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9, ""),
        ("import signal; signal.raise_signal(signal.SIGINT)", -2, "KeyboardInterrupt"),
        ("import atexit, sys; atexit.register(print, 'end', file=sys.stderr)", 0, "end\n"),
        (
            "import threading, sys, time\n"
            "def say(): time.sleep(0.1); print('late', file=sys.stderr)\n"
            "threading.Thread(target=say).start()",
            0,
            "late\n",
        ),
    ],
)
def test_it_ends_as_a_program_ends(code, returned, said):
    done = warm.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.returncode == returned
    assert said in done.stderr
    assert (said == "") == (done.stderr == "")


def test_its_server_may_begin_in_a_folder_that_has_tests_of_its_own(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/__init__.py").write_text("")
    code = (
        f"import os, sys; from tests.support import warm; os.chdir({str(tmp_path)!r}); "
        "sys.exit(warm.run([sys.executable, '-c', 'import sys; sys.exit(7)']).returncode)"
    )
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, cwd=warm.ROOT, timeout=600, check=False).returncode == 7
