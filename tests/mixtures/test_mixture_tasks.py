"""Mixtures in runs: addresses, what is written down, and changes in a resumed run."""

import json

import pytest

from penstock import build_val_loader, compose
from penstock.build.data import DataParts
from penstock.errors import ConfigError
from tests.program import run

FIT = [
    "loader=debug",
    "run_dir=run",
    "tracker=none",
    "trainer.baseline=false",
    "scheduler=none",
    "trainer.pictures=false",
    "trainer.digest=true",
    "trainer.progress=none",
]
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


def hashes(folder="run"):
    with open(f"{folder}/digests.jsonl") as file:
        return [json.loads(line)["hash"] for line in file]


@pytest.mark.thorough
@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "options",
    [
        ["loader.num_workers=2"],
        pytest.param(["loader=threads"], marks=pytest.mark.stress),
        pytest.param(["loader.num_workers=4"], marks=pytest.mark.stress),
    ],
)
def test_batches_do_not_depend_on_who_loads_them(options, root, capsys):
    words = ["task=digest", "steps=8", *mixture(root)]
    expected = run(capsys, *words, "loader=debug")
    assert (expected.code, len(expected.hashes)) == (0, 8), expected.err
    assert run(capsys, *words, *options).out == expected.out


def test_ranks_share_a_batch_out(root):
    plan = DataParts(compose(*mixture(root), "loader=debug", "task=digest")).train.plan
    for step in range(8):
        whole = plan.request(0, step).indices.tolist()
        for world in (2, 3, 4):
            shares = [plan.request(0, step, rank, world).indices.tolist() for rank in range(world)]
            assert [row for share in shares for row in share] == whole


@pytest.mark.thorough
def test_a_run_writes_down_what_it_took_and_resumes_anywhere(root, capsys):
    words = [*mixture(root), *FIT]
    done = run(capsys, *words, "trainer.max_epochs=2")
    assert done.code == 0, done.err
    whole = hashes()
    with open("run/manifest.json") as file:
        told = json.load(file)["mixture"]
    with open("run/metrics.jsonl") as file:
        records = [json.loads(line) for line in file]
    last = [one for one in records if one["event"] == "epoch"][-1]
    assert told["a"]["rows"] + told["b"]["rows"] == 128
    # Of a block of 1,000 rows, 128 in an order of its own.
    assert abs(told["a"]["rows"] - 32 * 0.8 / 1.3 - 96 * 0.2 / 0.7) <= 15
    assert told["a"]["passes"] == told["a"]["rows"] / 24  # faces of its training split
    assert (last["mixture/a/rows"], last["mixture/a/passes"]) == tuple(told["a"].values())

    first = run(capsys, *words, "run_dir=cut", "trainer.max_epochs=2", "trainer.max_steps=2")
    assert first.code == 0, first.err  # in the middle of the change
    assert run(capsys, "resume=cut", "trainer.max_steps=null").code == 0
    assert hashes("cut") == whole


@pytest.mark.thorough
def test_a_source_may_be_added_to_a_run(root, capsys):
    assert run(capsys, *mixture(root), *FIT, "trainer.max_steps=6").code == 0
    added = mixture(root, "{a: [[0, 0.8], [4, 0.2]], b: 0.5, c: [[0, 0], [7, 3]]}", "abc")
    longer = [*added, *FIT, "resume=auto", "trainer.max_epochs=2"]
    refused = run(capsys, *longer)
    assert refused.code == 2
    assert "dataset.sources.c: is " in refused.err
    done = run(capsys, *longer, "resume_despite=[dataset]")
    assert done.code == 0, done.err
    resumed = hashes()
    digest = run(capsys, "task=digest", "steps=8", "loader=debug", *mixture(root))
    before = [line.split()[-1] for line in digest.hashes]
    assert (len(resumed), len(before)) == (16, 8)
    assert resumed[:7] == before[:7]
    assert resumed[7] != before[7]
    with open("run/manifest.json") as file:
        assert json.load(file)["mixture"]["c"]["rows"] > 30


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


@pytest.mark.thorough
def test_rows_of_a_mixture_are_packed_in_its_shares(tmp_path):
    node = "_target_: penstock.datasets.sequences.SyntheticSequences, count: 300"
    sources = ", ".join(f"{name}: {{{node}, root: {tmp_path}/{name}}}" for name in "ab")
    config = compose(
        "dataset=sequences",
        "~dataset",
        f"+dataset={{_target_: penstock.addons.mixtures.mixture.Mixture, "
        f"sources: {{{sources}}}, weights: {{a: 3, b: 1}}, num_samples: 1000}}",
        "sampler=packed",
        "collate=packed",
        "sampler.tokens=128",
        "batch.size=4",
        "transform=none",
        "task=digest",
    )
    split = DataParts(config).train
    plan, first = split.plan, split.dataset.source_lengths["a"]
    rows = {}
    for step in range(plan.steps(0)):
        request = plan.request(0, step)
        rows |= dict(zip(request.positions.tolist(), request.indices.tolist(), strict=True))
    assert sorted(rows) == list(range(1000))
    assert sum(row < first for row in rows.values()) == 750
