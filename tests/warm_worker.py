"""An interpreter whose program starts from a process that has imported what tests import.

`python tests/warm_worker.py -u -c CODE` runs CODE in a process that tests/warm.py starts, hands on
the signals by which it is asked to stop, and ends as it ends. Pytest's workers are such, and ranks
whose launcher a test looks at.
"""

import contextlib
import os
import signal
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests import warm

    words = sys.argv[2:] if sys.argv[1] == "-u" else sys.argv[1:]
    program = warm.start([sys.executable, *words], stdin=sys.stdin)

    def hand_on(number, _):
        with contextlib.suppress(ProcessLookupError):
            os.kill(program.pid, number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, hand_on)
    code = program.wait()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)
