"""Where a row is used, and the same run without it."""

from penstock.installed import AddOn, Task

ADDON = AddOn(
    tasks={
        "where": Task(
            "penstock.addons.backwards.where:run", "penstock.addons.backwards.sentences:where"
        ),
        "without": Task(
            "penstock.addons.backwards.without:run", "how {run} continues without {sample}"
        ),
    }
)
