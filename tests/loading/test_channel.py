"""Messages between processes: small tensors are copied, files are sent once, borders hold."""

import errno
import os
import socket
from types import SimpleNamespace

import pytest
import torch

from penstock import torch_internals
from penstock.loading.workers import channel
from penstock.loading.workers.channel import ChannelError, MappedFile, Receiver
from penstock.loading.workers.request_queue import anonymous_file
from tests import deaths

SMALL = channel._SMALL


def sent(thing):
    """The thing, after it was sent and received."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel.send(theirs, channel.pack(thing))
        message = Receiver(ours).take()
    assert message is not None
    return channel.unpack(message)


@pytest.fixture
def mapped():
    """A function that makes a file of numbered bytes, mapped to be sent or not."""

    def make(size, is_sent=True):
        descriptor = anonymous_file()
        os.write(descriptor, bytes(number % 251 for number in range(size)))
        try:
            return MappedFile(descriptor, size, is_sent)
        finally:
            os.close(descriptor)

    return make


@pytest.mark.parametrize(("size", "files"), [(0, 0), (1, 0), (SMALL, 0), (SMALL + 1, 1)])
def test_small_memory_is_copied_and_large_is_shared(size, files):
    tensor = torch.arange(size).to(torch.uint8)
    packed = channel.pack(tensor)
    assert len(packed.descriptors) == files
    assert not tensor.is_shared()  # packing leaves the sender's memory as it was
    assert torch.equal(sent(tensor), tensor)


def test_memory_made_for_collation_is_shared_from_the_same_size_on(monkeypatch):
    makers = []
    monkeypatch.setattr(torch_internals, "share_by", makers.append)
    channel.share_anonymously()
    (make,) = makers
    assert [make(SMALL).is_shared(), make(SMALL + 1).is_shared()] == [False, True]
    assert (make(SMALL).nbytes(), make(SMALL + 1).nbytes()) == (SMALL, SMALL + 1)
    shared = torch.empty(0, dtype=torch.uint8).set_(make(SMALL + 1))
    first, second = channel.pack(shared), channel.pack(shared)
    assert first.descriptors == second.descriptors  # its own, and no copy


def test_a_file_is_sent_once_for_all_its_parts(mapped):
    files = [mapped(SMALL * 2), mapped(5000)]
    parts = [
        torch.empty(0, dtype=torch.uint8).set_(file.storage(start, size))
        for file, start, size in [(files[0], 0, 10), (files[1], 4000, 1000), (files[0], 300, SMALL)]
    ]
    packed = channel.pack(parts)
    assert packed.descriptors == [file.descriptor for file in files]
    before = deaths.open_files()
    got = sent(parts)
    assert all(map(torch.equal, got, parts))
    starts = [part.data_ptr() for part in got]
    assert starts[2] - starts[0] == 300  # in one mapping
    del got
    assert deaths.open_files() == before


def test_the_file_of_memory_is_known_to_its_borders(mapped):
    file, unsent = mapped(1000), mapped(1000, is_sent=False)
    assert unsent.descriptor == -1

    def known(start, size, of=file):
        storage = SimpleNamespace(data_ptr=lambda: of.address + start, nbytes=lambda: size)
        return channel.file_of(storage)

    assert known(0, 1000) == (file, 0)
    assert known(999, 1) == (file, 999)
    assert known(1, 1000) is known(-1, 2) is known(1000, 1) is known(-500, 100) is None
    assert known(0, 1000, unsent) is None
    assert channel.file_of(file.storage(20, 30)) == (file, 20)


def test_a_mapped_file_keeps_and_closes_the_descriptor_that_is_sent(mapped):
    before = deaths.open_files()
    file = mapped(10)
    assert file.descriptor > 0
    assert deaths.open_files() >= before + 1
    unsent_more = deaths.open_files()
    kept = mapped(10, is_sent=False)
    # mmap keeps a descriptor of its own.
    assert deaths.open_files() == unsent_more + (unsent_more - before) - 1
    del file, kept
    assert deaths.open_files() == before


def test_messages_without_tensors_are_framed():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        receiver = Receiver(ours)
        assert receiver.arrived == 0
        for thing in ("one", {"two": 2}):
            before, data = receiver.arrived, channel.framed(thing)
            theirs.sendall(data[:5])
            assert receiver.take() is None
            assert receiver.arrived == before + 5
            theirs.sendall(data[5:])
            message = receiver.take()
            assert message is not None
            assert (channel.unpack(message), message.descriptors) == (thing, [])
            assert receiver.arrived == before + len(data)


def test_descriptors_are_sent_again_while_too_many_are_in_flight(monkeypatch):
    tries = []

    def send_fds(sock, data, descriptors):
        tries.append((data, descriptors))
        if len(tries) < 3:
            raise OSError(errno.ETOOMANYREFS, "too many")

    monkeypatch.setattr(channel.socket, "send_fds", send_fds)
    monkeypatch.setattr(channel, "time", SimpleNamespace(sleep=lambda seconds: None))
    channel._send_descriptors(None, [4])
    assert tries == [([b"\0"], [4])] * 3

    def fail(*arguments):
        raise OSError(errno.EBADF, "closed")

    monkeypatch.setattr(channel.socket, "send_fds", fail)
    with pytest.raises(OSError, match="closed"):
        channel._send_descriptors(None, [4])


class Truncating:
    """A socket that hands over a descriptor and a half, the rest of which did not fit."""

    def __init__(self, flags):
        self.flags = flags

    def recvmsg_into(self, buffers, room, flags):
        size = len(buffers[0])
        return size, [(0, 0, (9).to_bytes(4, "little") + b"\1\2")], self.flags, None


def test_descriptors_that_did_not_fit_are_an_error():
    receiver = Receiver(Truncating(0))
    assert receiver._fill()
    assert receiver._descriptors == [9]
    receiver = Receiver(Truncating(socket.MSG_CTRUNC))
    with pytest.raises(ChannelError, match="too many files are open"):
        receiver.take()
