"""A dataset whose run hangs at one place in one rank, as the variable HANG says: "PLACE RANK KIND".

It hangs once: the file HANG_ONCE is there from then on, so that the run can be resumed, or started
again by its launcher.
"""

import itertools
import os
import signal
import threading
import time

from penstock.distributed.group import Group
from penstock.runs import checkpoint
from penstock.tasks import fit
from penstock.training.step import TrainStep
from tests.support.own_parts import Numbers

CONF = """# @package _global_
defaults:
  - override /transform: none
  - override /model: linear
  - override /objective: classification
dataset: {_target_: tests.support.hanging.Hanging, size: 64}
objective: {inputs: [x], target: label}
"""


def stop():
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(600)  # continued, it is still stuck


def spin():
    while True:
        pass


def gil():
    sum(itertools.repeat(0))


def deadlock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


class Place:
    """Hangs at the nth time that this process comes by."""

    def __init__(self):
        place, rank, kind = os.environ.get("HANG", "nowhere -1 stop").split()
        mine = os.environ.get("RANK") or os.environ.get("SLURM_PROCID", "0")
        self.place = place.replace("_", " ") if mine == rank else "nowhere"
        self.kind, self.times = globals()[kind], 0

    def __call__(self, place, nth=1):
        if place != self.place:
            return
        self.times += 1
        if self.times >= nth:
            try:
                os.close(os.open(os.environ["HANG_ONCE"], os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
            self.kind()


def before(owner, name, place, nth=1):
    """Let a function of the product pass `place` first."""
    kept = getattr(owner, name)

    def passing(*args, **more):
        here(place, nth)
        return kept(*args, **more)

    setattr(owner, name, passing)


here = Place()
if here.place != "nowhere":
    before(Group, "gather", "gather", 6)
    before(TrainStep, "update", "update", 9)
    before(checkpoint, "write", "background save", 2)
    before(fit, "baselines", "end")


class Hanging(Numbers):
    def __init__(self, **given):
        super().__init__(**given)
        here("set-up")

    def __getitem__(self, index):
        here(self.split, 90)
        return super().__getitem__(index)
