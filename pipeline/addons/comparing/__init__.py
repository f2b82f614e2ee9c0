"""Two runs, or a run and its repetition, address by address."""

from penstock.installed import AddOn, Task

ADDON = AddOn(
    tasks={
        "verify": Task("penstock.addons.comparing.verify:run", "comparing {two}"),
        "diff": Task("penstock.addons.comparing.diff:run", "comparing {two}", reads=True),
    },
    options={
        "diff": "penstock.addons.comparing.options:DiffSection",
    },
)
