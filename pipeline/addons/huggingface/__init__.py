"""Folders of Hugging Face's datasets, read without its library."""

from penstock.installed import AddOn, Callables

ADDON = AddOn(
    callables=(
        Callables(
            "penstock.addons.huggingface", "a torch.utils.data.Dataset", "torch.utils.data.Dataset"
        ),
    ),
)
