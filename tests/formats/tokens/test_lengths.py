"""Lengths of texts in tokens."""

import numpy as np
import pandas as pd

from penstock.addons.tokens.lengths import table_in_tokens
from penstock.loading.facts import Fields


class Rows:
    """A dataset of three rows with any attributes."""

    def __init__(self, **attributes):
        vars(self).update(attributes)

    def __len__(self):
        return 3


LABELED = Rows(targets=[0, 2, 1], lengths=np.array([5, 6, 7]))


def test_the_tokens_of_texts_are_their_lengths():
    class Tokenizer:
        field, counting = "text", "counted"

        @staticmethod
        def length(text):
            return len(text.split())

    def lengths(dataset, names=frozenset({"length"}), **steps):
        return table_in_tokens({*names}, dataset, Fields(), steps)["length"].tolist()

    table = pd.DataFrame({"text": ["a b", "c", "d e f"], "length": [9, 9, 9]})
    texts, tokens = Rows(metadata=table), Tokenizer()
    assert lengths(texts, other=object(), tokens=tokens) == [2, 1, 3]
    assert lengths(texts, {"length", "text"}, tokens=tokens) == [2, 1, 3]
    assert lengths(Rows(metadata=table.drop(columns="text")), tokens=tokens) == [9, 9, 9]
    assert lengths(texts, other=object()) == [9, 9, 9]
    assert table_in_tokens({"text"}, texts, Fields(), {"tokens": tokens}) is table
    assert table_in_tokens({"length"}, Rows(), Fields(), {"tokens": tokens}) is None
    own = Rows(metadata=table, text_lengths=lambda length, how: [length("a b c"), 1, len(how)])
    assert lengths(own, tokens=tokens) == [3, 1, 7]
    assert list(table_in_tokens({"length"}, LABELED, Fields(), {})) == ["length", "label"]
