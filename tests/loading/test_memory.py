"""What a process may take, by files as the kernel writes them."""

from types import SimpleNamespace

import pytest

from penstock.loading import memory

KIB = 1024


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """Writes files of /proc and of its cgroups; no limit of the process."""
    monkeypatch.setattr(memory, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(memory, "_CGROUP", tmp_path / "cgroup")
    space = SimpleNamespace(now=-1)
    resource = SimpleNamespace(
        RLIMIT_AS=9, RLIM_INFINITY=-1, getrlimit=lambda which: (space.now, space.now + which)
    )
    monkeypatch.setattr(memory, "resource", resource)

    def write(path, text):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    write("proc/meminfo", "MemTotal:   1000 kB\nMemAvailable:    300 kB\n")
    write.space = space
    return write


def test_a_process_and_all_below_it_are_counted(kernel, monkeypatch):
    for process, parent, size in ((2, 1, 10), (3, 2, 20), (4, 3, 40), (5, 2, 80), (6, 1, 160)):
        kernel(f"proc/{process}/stat", f"{process} (a) b (c) S {parent} 99 98")
        kernel(f"proc/{process}/smaps_rollup", f"Rss: 9 kB\nPss:      {size} kB\nPss_Anon: 1 kB\n")
        kernel(f"proc/{process}/status", f"VmSize: 1 kB\nVmRSS:\t{size} kB\n")
    kernel("proc/7/other", "it has just ended")
    kernel("proc/self/cgroup", "")
    assert memory.tree_pss(2) == 150 * KIB
    assert memory.tree_pss(3) == 60 * KIB
    assert memory.tree_pss(6) == 160 * KIB
    assert memory.tree_pss(8) == 0
    monkeypatch.setattr(memory.os, "getpid", lambda: 5)
    assert memory.tree_pss() == 80 * KIB
    assert (memory.size_of(4), memory.size_of(8)) == (40 * KIB, 0)


def test_where_the_kernel_tells_nothing_all_is_unknown(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_PROC", tmp_path / "none")
    monkeypatch.setattr(memory, "_CGROUP", tmp_path / "none")
    assert memory.tree_pss() == memory.available() == memory.kills() == 0


def test_the_least_limit_is_the_one_that_counts(kernel):
    assert memory.limit() == (1000 * KIB, "the memory of this machine")
    kernel("proc/self/cgroup", "0::/a/b:c\n")
    kernel("cgroup/a/b:c/memory.max", "max\n")
    assert memory.limit()[0] == 1000 * KIB
    kernel("cgroup/a/memory.max", "900000\n")  # one around it
    assert memory.limit() == (900000, "memory.max of its cgroup")
    kernel("cgroup/a/b:c/memory.max", "800000\n")
    assert memory.limit() == (800000, "memory.max of its cgroup")
    kernel("cgroup/memory/job/memory.limit_in_bytes", "700000\n")
    kernel("cgroup/cpu/job/memory.limit_in_bytes", "1\n")
    kernel("proc/self/cgroup", "4:cpu:/job\n5:memory:/job\n")
    assert memory.limit() == (700000, "memory.limit_in_bytes of its cgroup")
    kernel.space.now = 600000
    assert memory.limit() == (600000, "RLIMIT_AS (ulimit -v)")


def test_kills_are_those_of_the_container(kernel):
    assert memory.kills() == 0
    kernel("proc/self/cgroup", "0::/a\n")
    kernel("cgroup/a/memory.events", "oom 7\noom_kill 3\n")
    assert memory.kills() == 3
    kernel("cgroup/memory.oom_control", "oom_kill 5\n")
    assert memory.kills() == 5


@pytest.mark.parametrize(
    ("workers", "ahead", "ranks", "batches"),
    [(0, 2, 1, 3), (1, 0, 1, 3), (1, 1, 1, 3), (1, 2, 1, 4), (4, 2, 1, 13), (4, 2, 2, 26)],
)
def test_all_batches_take_half_of_the_memory(monkeypatch, workers, ahead, ranks, batches):
    monkeypatch.setattr(memory, "limit", lambda: (2 * 26 * (1 << 40), "a test"))
    assert memory.of_a_batch(workers, ahead, ranks) == 26 * (1 << 40) // batches
    assert memory.of_a_batch(4, 2) == memory.of_a_batch(4, 2, 1)
    monkeypatch.setattr(memory, "limit", lambda: (1 << 30, "a test"))
    assert memory.of_a_batch(workers, ahead, ranks) == 512 << 20
