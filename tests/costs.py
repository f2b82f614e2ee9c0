"""A plugin for pytest: what each test costs, the processes that it waits for included.

    COSTS=FILE python -m pytest -p tests.costs ...
    python -m tests.costs FILE

The first writes a line for each test: its name, seconds of CPU, seconds. The second sums them up.
"""

import collections
import os
import sys
import time
from pathlib import Path

import pytest

from tests import warm


def _cpu():
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system + warm.cpu()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    cpu, began = _cpu(), time.monotonic()
    result = yield
    with open(os.environ["COSTS"], "a") as costs:
        costs.write(f"{item.nodeid}\t{_cpu() - cpu:.3f}\t{time.monotonic() - began:.3f}\n")
    return result


def main(path):
    files, tests = collections.Counter(), []
    for line in Path(path).read_text().splitlines():
        name, cpu, _ = line.rsplit("\t", 2)
        files[name.partition("::")[0]] += float(cpu)
        tests.append((float(cpu), name))
    print(f"{sum(files.values()):8.1f} s of CPU in {len(tests)} tests; files, then tests:")
    for cost, name in [
        *((cpu, name) for name, cpu in files.most_common(40)),
        *sorted(tests)[:-61:-1],
    ]:
        print(f"{cost:8.1f} {name}")


if __name__ == "__main__":
    main(sys.argv[1])
