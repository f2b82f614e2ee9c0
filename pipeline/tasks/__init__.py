"""The core's tasks: one module each, with `run(config) -> float | None`.

A module is imported when its task runs, so that no task pays for another's imports.
"""

from penstock.installed import Task

CORE = {
    "fit": Task("penstock.tasks.fit:run", "training {both} {length}", ranks=True, writes=True),
    # The run's folder may give the data, which is read later.
    "validate": Task("penstock.tasks.validate:run", "measuring {measured}", ranks=True),
    "digest": Task("penstock.tasks.digest:run", "hashing the batches of {data}", ranks=True),
    "replay": Task(
        "penstock.tasks.replay:run", "making batch {address} of {data} again", writes=True
    ),
    "check": Task("penstock.tasks.check:run", "reading every sample of {data}", writes=True),
}
