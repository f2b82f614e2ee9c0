"""The legs of a case: programs, loaders, ranks and kills that should make no difference."""

import json
import random
import re
import signal
import traceback

import numpy as np
import torch

from penstock import Run, compose
from penstock.errors import DataError
from tests.port import (
    Parts,
    batch_hash,
    hash_of_rows,
    loaded,
    order_hash,
    unlimited,
    weights_of,
)
from tests.promises.stress import random_oracle
from tests.promises.stress.random_oracle import Data
from tests.promises.stress.random_runs import MOST, Program, lines

MAIN = ("loader.backend=main", "loader.num_workers=0")
QUIET = (
    "trainer.pictures=false trainer.report=false trainer.baseline=false trainer.progress=none "
    "trainer.device=cpu tracker=none scheduler=none"
)
CHOOSING = ("data.filter=", "data.unique=", "data.without=", "+data.packed=")
# Measurements of time, which a resumed run has others of.
TIMED = "seconds samples_per_second tokens_per_second wait_share worker_deaths"
# What only the data shows ends with code 3.
OF_DATA = (
    "cannot be put together|samples is left: |has no packed data: |so nothing could be drawn|"
    "data.packed: .* is missing"
)
DIVERGED = r"(?m)^error: the loss is (inf|nan|-inf) at "  # without a clip_norm, say


class Failed(Exception):
    """A leg that does not hold what is promised."""


def words_of(case, folder):
    return [*QUIET.split(), *case.words, f"cache_dir={folder}/cache"]


