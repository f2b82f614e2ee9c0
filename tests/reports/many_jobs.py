"""A sweep of many jobs, made from the folder of one real job."""

import json
import math
import random
from itertools import product
from pathlib import Path

from penstock.addons.sweeps.job_result import JobResult


def multiply(job: Path, folder: Path, epochs: int = 100, steps: int = 25) -> Path:
    """A sweep of 64 jobs in `folder`: 4 learning rates, 4 widths, 2 samplers, 2 seeds.

    Each job has the configuration and the manifest of the real one, as many epochs and steps as
    asked for, and a ledger that depends on the sampler and the seed; weighted jobs see what random
    ones see up to epoch 1, step 3. One job failed, and one was killed.
    """
    config = (job / "config.yaml").read_text()
    manifest = json.loads((job / "manifest.json").read_text())
    line = json.loads((job / "metrics.jsonl").read_text().splitlines()[-1])
    metric = manifest["monitor"]
    grid = product((1e-4, 1e-3, 1e-2, 1e-1), (8, 16, 32, 64), ("random", "weighted"), (1, 2))
    for number, (lr, width, sampler, seed) in enumerate(grid):
        own = folder / str(number)
        own.mkdir(parents=True)
        overrides = [
            f"optimizer.lr={lr}",
            f"model.width={width}",
            f"sampler={sampler}",
            f"seed={seed}",
            f"trainer.max_epochs={epochs}",
        ]
        luck = random.Random(number)
        last = 0.2 + abs(math.log10(lr) + 2) / 10 + 1 / width + luck.gauss(0, 0.01)
        records = [
            line
            | {
                "epoch": epoch,
                "step": (epoch + 1) * steps,
                f"val/{metric}": last + math.exp(-epoch / 20) / 2,
                "train/loss": last * math.exp(-epoch / 30) + luck.gauss(0, 0.01),
            }
            for epoch in range(epochs)
        ]
        hashes = {known: random.Random(known) for known in ("random1", "random2", "other")}
        _jsonl(own / "metrics.jsonl", records)
        rows = []
        for epoch, step in product(range(epochs), range(steps)):
            drawn = {known: one.getrandbits(64) for known, one in hashes.items()}
            same = sampler == "random" or (epoch, step) < (1, 3)
            order = drawn[f"random{seed}"] if same else (drawn["other"] + seed) % 2**64
            rows.append(
                {
                    "epoch": epoch,
                    "step": step,
                    "samples": 8,
                    "order": f"{order:016x}",
                    "loss": last.hex(),
                }
            )
        _jsonl(own / "ledger.jsonl", rows)
        (own / "config.yaml").write_text(config)
        facts = {"overrides": overrides, "order": f"{sampler} {seed}"}
        if number in (10, 20):
            facts |= {"status": "failed" if number == 10 else "running", "order": None}
        (own / "manifest.json").write_text(json.dumps(manifest | facts))
        if number != 20:
            failed = number == 10
            JobResult(
                overrides,
                "failed" if failed else "done",
                metric,
                "min",
                None if failed else last,
                float(number),
                "the loss is nan" if failed else None,
                int(failed),
                1.7e9 + 60 * number,
                {"loss": last / 2},
                2.0 * number,
            ).write(own)
    return folder


def _jsonl(path: Path, records: list[dict]) -> None:
    path.write_text("".join(f"{json.dumps(one)}\n" for one in records))
