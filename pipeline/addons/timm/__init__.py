"""Which classifiers of pictures does timm have? They are built as they are, without a download."""

from penstock.installed import AddOn, Callables

ADDON = AddOn(
    callables=(Callables("penstock.addons.timm.models", "a model", functions=True),),
)
