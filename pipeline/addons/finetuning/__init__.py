"""How does a trained model learn something else? Warm starts, frozen parts, groups of weights."""

from penstock.installed import AddOn, Callables

ADDON = AddOn(
    only_with=("groups",),
    options={
        "trainer.warm_start": "penstock.addons.finetuning.options:WarmStartSection",
        "trainer.freeze": "penstock.addons.finetuning.options:FreezeSection",
        "trainer.recompute": "penstock.addons.finetuning.options:RECOMPUTE",
    },
    optimizer_keys=("groups",),
    models="penstock.addons.finetuning.fitting:prepared",
    epochs="penstock.addons.finetuning.freezing:begin_epoch",
    parameters="penstock.addons.finetuning.groups:arranged",
    observers="penstock.addons.finetuning.fitting:watching",
    rules=("penstock.addons.finetuning.rules:fits",),
    callables=(Callables("penstock.addons.finetuning.teachers", "a teacher"),),
)
