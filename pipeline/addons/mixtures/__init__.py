"""Several sources in one order, with weights."""

from penstock.installed import AddOn, Callables

ADDON = AddOn(
    only_with=(),
    rules=("penstock.addons.mixtures.rules:mixture",),
    callables=(
        Callables(
            "penstock.addons.mixtures.mixture",
            "a torch.utils.data.Dataset",
            "torch.utils.data.Dataset",
        ),
        Callables(
            "penstock.addons.mixtures.mixture_stream",
            "a torch.utils.data.Dataset",
            "torch.utils.data.Dataset",
        ),
        Callables("penstock.addons.mixtures.order", "a sampler"),
    ),
    wrapper="penstock.addons.mixtures.wrapper:MixtureOrders",
    explains="penstock.addons.mixtures.mixture_changes:explained",
    observers="penstock.addons.mixtures.mixture_rows:observers",
)
