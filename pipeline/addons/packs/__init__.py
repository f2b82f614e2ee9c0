"""Samples decoded once, into memory-mapped files.

`packing` writes a pack, `recipe` says what is done to samples before and names the pack, `folder`
reads one, `fields` turns fields of samples into rows of numbers and back.
"""

from penstock.installed import AddOn, Callables, Task

ADDON = AddOn(
    only_with=("packed", "task=pack"),
    rules=("penstock.addons.packs.rules:packed",),
    tasks={"pack": Task("penstock.addons.packs.wrapper:run", "packing {data}")},
    callables=(
        Callables(
            "penstock.addons.packs.packed", "a torch.utils.data.Dataset", "torch.utils.data.Dataset"
        ),
    ),
    options={
        "pack": "penstock.addons.packs.options:PackSection",
    },
    wrapper="penstock.addons.packs.wrapper:Packs",
)
