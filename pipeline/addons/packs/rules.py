"""Which keys contradict a pack."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.config.messages import not_allowed
from penstock.config.nodes import Parts, datasets
from penstock.config.schema import Config
from penstock.files.addresses import is_remote
from penstock.order.streams import is_stream


def packed(config: Config, parts: Parts) -> Iterator[str]:
    """Packs, given or to be made."""
    where = config.dataset.get("packed")
    if where is not None and (not isinstance(where, str) or not where):
        yield f"dataset.packed: {not_allowed(where, 'auto, the path of a pack, or null')}"
    if where is None and config.task != "pack":
        return
    key = "task" if config.task == "pack" else "dataset.packed"
    for name, _ in datasets(config.dataset):
        kind = parts.get(name)
        if isinstance(kind, type) and is_stream(kind):
            yield (
                f"{key}: {kind.__name__} is a stream, which can only be read forwards; packing is "
                "for datasets with rows"
            )
    pack = config.pack
    if where == "auto" and pack.out is not None and is_remote(pack.out):
        yield (
            f"pack.out: {pack.out!r} is an address, where task=pack writes; then set "
            f"dataset=packed and dataset.folder={pack.out}. dataset.packed=auto keeps packs on "
            "this machine"
        )
    if pack.format == "encoded" and pack.size is not None:
        yield (
            f"pack.size: {pack.size} would decode the files that pack.format=encoded keeps; "
            "set pack.size=null or pack.format=pixels"
        )
