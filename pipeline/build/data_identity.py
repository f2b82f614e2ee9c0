"""The identity of a split's data: its fingerprints, and other marks beside them."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import TYPE_CHECKING, Any

from penstock.build.sampling import lengths_told
from penstock.config.identity import identity, leaves
from penstock.files.limits import DEFAULT
from penstock.loading.dataset_facts import columns_of
from penstock.loading.known_by import CONTENT, FINGERPRINT, KNOWN_BY, in_fingerprint
from penstock.loading.wrapped import unfiltered_fingerprint
from penstock.runs.identity.dataset import code_and_arguments, labels_of, tells_all
from penstock.runs.identity.fingerprints import fingerprint_of, recorded

if TYPE_CHECKING:
    from penstock.build.data import Split


class DataIdentity:
    """The identity of a split's data; each part is computed when it is asked for.

    Attributes:
        mode: of fingerprints, `data.fingerprint`: by "names", "sizes" or "content".
    """

    def __init__(self, split: Split) -> None:
        self._split = split
        self.mode = split.config.data.fingerprint
        self._fingerprints: dict[str, str] = {}

    def of(self, dataset: Any, mode: str | None = None) -> str:
        """The fingerprint of a dataset, in the mode of the configuration."""
        config = self._split.config
        own, levels = (
            fingerprint_of(dataset, mode or self.mode, config.cache_dir),
            config.limits.levels,
        )
        if levels == DEFAULT.levels:
            return own
        # All that is kept of the samples, statistics and packs, is of pixels scaled by them.
        return hashlib.blake2b(f"{own}\nlevels={levels}".encode(), digest_size=16).hexdigest()

    def data(self, mode: str | None = None) -> str:
        """The fingerprint of the split's dataset; computed once in each mode.

        Args:
            mode: None: that of the configuration.
        """
        mode = mode or self.mode
        if mode not in self._fingerprints:
            self._fingerprints[mode] = self.of(self._split.dataset, mode)
        return self._fingerprints[mode]

    @property
    def unfiltered(self) -> str:
        """The fingerprint of the dataset with all its rows, as quarantine files have it."""
        return unfiltered_fingerprint(self._split.dataset, self.data())

    @cached_property
    def is_told(self) -> bool:
        """Whether the dataset tells what it is, so that nothing need be looked at."""
        return self._tells(self._split.dataset)

    def _tells(self, dataset: object) -> bool:
        return self.mode != "sizes" or tells_all(dataset)

    @cached_property
    def beside(self) -> dict[str, str]:
        """The dataset's marks beside its fingerprint; none for Penstock's own datasets."""
        return self._beside(self._split.dataset)

    def _beside(self, dataset: Any) -> dict[str, str]:
        config = self._split.config
        if config.data.packed not in (None, "auto"):
            return {}  # the pack is the dataset, and has a fingerprint
        told = self._tells(dataset)
        facts = code_and_arguments(self._split.node[1], dataset, told)
        if not told:
            facts |= labels_of(columns_of(dataset, self._split.data.fields))
        names = config.data.fields
        return facts | {"fields": ", ".join(map(str, names))} if facts and names else facts

    @property
    def known_by(self) -> dict[str, str]:
        """The same for a manifest, with marks of its content; none for Penstock's datasets."""
        by = FINGERPRINT if self.is_told else CONTENT
        return {KNOWN_BY: by, **self.beside} if self.beside or by == CONTENT else {}

    def cache_key(self, dataset: object) -> str:
        """The name of what is kept of a dataset of this split; "" where nothing may be kept, since
        nothing tells when it changes.
        """
        if not self._tells(dataset):
            return ""
        own = self.of(dataset)
        known_by = "".join(f"{name}={v}\n" for name, v in sorted(self._beside(dataset).items()))
        digest = hashlib.blake2b(f"{own}\n{known_by}".encode(), digest_size=16).hexdigest()
        return digest if known_by else own

    @cached_property
    def entries(self) -> dict[str, str]:
        """The split's fingerprint: everything that its batches depend on, by key."""
        split, config = self._split, self._split.config
        parts = identity(config, split.steps)
        parts |= {"dataset": self.data(), **recorded(self.mode), **in_fingerprint(self.beside)}
        if not split.is_train:
            parts["batch.val_size"] = str(split.batch_size)
        if split.is_train or split.packs:
            parts |= {key: str(value) for key, value in leaves(config.sampler, "sampler")}
            if getattr(split.dataset, "mixing", None) is not None:
                from penstock.addons.mixtures import in_runs

                parts |= in_runs.recorded(split)
            parts |= lengths_told(config, split.transform.steps)
        if split.decodes:
            from penstock.transforms.image_decoding import decode_step

            step = decode_step(split.transform)
            if step is not None:  # pixels differ by rounding from one decoder to another
                parts["decoder"] = step.decoder
            else:  # whole batches do
                device = split.data.world.device if split.data.on_device else "cpu"
                parts["decoder"] = f"torchvision on {device}"
        return parts
