"""`vocabulary: dataset` of a step: it is learned from the texts of the training split."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.build.wrapper import SplitWrapper
from penstock.config import allow_list


class Vocabularies(SplitWrapper):
    """Supplies `BytePairs` with the file of its vocabulary."""

    def node(self, key: str, node: Mapping[str, Any], supply: dict[str, Any]) -> Mapping[str, Any]:
        if node.get("vocabulary") != "dataset" or not key.startswith("transform."):
            return node
        from penstock.addons.tokens.byte_pairs import BytePairs
        from penstock.addons.tokens.vocabulary import with_vocabulary

        step = allow_list.resolve(node["_target_"], "transform")
        if not isinstance(step, type) or not issubclass(step, BytePairs):
            return node
        train = self.split.data.train
        fingerprint = train.identity.cache_key(train.dataset)
        return with_vocabulary(node, train.dataset, fingerprint, self.split.config.cache_dir)
