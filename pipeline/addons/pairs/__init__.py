"""Learning from pairs: two views of a sample, or a picture and its caption."""

from penstock.installed import AddOn, Callables

ADDON = AddOn(
    callables=(
        Callables("penstock.addons.pairs.objectives", "an objective"),
        Callables("penstock.addons.pairs.models", "a model", "torch.nn.Module"),
        Callables("penstock.addons.pairs.metrics", "a metric", "torchmetrics.Metric"),
    )
)
