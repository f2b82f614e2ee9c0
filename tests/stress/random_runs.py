"""Programs and loaders of random configurations: command lines in processes, and batches."""

import os
import re
import signal
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from torch.optim.optimizer import register_optimizer_step_post_hook

from penstock import command
from penstock.build.data import DataParts
from penstock.config.schema import LimitBatches
from penstock.distributed.world import World
from penstock.errors import ConfigError
from penstock.loading.fetch import hash_of_rows, row_hashes
from tests.ports import free_port
from tests.stress.random_oracle import Step

# The mixture ended in an epoch before.
ENDED = "gives no row of Mixture|epoch 1 of Mixture has no full one"
MOST = 40  # batches of an epoch that are loaded

# One program.


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
        port = free_port() if ranks > 1 else 0
        self.code = None
        if ranks == 1 and hit is None and here:
            self.code = self._here()
        self.pids = [self._fork(rank, port) for rank in range(ranks if self.code is None else 0)]

    def _here(self):
        with (
            self.out.open("w") as out,
            self.log.open("w") as log,
            redirect_stdout(out),
            redirect_stderr(log),
        ):
            return command.main(self.words)

    def _fork(self, rank, port):
        child = os.fork()
        if child:
            return child
        code = 1
        try:
            redirect(self.out, self.log)
            if self.ranks > 1:
                os.environ |= {
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "MASTER_ADDR": "localhost",
                    "WORLD_SIZE": str(self.ranks),
                    "LOCAL_WORLD_SIZE": str(self.ranks),
                    "MASTER_PORT": str(port),
                }
            if self.hit is not None and rank in (self.hit[2], self.hit[2] % self.ranks):
                hit_at(*self.hit[:2])
            code = command.main(self.words)
            sys.stdout.flush()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

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


def redirect(out, log):
    for path, number in ((out, 1), (log, 2)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115


# Batches.


def loaded(config, split, epoch, ranks=1, kill=None):
    """The batches of an epoch: (Step, its row hashes, content of each share).

    Args:
        kill: (batch, place): after so many batches the worker at that place is killed.
    """
    parts = [DataParts(config, World(rank, ranks, rank, "cpu", ranks)) for rank in range(ranks)]
    loaders = [one.split(split).loader(hashed=True) for one in parts]
    found = []
    try:
        for batches in zip(*(one.epoch(epoch) for one in loaders), strict=True):
            if kill is not None and len(found) == kill[0]:
                pids = loaders[0]._backend.pids()
                os.kill(pids[kill[1] % len(pids)], signal.SIGKILL)
            found.append(_whole(batches))
            if len(found) == MOST:
                break
    except ConfigError as error:
        if epoch == 0 or not re.search(ENDED, str(error)):
            raise
    finally:
        for one in loaders:
            one.close()
    return found


def _whole(batches):
    """A global batch of its shares."""
    rows, hashes, contents = [], [], []
    for batch in batches:
        valid = [True] * len(batch.positions) if batch.valid is None else batch.valid.tolist()
        parts = batch.request.parts
        pieces = [None] * len(valid) if parts is None else parts.tolist()
        share = zip(batch.positions.tolist(), batch.indices.tolist(), pieces, valid, strict=True)
        share = [one[:3] for one in share if one[3]]
        rows += share
        hashes += row_hashes(batch)
        contents.append((share, valid, dict(batch)))
    rows.sort(key=lambda one: (one[2][3] if one[2] else 0, one[0]))
    address = batches[0].request.address
    has_parts = bool(rows) and rows[0][2] is not None
    step = Step(
        *address,
        [one[0] for one in rows],
        [one[1] for one in rows],
        [one[2] for one in rows] if has_parts else None,
    )
    return step, hashes, contents


def lines(batches):
    """What `task=digest` prints of them."""
    return [
        f"{step.epoch} {step.step} {len(hashes)} {hash_of_rows(hashes)}"
        for step, hashes, _ in batches
    ]


def planned(plan, epoch):
    """All batches of an epoch of rows, without loading any."""
    found = []
    for step in range(plan.steps(epoch)):
        request = plan.request(epoch, step)
        parts = None if request.parts is None else request.parts[: request.valid].tolist()
        found.append(
            Step(
                epoch,
                step,
                request.positions[: request.valid].tolist(),
                request.indices[: request.valid].tolist(),
                parts,
            )
        )
    return found


def unlimited(config):
    """Without what leaves batches out."""
    trainer = config.trainer.model_copy(
        update={"limit_batches": LimitBatches(), "overfit_batches": None, "skip": None}
    )
    return config.model_copy(update={"trainer": trainer})
