"""Mixtures in runs: addresses, what is written down, and changes in a resumed run."""

import pytest

from penstock import build_val_loader, compose
from penstock.build.data import DataParts
from penstock.errors import ConfigError

FACES = "_target_: penstock.datasets.synthetic_faces.SyntheticFaces, size: 40"
CHANGING = "{a: [[0, 0.8], [4, 0.2]], b: 0.5}"


def mixture(root, weights=CHANGING, sources="ab", **options):
    nodes = {
        name: f"{{{FACES}, root: {root}/{name}, count: {30 + 10 * place}}}"
        for place, name in enumerate(sources)
    }
    given = {
        "sources": "{" + ", ".join(f"{k}: {v}" for k, v in nodes.items()) + "}",
        "weights": weights,
        "num_samples": "64",
        **options,
    }
    node = ", ".join(f"{key}: {value}" for key, value in given.items())
    return [
        "~dataset",
        f"+dataset={{_target_: penstock.addons.mixtures.mixture.Mixture, {node}}}",
        "sampler=mixture",
        "batch.size=8",
    ]


@pytest.fixture
def root(faces_root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return faces_root / "mixed"


def test_other_samplers_over_a_mixture(root):
    def plan(*words):
        return DataParts(compose(*words, "loader=debug", "task=digest")).train.plan

    mixed = mixture(root, "{a: 3, b: 1}")
    for name in ("random", "bucket"):
        with pytest.raises(ConfigError, match=r"sampler: \w+ chooses rows of all sources"):
            plan(*mixed, f"sampler={name}")
    with pytest.raises(ConfigError, match=r"sampler: mixes the sources .* SyntheticFaces has none"):
        plan("sampler=mixture", f"dataset.root={root}", "dataset.count=20")
    packed = ["sampler=packed", "collate=packed", "sampler.column=line", "sampler.tokens=200"]
    with pytest.raises(ConfigError, match=r"dataset\.knots: a step of SequencePacking has not"):
        plan(*mixture(root), *packed)
    nested = "+sampler.order={_target_: penstock.order.samplers.Random}"
    with pytest.raises(ConfigError, match="sampler: Random chooses rows of all sources"):
        plan(*mixed, *packed, nested)
    with build_val_loader(compose(*mixed, "loader=debug", "task=digest")) as val:
        assert sorted(row for batch in val for row in batch.indices.tolist()) == list(range(14))


def test_rows_of_a_mixture_are_repeated_in_its_shares(root):
    words = [*mixture(root, "{a: 3, b: 1}", num_samples=1000), "loader=debug", "task=digest"]
    config = compose(*words, "sampler=repeated", "sampler.times=4", "sampler.shorten=false")
    plan = DataParts(config).train.plan
    rows = [row for step in range(plan.steps(0)) for row in plan.request(0, step).indices.tolist()]
    assert (len(rows), sum(row < 24 for row in rows)) == (4000, 3000)
