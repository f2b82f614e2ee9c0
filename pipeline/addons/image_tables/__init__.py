"""Images named by a table, whose columns say what is known of them."""

from penstock.installed import AddOn, Callables

ADDON = AddOn(
    callables=tuple(
        Callables(
            f"penstock.addons.image_tables.{module}",
            "a torch.utils.data.Dataset",
            "torch.utils.data.Dataset",
        )
        for module in ("image_table", "drawn_scenes")
    ),
)
