"""Runs on packed messages: the same, whoever makes their blocks and wherever they are left."""

import random

import pytest
from torch import nn

from tests.support.program import run

IN_MAIN = ("loader.backend=main", "loader.num_workers=0")
PACKED = ("dataset=delimited_text", "sampler=packed", "sampler.tokens=256", "sampler.window=64")
PACKED += ("collate=packed", "transform.train.tokenize.kind=bytes")
PACKED += ("transform.train.tokenize.size=258", "transform.train.tokenize.max_length=4096")
PACKED += ("batch.size=3",)
FIT = ("~model", f"+model={{_target_: {__name__}.Bag}}", "objective.inputs=[tokens,cu_seqlens]")
FIT += ("trainer=quick", "scheduler=none", "trainer.progress=none", "trainer.digest=true")
FIT += ("trainer.ledger=true", "trainer.pictures=false", "trainer.baseline=false")
FIT += ("trainer.max_epochs=2", "tracker=none", *IN_MAIN, "loader.prefetch_factor=null")
FIT += ("loader.persistent_workers=null",)


class Bag(nn.Module):
    """Classes of documents, from the mean of their tokens."""

    def __init__(self):
        super().__init__()
        self.tokens, self.head = nn.EmbeddingBag(258, 8), nn.Linear(8, 2)

    def forward(self, tokens, edges):
        return self.head(self.tokens(tokens, edges[:-1].long()))


@pytest.fixture(scope="module")
def messages(tmp_path_factory):
    """A file of messages of 0 to 600 characters, and the words that name it."""
    folder = tmp_path_factory.mktemp("messages")
    draw = random.Random(0)
    lines = ["label\ttext"]
    for row in range(160):
        size = draw.choice((0, 1, 20, 40, 90, 256, 600))
        text = "".join(draw.choice("abc def") for _ in range(size)).strip()
        lines.append(f"{'odd' if row % 2 else 'even'}\t{text}")
    (folder / "messages.tsv").write_text("\n".join(lines) + "\n")
    return (*PACKED, f"dataset.root={folder}/messages.tsv", f"cache_dir={folder}/cache")


def digest(capsys, *words):
    done = run(capsys, "task=digest", *words)
    assert done.code == 0, done.err
    return done.hashes


@pytest.mark.thorough
@pytest.mark.one_in(2)
@pytest.mark.parametrize("split", ["never", "tail"])
def test_a_batch_is_the_same_from_any_maker(messages, split, capsys):
    words = (*messages, f"sampler.split={split}")
    expected = digest(capsys, *words, *IN_MAIN)
    assert len(expected) > 10
    for loader in (["loader=threads"], ["loader.num_workers=2"]):
        assert digest(capsys, *words, *loader) == expected
    padded = digest(capsys, *words, *IN_MAIN, "collate.pad_to=256", "collate.labels=true")
    assert padded == expected  # of samples, and not of what is made of them
    assert digest(capsys, *words, *IN_MAIN, "trainer.limit_batches.train=4") == expected[:4]
    assert digest(capsys, *words, *IN_MAIN, "sampler.tokens=300") != expected


@pytest.mark.stress
@pytest.mark.parametrize("sampler", ["bucket", "curriculum", "packed"])
def test_a_run_continues_with_a_pack_of_its_data(messages, sampler, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_TRUST", "tests")
    words = [*messages, *FIT]
    if sampler != "packed":
        words = [word for word in words if not word.startswith(("sampler", "collate", "~", "+"))]
        words += ["sampler=" + sampler, "objective.inputs=[tokens,tokens_lengths]"]
    whole, left = tmp_path / "whole", tmp_path / "left"
    assert run(capsys, *words, f"run_dir={whole}").code == 0
    assert run(capsys, *words, f"run_dir={left}", "trainer.max_steps=2").code == 0
    more = ("trainer.max_steps=20", "data.packed=auto")  # as `trainer=quick` has it
    resumed = run(capsys, f"resume={left}", *more)
    assert resumed.code == 0, resumed.err
    assert (left / "digests.jsonl").read_text() == (whole / "digests.jsonl").read_text()
