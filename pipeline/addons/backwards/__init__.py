"""Which batches have a row, and which rows a batch has."""

from penstock.installed import AddOn, Task

ADDON = AddOn(
    tasks={
        "where": Task("penstock.addons.backwards.where:run", "which batches have which samples"),
    }
)
