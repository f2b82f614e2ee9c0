"""Which models does transformers have? From a folder or a few numbers, never from the network."""

from penstock.installed import AddOn, Callables

ADDON = AddOn(
    callables=(
        Callables("penstock.addons.transformers.models", "a model", functions=True),
        Callables("penstock.addons.transformers.pieces", "a transform"),
    ),
)
