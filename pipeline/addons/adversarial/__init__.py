"""A network that draws pictures, and one that tells them from real ones."""

from penstock.installed import AddOn, Callables

ADDON = AddOn(
    callables=(
        Callables("penstock.addons.adversarial.objective", "an objective"),
        Callables("penstock.addons.adversarial.models", "a model", "torch.nn.Module"),
        Callables("penstock.addons.adversarial.metrics", "a metric", "torchmetrics.Metric"),
    )
)
