"""`loader.num_workers=tuned`: the settings that `task=tune` found."""

from __future__ import annotations

from penstock.build.wrapper import SplitWrapper
from penstock.config.schema import LoaderSection


class TunedLoader(SplitWrapper):
    """Resolves `num_workers: tuned`."""

    def loader_section(self, section: LoaderSection) -> LoaderSection:
        if section.num_workers != "tuned":
            return section
        from penstock.addons.tuning import tuned

        return tuned.apply(self.split.config, self.split.fingerprint)
