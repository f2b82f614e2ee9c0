"""How does a LightningModule train by its own steps? Lightning itself is not needed for it."""

from penstock.installed import AddOn, Callables

ADDON = AddOn(
    only_with=(),
    rules=("penstock.addons.lightning.rules:together",),
    callables=(
        Callables("penstock.addons.lightning.steps", "an objective"),
        Callables(
            "penstock.addons.lightning.optimizers", "an optimizer or a scheduler of a module's own"
        ),
    ),
)
