"""Parts in the mirror of a file: whole or not there, claimed once, evicted together."""

import multiprocessing
import os
import pickle
import random
import signal
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.addons.stores import mirror
from penstock.addons.stores.file_cache import FileCache
from penstock.addons.stores.mirror import Mirror
from penstock.addons.stores.parts import Part
from penstock.errors import DataError, UnreachableError

pytestmark = pytest.mark.skipif(not mirror._SET, reason="only Linux has locks of an open file")

CONTENT = random.Random(5).randbytes(100_000)
ENTRY = "0123abcd-large.bin"


@pytest.fixture
def cache(tmp_path):
    cache = FileCache(tmp_path / "cache", 1_000_000)
    cache.get("00-small", 10, lambda part: part.write(b"0123456789"))  # as there always is one
    return cache


def read(mirror, part):
    return mirror.read(part, 0, part.end - part.start)


def opened(cache):
    """The mirror as another process has it."""
    return Mirror(cache, ENTRY, len(CONTENT))


def part(start, end):
    return Part("s3://data/large.bin", start, end)


def content(of):
    return CONTENT[of.start : of.end]


def filled(claim, *, commits=True):
    for each in claim.parts:
        claim.write(each, memoryview(content(each)))
    claim.flush()
    if commits:
        claim.commit()


def taken(cache):
    return int((cache.folder / "taken").read_text().split()[0]) - 10


def test_parts_are_there_once_they_are_recorded(cache):
    ours, others = opened(cache), opened(cache)
    spans = [part(0, 5000), part(5000, 9001), part(9500, 100_000)]
    assert read(others, spans[0]) is None
    with ours.claimed(spans[:1] + spans[2:]) as claim:
        filled(claim, commits=False)
        assert not any(map(ours.has, spans))
        claim.commit()
    for each in (ours, others, pickle.loads(pickle.dumps(cache)).mirror(ENTRY, len(CONTENT))):
        assert read(each, spans[0]) == content(spans[0])
        assert read(each, spans[1]) is None
        assert each.read(spans[2], 70, 8000) == content(spans[2])[70:8070]
        assert read(each, part(0, 4000)) == CONTENT[:4000], "the beginning of a part"
    assert taken(cache) == 95_500
    with others.claimed(spans) as claim:
        assert claim.parts == spans[1:2]
    assert taken(cache) == 95_500, "what was not written is given back"


def test_a_part_is_claimed_once_and_waited_for(cache, monkeypatch):
    ours, span = opened(cache), part(100, 60_000)
    came, waits, is_locked = [], threading.Event(), mirror._is_locked

    def locked(*place):
        found = is_locked(*place)
        waits.set()
        return found

    with ours.claimed([span]) as claim:
        with opened(cache).claimed([span, part(60_000, 60_001)]) as others:
            assert others.parts == [part(60_000, 60_001)]
        monkeypatch.setattr(mirror, "_is_locked", locked)
        reader = threading.Thread(target=lambda: came.append(read(opened(cache), span)))
        reader.start()
        assert waits.wait(60)
        assert not came
        filled(claim)
    reader.join(60)
    assert came == [content(span)]


def _claim_and_wait(cache, span, writes, ready):
    with opened(cache).claimed([span]) as claim:
        if writes:
            filled(claim, commits=False)
        ready.set()
        time.sleep(600)


@pytest.mark.parametrize("writes", [False, True])
def test_the_claims_of_the_dead_are_free(cache, writes):
    span = part(0, 60_000)
    ready = multiprocessing.Event()
    process = multiprocessing.Process(target=_claim_and_wait, args=(cache, span, writes, ready))
    process.start()
    assert ready.wait(60)
    came = []
    reader = threading.Thread(target=lambda: came.append(read(opened(cache), span)))
    reader.start()
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    reader.join(60)
    assert came == [None], "bytes without a record are not read"
    with opened(cache).claimed([span]) as claim:
        assert claim.parts == [span]
        filled(claim)
    assert read(opened(cache), span) == content(span)
    assert taken(cache) == 120_000, "too many, until all are counted anew"
    assert cache._make_room(10, None) - 10 < 80_000


def test_the_bytes_of_those_who_live_count(cache):
    with opened(cache).claimed([part(0, 60_000)]):
        assert cache._make_room(10, None) == 60_010
    assert cache._make_room(10, None) - 10 <= 8192, "a header's page"


def test_a_crash_within_a_record(cache):
    ours = opened(cache)
    with ours.claimed([part(0, 10)]) as claim:
        filled(claim)
    with open(ours.path, "ab") as file:
        file.write(b"\x01" * 7)
    assert not opened(cache).has(part(10, 20))
    with ours.claimed([part(10, 20)]) as claim:
        filled(claim)
    with open(ours.path, "ab") as file:
        file.write(b"\0" * mirror._RECORD.size)  # as some file systems leave what was not written
    with ours.claimed([part(20, 30)]) as claim:
        filled(claim)
    reader = opened(cache)
    assert [read(reader, part(start, start + 10)) for start in (0, 10, 20)] == [
        CONTENT[start : start + 10] for start in (0, 10, 20)
    ]
    assert not reader.has(part(0, 0 + 11))


