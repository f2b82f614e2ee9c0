"""Names that version 0.1 no longer has, and what to use instead.

One table for keys, options, tasks and flags. The command line answers a name in it with its row,
and a test greps README, docs and YAML for each of them. The table goes with the next version.
"""

from __future__ import annotations

# What a person typed (`key`, `key=value`, `--flag`; "*" ends a prefix) -> what to do instead.
GONE: dict[str, str] = {
    "experiment=gan": "see docs/examples/gan",
    "sweep.out_of_fold": "run task=predict on each job's folder, and join the tables",
    "task=without": "find the addresses with task=where, and resume with bad_samples.quarantine",
    "trainer.checkpoint.memory_every_steps": "set trainer.checkpoint.every_minutes",
}
