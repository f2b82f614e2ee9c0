"""Programs of random configurations: command lines in processes."""

import os
from pathlib import Path

from torch.optim.optimizer import register_optimizer_step_post_hook

from tests import port
from tests.port import hash_of_rows
from tests.support.ports import free_port

MOST = 40  # batches of an epoch that are loaded


class Program:
    """A command line, in this process or one that is forked from it; or in several, as ranks.

    Args:
        words: of the command line.
        ranks: processes, as torchrun would start them.
        hit: (optimizer step, signal, rank): the signal comes at the end of that step.
        here: what is no ranks and is not hit may run in this process, which is cheaper.
    """

    def __init__(self, words, log, ranks=1, hit=None, here=True):
        self.words, self.log, self.ranks, self.hit = list(words), Path(log), ranks, hit
        self.log.write_text("")
        self.out = self.log.with_suffix(".out")
        self.out.write_text("")
        self.code, self.pids = None, []
        if ranks == 1 and hit is None and here:
            self.code = port.run_quietly(self.words, self.out, self.log)
        else:
            meet = free_port() if ranks > 1 else 0
            self.pids = [self._fork(rank, meet) for rank in range(ranks)]

    def _fork(self, rank, meet):
        def before():
            if self.hit is not None and rank in (self.hit[2], self.hit[2] % self.ranks):
                hit_at(*self.hit[:2])

        return port.fork(
            self.words,
            self.out,
            self.log,
            rank=rank,
            ranks=self.ranks,
            port=meet,
            before=before,
        )

    def codes(self):
        if self.code is not None:
            return [self.code]
        return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in self.pids]

    def said(self):
        return self.log.read_text(errors="replace")


def hit_at(step, number):
    """Send this process a signal when that many optimizer steps are done."""
    done = [0]

    def count(*_):
        done[0] += 1
        if done[0] == step:
            os.kill(os.getpid(), number)

    register_optimizer_step_post_hook(count)


def lines(batches):
    """What `task=digest` prints of them."""
    return [
        f"{step.epoch} {step.step} {len(hashes)} {hash_of_rows(hashes)}"
        for step, hashes, _ in batches
    ]
