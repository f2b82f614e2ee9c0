"""The bottleneck of a run (`profile`), the fastest loader (`tune`), a learning rate (`lr_find`)."""

from penstock.installed import AddOn, Task

ADDON = AddOn(
    only_with=(),
    tasks={
        "profile": Task(
            "penstock.addons.tuning.profile:run", "timing the training of {both}", writes=True
        ),
        "tune": Task(
            "penstock.addons.tuning.tune:run", "looking for the fastest loader for {both}"
        ),
        "lr_find": Task(
            "penstock.addons.tuning.lr_find:run", "looking for a learning rate for {both}"
        ),
    },
    options={
        "tune": "penstock.addons.tuning.options:TuneSection",
        "profile": "penstock.addons.tuning.options:ProfileSection",
        "lr_find": "penstock.addons.tuning.options:LrFindSection",
    },
)