class Check:
    """One case."""

    def __init__(self, case, seed, number, folder, counts):
        self.case, self.folder, self.counts = case, folder, counts
        self.draw = random.Random(f"legs {seed} {number}")
        self.words = words_of(case, folder)
        self.leg, self.command, self.reason = "", [], ""
        raises = "bad_samples.on_error=raise" in case.options
        self.broken = case.kind.damaged and raises  # rows that cannot be read end it, code 3

    def run(self):
        self.leg = "digest"
        done = self.program("task=digest", *MAIN, f"steps={MOST}")
        if done != 0:
            self.refused(done)
            return
        self.config = compose(*self.words, *MAIN, "task=digest")
        self.stream = Parts(self.config).is_stream
        self.reference()
        self.leg = "rows"
        self.rows()
        if self.broken:
            return
        for leg in (self.backends, self.ranks, self.killed_worker, self.where):
            self.leg = leg.__name__
            leg()
        padded = any("pad_to" in word for word in self.words)  # whose padding the model would see
        fits = (
            self.case.kind.fits
            and not padded
            and ("val", 0) in self.batches
            and self.draw.random() < 0.25
        )
        sizes = [len(step.rows) for batches in self.batches.values() for step, _, _ in batches]
        if fits and not (self.case.kind.norms and 1 in sizes):
            self.fits()

    def program(self, *words, ranks=1, hit=None, count=None):
        self.counts[count or self.leg] += 1
        self.command = [*self.words, *words]
        self.last = Program(self.command, self.folder / "log", ranks, hit)
        codes = self.last.codes()
        return codes[0] if ranks == 1 else codes

    def fail(self, text):
        raise Failed(f"{self.leg}: {text}")

    def refused(self, code):
        """Code 2, one message, no folder; and so is a fit."""
        for again in (False, True):
            said = self.last.said()
            if "Traceback" in said or code not in (2, 3):
                self.fail(f"code {code}: {said[-1500:]}")
            if code == 3 and re.search(OF_DATA, said):
                return
            if code == 3 and not self.broken:
                self.fail(f"code 3: {said[-500:]}")
            if code == 3:
                return
            heads = re.findall(r"^(?:error in the configuration:|\d+ errors in the)", said, re.M)
            if len(heads) != 1:
                self.fail(f"{len(heads)} messages: {said[-1500:]}")
            if again:
                break
            self.reason = re.search(r"error\S* in the configuration:\s+(\S+)", said)[1]
            self.leg = "refused fit"
            code = self.program("task=fit", *MAIN, f"run_dir={self.folder}/run")
            if code == 0:
                return
        left = [
            path.name
            for path in self.folder.iterdir()
            if path.name != "cache" and not re.fullmatch(r"log\d*(\.out)?", path.name)
        ]
        if left:
            self.fail(f"a refused run leaves {left}")

    def reference(self):
        self.leg = "reference"
        self.printed = self.last.out.read_text()
        printed = self.printed.splitlines()
        self.batches = {}
        for split, epoch in (("train", 0), ("train", 1), ("val", 0)):
            self.counts["reference"] += 1
            try:
                self.batches[split, epoch] = loaded(self.config, split, epoch, MOST)
            except DataError as error:
                if self.broken and "cannot be read" in str(error):
                    self.batches[split, epoch] = []
                elif split == "train" or "samples is left: " not in str(error):
                    raise
        shown = [line for line in printed if not line.startswith("total") and "skipped" not in line]
        found = lines(self.batches["train", 0])[: len(shown)]
        if shown != found[: len(shown)] or not printed:
            self.fail(f"task=digest prints {shown[:3]}, the loader gives {found[:3]}")

    # (c)

    def rows(self):
        try:
            self._rows()
        except AssertionError as error:
            trace = traceback.extract_tb(error.__traceback__)[-1]
            raise Failed(f"rows: {error} ({trace.name})") from None

    def _rows(self):
        config, size = self.config, self.config.batch.size
        whole = Parts(unlimited(config))
        if self.stream:
            epochs = [[one[0] for one in self.batches["train", epoch]] for epoch in (0, 1)]
            count = self.case.kind.rows
            if count is None and config.batch.tail != "drop":
                count = sum(len(step.rows) for step in epochs[0])
            if unlimited(config) == config and len(epochs[0]) < MOST and count:
                random_oracle.check_stream(epochs, config.sampler, size, config.batch.tail, count)
            return
        epochs = [whole.planned("train", epoch) for epoch in (0, 1, 2)]
        kept, own = self.kept(whole)
        self.own = own
        random_oracle.check_epochs(epochs, config.sampler, size, config.batch.tail, kept)
        if ("val", 0) in self.batches and whole.val_rows() is not None:
            val = whole.planned("val", 0)
            random_oracle.check_validation(val, config.batch.val_size or size, whole.val_rows())
        self.contents(epochs, own)

    def kept(self, whole):
        """What the filters leave, found without them; and those rows' own numbers."""
        plain = [word for word in self.words if not word.startswith(CHOOSING)]
        self.base = Parts(compose(*plain, *MAIN, "task=digest"))
        table = self.base.table()
        length = len(self.base.dataset)
        mask = np.ones(length, bool)
        chosen = self.config.data
        given = chosen.filter or []
        for text in [given] if isinstance(given, str) else given:
            mask &= table.eval(text, engine="python").to_numpy().astype(bool)
        if chosen.unique:
            seen = set()
            for row, value in enumerate(table[chosen.unique].tolist()):
                if mask[row] and isinstance(value, str):
                    mask[row] = value not in seen
                    seen.add(value)
        for row in chosen.without or ():
            mask[row] = False
        own = np.flatnonzero(mask)
        assert len(whole.dataset) == len(own), f"{len(whole.dataset)} rows are left, not {len(own)}"
        left = None if table is None else table.iloc[own].reset_index(drop=True)
        if "tokenize" in str(self.config.transform):
            left = None if left is None else left.assign(length=self.lengths(own))
        sources = mixing = None
        if self.case.kind.mixes:
            sources = whole.sources()
            mixing = self.config.dataset
            if chosen.filter is not None or chosen.without is not None:
                assert sum(sources.values()) == len(own)
        return Data(len(own), left, sources, mixing), own.tolist()

    def lengths(self, own):
        """Of texts, in tokens."""
        transform, dataset = self.base.transform, self.base.dataset
        return [len(transform(dataset[row])["tokens"]) for row in own]

    def contents(self, epochs, own):
        """The rows that were loaded are those of the plan, and hold what the dataset has there."""
        bad = {row for row, known in enumerate(own) if self.case.kind.damaged and known % 13 == 5}
        dataset = self.base.dataset
        for (split, epoch), batches in self.batches.items():
            if split != "train":
                continue
            for step, _, contents in batches:
                plan = epochs[0 if self.config.trainer.overfit_batches else epoch][step.step]
                wanted = list(zip(plan.positions, plan.rows, strict=True))
                found = list(zip(step.positions, step.rows, strict=True))
                if not bad:
                    assert found == sorted(wanted) or found == wanted, f"{step} is not {plan}"
                else:
                    self.left_out(wanted, found, bad)
                for share, valid, fields in contents:
                    self.fields(share, valid, fields, dataset, own)

    def left_out(self, wanted, found, bad):
        planned = dict(wanted)
        skips = self.config.bad_samples.on_error == "skip"
        for position, row in found:
            assert row not in bad, f"row {row} cannot be read, and is there"
            assert row == planned[position] or (not skips and planned[position] in bad), (
                "other rows"
            )
        lost = planned.keys() - dict(found).keys()
        assert all(planned[position] in bad for position in lost), "a good row is left out"
        assert not skips or len(lost) == sum(row in bad for row in planned.values())

    def fields(self, share, valid, fields, dataset, own):
        if "row" in fields and isinstance(fields["row"], torch.Tensor):
            told = [int(row) for row, counts in zip(fields["row"], valid, strict=True) if counts]
            known = [int(dataset[own[row]]["row"]) for _, row, _ in share]
            assert told == known, f"rows {told}, not {known}"
        if "document_ids" in fields and share and all(valid):
            mine = fields["document_ids"].flatten() >= 0
            tokens = fields["tokens"].flatten()[mine].tolist()
            wanted = []
            for _, row, (start, stop, _, _) in share:
                wanted += dataset[own[row]]["tokens"][start:stop].tolist()
            assert tokens == wanted, "a block holds other tokens"

    # (a)

    def compare(self, name, found, split, epoch):
        expected, found = lines(self.batches[split, epoch]), lines(found)
        if found != expected:
            wrong = next(
                (pair for pair in zip(found, expected, strict=False) if pair[0] != pair[1]),
                f"{len(found)} batches, not {len(expected)}",
            )
            self.fail(f"{name}, {split}, epoch {epoch}: {wrong}")

    def loader(self):
        """A loader other than the one of the reference."""
        draw, workers = self.draw, self.draw.randint(1, 3)
        words = [f"loader.num_workers={workers}"]
        if draw.random() < 0.4:
            words.append(f"loader.prefetch_factor={draw.randint(1, 4)}")
        if (
            draw.random() < 0.4
            and not self.case.kind.draws
            and not any("Noise" in w for w in self.words)
        ):
            return [*words, "loader.backend=thread"]
        if draw.random() < 0.3:
            words.append("loader.persistent_workers=true")
        if draw.random() < 0.02:
            words.append(f"loader.multiprocessing_context={draw.choice(('spawn', 'forkserver'))}")
        return [*words, "loader.backend=process"]

    def backends(self):
        for _ in range(2):
            words = self.loader()
            self.command = [*self.words, *words, "task=digest"]
            config = compose(*self.command)
            split, epoch = self.draw.choice(list(self.batches))
            self.counts["backends"] += 1
            self.compare(" ".join(words), loaded(config, split, epoch, MOST), split, epoch)

    def ranks(self):
        if self.config.batch.size is None:
            return
        split, epoch = self.draw.choice(list(self.batches))
        count = self.draw.randint(2, 4)
        mixes = any("train_batch.mix=" in word for word in self.words)
        if mixes and self.config.batch.size % (2 * count):  # each rank mixes pairs: refused
            return
        self.counts["ranks"] += 1
        found = loaded(self.config, split, epoch, MOST, count)
        self.compare(f"{count} ranks", found, split, epoch)

    def killed_worker(self):
        split, epoch = self.draw.choice(list(self.batches))
        count = len(self.batches[split, epoch])
        if self.draw.random() > 0.15 or not count:
            return
        workers = self.draw.randint(1, 3)
        kill = self.draw.randrange(count), self.draw.randrange(workers)
        words = ["loader.backend=process", f"loader.num_workers={workers}"]
        self.counts["killed workers"] += 1
        found = loaded(compose(*self.words, *words, "task=digest"), split, epoch, MOST, 1, kill)
        self.compare(f"killed at {kill}", found, split, epoch)

    def where(self):
        """`task=where` of a row, against the batches."""
        steps = [step for epoch in (0, 1) for step, _, _ in self.batches["train", epoch]]
        steps = [step for step in steps if step.rows]  # else all of its rows were left out
        if self.stream or self.draw.random() > 0.15 or not steps:
            return
        row = self.draw.choice(self.draw.choice(steps).rows)
        code = self.program("task=where", f"sample={self.own[row]}", "epochs=0:2", *MAIN)
        if code != 0:
            self.fail(f"code {code} for row {row}: {self.last.said()[-700:]}")
        printed = self.last.out.read_text().splitlines()
        words = [
            line.split()[:4]
            for line in printed
            if not line.rstrip().endswith("left out (trainer.skip)")
        ]
        numbers = [one[1:] for one in words if len(one) == 4 and all(map(str.isdigit, one))]
        told = {tuple(map(int, one)) for one in numbers}
        known = {
            (step.epoch, step.step, position)
            for step in steps
            for position, other in zip(step.positions, step.rows, strict=True)
            if other == row
        }
        last = {
            epoch: max((one.step for one in steps if one.epoch == epoch), default=-1)
            for epoch in (0, 1)
        }
        told = {one for one in told if one[1] <= last[one[0]]}
        if told != known and self.config.bad_samples.on_error == "raise":
            self.fail(f"row {row} at {sorted(told)}, in fact {sorted(known)}")

    # (b)

    def fits(self):
        self.leg = "fit"
        whole = self.folder / "whole"
        code = self.program("task=fit", *MAIN, f"run_dir={whole}")
        if code == 2 and not whole.exists():
            self.last.out.write_text("")
            self.refused(code)
            return
        if code == 1 and re.search(DIVERGED, self.last.said()):
            return
        if code != 0:
            self.fail(f"code {code}: {self.last.said()[-1500:]}")
        steps = self.ledger(whole)
        self.against_rows(steps)
        self.replayed(whole)
        self.resumed(whole, steps)
        if self.draw.random() < 0.2 and not self.case.kind.norms:
            self.in_ranks(whole, steps)

    def ledger(self, run):
        found = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
        return [one for one in found if "skipped_to" not in one]

    def against_rows(self, steps):
        """The ledger has the very rows that the loader gave."""
        known = {
            (step.epoch, step.step): step
            for epoch in (0, 1)
            for step, _, _ in self.batches["train", epoch]
        }
        for one in steps:
            step = known.get((one["epoch"], one["step"]))
            if step is None:
                continue
            if (one["samples"], one["order"]) != (len(step.rows), order_hash(step)):
                self.fail(f"the ledger's {one} is not {step}")

    def replayed(self, run):
        """A batch that is made again from the run's folder."""
        step, hashes, _ = self.draw.choice(self.batches["train", 0] or [(None, None, None)])
        if step is None or self.draw.random() < 0.5:
            return
        self.counts["replay"] += 1
        found = batch_hash([Run(run).batch(step.epoch, step.step)])
        if found != hash_of_rows(hashes):
            self.fail(f"replayed, {step} is another batch")

    def outcome(self, run):
        metrics = []
        for line in (run / "metrics.jsonl").read_text().splitlines():
            record = json.loads(line)
            if record["event"] == "epoch":
                metrics.append(
                    {
                        name: value
                        for name, value in record.items()
                        if name not in TIMED.split() and not name.startswith("ms/")
                    }
                )
        return (run / "ledger.jsonl").read_text(), weights_of(run), metrics

    def resumed(self, whole, steps):
        """Stopped or killed at a step, and gone on with by another loader."""
        self.leg = "resume"
        draw = self.draw
        updates = max(1, len(steps) // self.config.trainer.accumulate)
        number = draw.choice((signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGKILL))
        cut, hit = self.folder / "cut", (draw.randint(1, updates), number, 0)
        more = [] if draw.random() < 0.5 else ["trainer.checkpoint.every_steps=1"]
        for turn in range(draw.randint(1, 2)):
            loader = MAIN if draw.random() < 0.5 else self.loader()
            words = ["task=fit", *loader, *more]
            code = self.program(*words, f"run_dir={cut}", "resume=auto", hit=hit)
            allowed = {0, 75} | ({-9} if number == signal.SIGKILL else set())
            if code not in allowed:
                self.fail(f"turn {turn}: code {code} after {hit}: {self.last.said()[-1500:]}")
            if code == 0:
                break
        if code != 0:
            words = ["task=fit", *MAIN, *more, f"run_dir={cut}", "resume=auto"]
            code = self.program(*words)
            if code != 0:
                self.fail(f"code {code} on resume after {hit}: {self.last.said()[-1500:]}")
        (ledger, weights, metrics), (wanted, other, known) = self.outcome(cut), self.outcome(whole)
        if ledger != wanted:
            pairs = zip(ledger.splitlines(), wanted.splitlines(), strict=False)
            wrong = next((pair for pair in pairs if pair[0] != pair[1]), "another length")
            self.fail(f"the ledger differs after {hit}: {wrong}")
        if not torch.equal(weights, other):
            self.fail(f"weights differ after {hit} by {(weights - other).abs().max()}")
        if metrics != known:
            self.fail(f"metrics differ after {hit}: {metrics} {known}")
        if draw.random() < 0.3:
            code = self.program("task=diff", *MAIN, f"runs=[{whole},{cut}]", count="verify")
            if code != 0:
                self.fail(f"task=diff ends with {code}: {self.last.out.read_text()[-700:]}")

    def in_ranks(self, whole, steps):
        """By several processes, some of them killed: the same rows; and losses but for rounding."""
        self.leg = "fit in ranks"
        draw, ranks = self.draw, self.draw.randint(2, 3)
        run = self.folder / "ranks"
        words = [
            "task=fit",
            *MAIN,
            "distributed=ddp",
            f"run_dir={run}",
            "resume=auto",
            "distributed.timeout=60",
        ]
        hit = None
        if draw.random() < 0.5:
            number = draw.choice((signal.SIGTERM, signal.SIGKILL))
            hit = (draw.randint(1, max(1, len(steps) // 2)), number, draw.randrange(ranks))
        codes = self.program(*words, ranks=ranks, hit=hit)
        if 2 in codes and not run.exists():
            return
        if hit is not None and any(codes):
            codes = self.program(*words, ranks=draw.randint(2, 3))
        if any(codes):
            self.fail(f"codes {codes} after {hit}: {self.last.said()[-1500:]}")
        for one, other in zip(self.ledger(run), steps, strict=True):
            if any(one[name] != other[name] for name in ("epoch", "step", "samples", "order")):
                self.fail(f"after {hit}: {one}, with one process {other}")