def test_a_mirror_that_was_cut_off_or_emptied(cache):
    ours, span = opened(cache), part(0, 50_000)
    for size in (30_000, 0):
        with ours.claimed([span]) as claim:
            filled(claim)
        os.truncate(ours.path, size)
        assert read(ours, span) is None
    with opened(cache).claimed([span]) as claim:
        filled(claim)
    assert read(opened(cache), span) == content(span)


def test_the_first_part_of_a_cache(tmp_path):
    cache = FileCache(tmp_path / "cache", 1_000_000)
    with opened(cache).claimed([part(0, 50_000)]) as claim:
        filled(claim)
    assert read(opened(cache), part(0, 50_000)) == content(part(0, 50_000))


@pytest.mark.parametrize("size", [30_000, 10, 0])
def test_records_are_not_written_where_a_file_was_cut_off(cache, size):
    ours, rest = opened(cache), part(60_000, 61_000)
    with ours.claimed([part(0, 50_000)]) as claim:
        filled(claim)
    with ours.claimed([rest]) as claim:
        os.truncate(ours.path, size)
        with pytest.raises(DataError, match="was cut off"):
            filled(claim)
    with opened(cache).claimed([part(0, 50_000)]) as claim:
        assert claim.parts == [part(0, 50_000)], "in a new file"


def test_it_is_evicted_whole_and_stays_readable_for_who_has_it_open(cache):
    ours, span = opened(cache), part(0, 50_000)
    with ours.claimed([span]) as claim:
        filled(claim)
    assert read(ours, span) == content(span)
    with opened(cache).claimed([part(60_000, 70_000)]) as claim:
        cache.get("11-other", 960_000, lambda part: part.write(bytes(960_000)))
        filled(claim)
    assert not Path(ours.path).exists()
    assert read(ours, span) == content(span)
    assert read(ours, part(60_000, 70_000)) is None
    assert taken(cache) == 960_000 - 10, "the small file is evicted, too"
    with opened(cache).claimed([span]) as claim:
        assert claim is None, "no free room"
    assert taken(cache) == 960_000 - 10


def test_nothing_is_evicted_for_it(cache):
    cache.get("11-other", 960_000, lambda part: part.write(bytes(960_000)))
    with opened(cache).claimed([part(0, 50_000)]) as claim:
        assert claim is None
    assert cache.find("11-other", 960_000)


def test_it_is_noted_as_used(cache):
    ours = opened(cache)
    with ours.claimed([part(0, 50_000)]) as claim:
        filled(claim)
    os.utime(ours.path, (1e9, 1e9))
    assert read(opened(cache), part(0, 50_000))
    assert Path(ours.path).stat().st_mtime > 1.1e9


def test_what_cannot_be_written_says_so(cache, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    with opened(cache).claimed([part(0, 50_000)]) as claim:
        monkeypatch.setattr(os, "pwrite", full)
        with pytest.raises(UnreachableError, match="Make room on that disk"):
            claim.write(claim.parts[0], memoryview(CONTENT)[:50_000])
        monkeypatch.undo()
    assert taken(cache) == 0


STEPS = st.tuples(
    st.sampled_from(["commit", "leave", "read", "claim"]),
    st.lists(st.integers(0, 19), min_size=1, max_size=6, unique=True).map(sorted),
)


@settings(max_examples=30, deadline=None)
@given(steps=st.lists(STEPS, max_size=12))
def test_parts_read_are_those_committed(tmp_path_factory, steps):
    cache = FileCache(tmp_path_factory.mktemp("cache"), 1_000_000)
    cache.get("00-small", 10, lambda part: part.write(b"0123456789"))
    parts = [part(5000 * number, 5000 * number + 4000 + number) for number in range(20)]
    ours, others, there = opened(cache), opened(cache), set()
    for action, numbers in steps:
        asked = [parts[number] for number in numbers]
        if action == "read":
            for each in asked:
                assert read(others, each) == (content(each) if each in there else None)
        else:
            with ours.claimed(asked) as claim:
                assert claim.parts == [each for each in asked if each not in there]
                if action != "claim":
                    filled(claim, commits=action == "commit")
            there |= set(asked) if action == "commit" else set()
    assert taken(cache) == sum(each.end - each.start for each in there)


def test_only_disks_of_this_machine(tmp_path):
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "/dev/vda / ext4 rw 0 0\n"
        "host:/x /home\\040of/net nfs4 rw 0 0\n"
        "tmpfs /home\\040of/net/fast tmpfs rw 0 0\n"
    )
    kinds = {"/": "ext4", "/home": "ext4", "/home of/net/a": "nfs4", "/home of/net/fast/b": "tmpfs"}
    for folder, kind in kinds.items():
        assert mirror._file_system(Path(folder), str(mounts)) == kind
    assert mirror._file_system(tmp_path, str(tmp_path / "none")) == ""
    assert mirror.are_possible(tmp_path) == (mirror._file_system(tmp_path) in mirror._LOCAL)
