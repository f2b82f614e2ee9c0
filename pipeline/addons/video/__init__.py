"""Clips of videos: datasets, models, and drawn motions."""

from penstock.installed import AddOn, Callables

ADDON = AddOn(
    callables=(
        *(
            Callables(
                f"penstock.addons.video.{module}",
                "a torch.utils.data.Dataset",
                "torch.utils.data.Dataset",
            )
            for module in ("clips", "clip_table", "drawn_motions")
        ),
        Callables("penstock.addons.video.models", "a model"),
    ),
)
