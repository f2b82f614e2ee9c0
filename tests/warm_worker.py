"""The interpreter of pytest's workers, of which each would import for itself what tests import.

`python tests/warm_worker.py -u -c CODE` runs CODE in a process that tests/warm.py starts.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests import warm

    words = sys.argv[sys.argv.index("-c") :]
    worker = warm.start([sys.executable, *words], stdin=sys.stdin)
    sys.exit(worker.wait() & 0xFF)
