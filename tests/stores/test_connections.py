"""How many requests a reader has open: as many as bring more, within what may be."""

import heapq

import pytest

from penstock.addons.stores.connections import Connections


class Simulated:
    """A store in simulated time: seconds to the first byte, bytes a second of a connection, and of
    all of them together.
    """

    def __init__(self, latency, rate, link, size=80_000):
        self.latency, self.rate, self.link, self.size = latency, rate, link, size
        self.now, self.free = 0.0, 0.0

    def run(self, connections, seconds, bears=10**9):
        """As many requests as may be open, for so long; the bytes that came."""
        came, open_now, ends = 0, [], self.now + seconds
        while self.now < ends:
            connections.narrow(bears)
            while len(open_now) < connections.limit:
                self.free = max(self.free, self.now) + self.size / self.link
                alone = self.now + self.latency + self.size / self.rate
                heapq.heappush(open_now, max(alone, self.free + self.latency))
            self.now = heapq.heappop(open_now)
            connections.answered(self.size)
            came += self.size
        return came


def connections_of(store, most=128):
    return Connections(most, clock=lambda: store.now)


@pytest.mark.parametrize(
    ("latency", "rate", "link", "limit"),
    [
        (0.1, 40e6, 1e12, 128),  # far away: each of them waits
        (0.001, 10e6, 1e12, 128),  # slow connections
        (0.03, 40e6, 30e6, 32),  # the link is full with these already
        (0.03, 40e6, 130e6, 64),
    ],
)
def test_there_are_more_of_them_as_long_as_they_bring_more(latency, rate, link, limit):
    store = Simulated(latency, rate, link)
    connections = connections_of(store)
    store.run(connections, 10)
    assert connections.limit == limit


def test_nearly_all_that_the_most_would_bring_comes_within_seconds():
    store, whole = Simulated(0.1, 40e6, 1e12), Simulated(0.1, 40e6, 1e12)
    connections = connections_of(store)
    store.run(connections, 2)
    fixed = connections_of(whole)
    fixed.limit = 128
    assert store.run(connections, 4) > 0.95 * whole.run(fixed, 4)


def test_they_stay_within_what_may_be_open_and_what_the_store_bears():
    store = Simulated(0.1, 40e6, 1e12)
    connections = connections_of(store, most=40)
    store.run(connections, 10)
    assert connections.limit == 40
    store.run(connections, 10, bears=7)
    assert connections.limit == 7
    store.run(connections, 30)
    assert connections.limit == 7, "it was asked too much a moment ago"
    store.run(connections, 60)
    assert connections.limit == 40


def test_a_link_that_got_wider_is_found_a_minute_later():
    store = Simulated(0.03, 40e6, 30e6)
    connections = connections_of(store)
    store.run(connections, 10)
    store.link = 1e12
    store.run(connections, 30)
    assert connections.limit == 32
    store.run(connections, 60)
    assert connections.limit == 128


def test_a_reader_that_asks_for_no_more_keeps_its_number():
    store = Simulated(0.1, 40e6, 1e12)
    connections = connections_of(store)
    for _ in range(1000):
        store.now += 0.01
        connections.answered(80_000)
        connections.pause()
    assert connections.limit == 32
