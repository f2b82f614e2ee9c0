"""`task=digest` and `task=replay`: the same batches, whoever computes them."""

import pytest
import torch
from safetensors.torch import load_file

from tests.support.program import run

DIGEST = ["task=digest", "steps=3"]
IN_MAIN = ["loader.backend=main", "loader.num_workers=0"]
WITHOUT_EFFECT = [
    ["loader=debug"],
    ["loader.num_workers=1", "loader.multiprocessing_context=fork"],
    ["loader.num_workers=2", "loader.prefetch_factor=5"],
    ["loader.num_workers=3", "loader.persistent_workers=true"],
    ["loader=fast"],
    ["loader.timeout=60", "loader.generator=5"],
]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("options", WITHOUT_EFFECT, ids="-".join)
def test_the_executor_does_not_appear_in_the_digest(faces, capsys, options):
    expected = run(capsys, *DIGEST, *faces, *IN_MAIN)
    assert expected.code == 0, expected.err
    assert len(expected.hashes) == 3
    assert run(capsys, *DIGEST, *faces, *options).out == expected.out


SAMPLERS = {
    "sequential": [],
    "random": [],
    "weighted": ["sampler.column=line"],
    "subset": ["sampler.fraction=0.7"],
    "bucket": ["sampler.column=line"],
}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_has_the_same_batches_in_workers_and_threads(faces, capsys, name):
    base = [*faces, f"sampler={name}", *SAMPLERS[name]]
    for epoch, loading in (
        (0, ["loader.num_workers=2"]),
        (1, ["loader=threads", "transform=none"]),
    ):
        digest = ["task=digest", f"epoch={epoch}", *base, *loading]
        expected = run(capsys, *digest, *IN_MAIN)
        assert expected.code == 0, expected.err
        assert run(capsys, *digest).out == expected.out


def test_another_seed_or_epoch_is_another_digest(faces, capsys):
    runs = [
        run(capsys, *DIGEST, *faces, *IN_MAIN, *more).hashes
        for more in ([], ["seed=1"], ["epoch=1"], ["split=val"])
    ]
    assert len({tuple(hashes) for hashes in runs}) == 4
    assert not set.intersection(*({line.split()[-1] for line in lines} for lines in runs[:3]))


OWN_TRANSFORM = '''
import random
import numpy as np
import torch

class Speckle:
    """Draws from every global generator."""

    def __call__(self, sample):
        row = np.random.randint(sample["image"].shape[-2])
        column = random.randrange(sample["image"].shape[-1])
        sample["image"][..., row, column] = torch.rand(()).item()
        return sample
'''


def test_draws_of_a_persons_own_transform_are_covered(faces, capsys, tmp_path, monkeypatch):
    (tmp_path / "speckles.py").write_text(OWN_TRANSFORM)
    monkeypatch.syspath_prepend(tmp_path)
    step = "+transform.train.speckle={_target_: speckles.Speckle}"
    base = [*DIGEST, *faces, step, "--trust", "speckles"]
    expected = run(capsys, *base, *IN_MAIN)
    assert expected.code == 0, expected.err
    assert run(capsys, *base, "loader.num_workers=3").out == expected.out
    refused = run(capsys, *base, "loader=threads")
    assert refused.code == 2
    assert "threads would share the global state of " in refused.err
    assert "loader.backend=process" in refused.err
    assert "Traceback" not in refused.err


def test_replay_is_the_batch_that_workers_made(faces, capsys, tmp_path):
    digest = run(capsys, "task=digest", "epoch=1", *faces, "loader.num_workers=2").hashes
    replay = run(capsys, "task=replay", "epoch=1", f"step={len(digest) - 1}", *faces)
    assert digest[-1] in replay.out.splitlines(), replay.err
    *_, tensors, sheet = replay.out.split()
    assert sheet.endswith("batch.png")
    batch = load_file(tmp_path / tensors)
    assert batch["image"].dtype == torch.float32
    rows = [line.split() for line in replay.out.splitlines()[1 : 1 + len(batch["index"])]]
    assert [int(row[1]) for row in rows] == batch["index"].tolist()
    assert [int(row[0]) for row in rows] == batch["position"].tolist()
    assert all(row[2].endswith(".jpg") for row in rows)


def test_replay_outside_the_epoch_is_a_configuration_error(faces, capsys, tmp_path):
    outcome = run(capsys, "task=replay", "step=99", *faces)
    assert outcome.code == 2
    assert "step: epoch 0 of the train split has 6 steps, 0 to 5, and no step 99" in outcome.err
    assert not (tmp_path / "outputs").exists()
