"""In Lightning's loops: a configuration as a LightningDataModule, checkpoints, Fabric."""

import pytest

from penstock import DataLoader, compose
from tests.promises.frameworks.loaders import (
    SMALL,
    OwnOrder,
    Rows,
    configured,
    dropin,
    values,
)

pytestmark = pytest.mark.filterwarnings("ignore::Warning")  # of Lightning's own


@pytest.fixture(scope="module", autouse=True)
def lightning():
    """Its import takes a second, in each process that collects tests."""
    global pl, DataModule, ModelCheckpoint, Module
    pl = pytest.importorskip("pytorch_lightning")
    from pytorch_lightning.callbacks import ModelCheckpoint

    from penstock import DataModule
    from tests.promises.frameworks.lightning_module import Module


def trainer(folder, **options):
    every = {"every_n_train_steps": 1, "save_top_k": -1}
    name = ModelCheckpoint(folder, filename="{step}", auto_insert_metric_name=False, **every)
    return pl.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False, callbacks=[name],
        enable_model_summary=False, default_root_dir=folder, **options,
    )  # fmt: skip


def loaders(kind):
    if kind == "dropin":
        return {"train_dataloaders": dropin()}
    return {"datamodule": DataModule(compose(*SMALL))}


@pytest.mark.parametrize("kind", ["dropin", "configured"])
def test_a_checkpoint_resumes_in_mid_epoch_and_at_its_end(kind, tmp_path):
    whole = Module()
    trainer(tmp_path).fit(whole, **loaders(kind))
    loader = dropin() if kind == "dropin" else configured()
    assert whole.seen == [values(batch) for _ in range(2) for batch in loader]
    steps = len(loader)
    for step in (2, steps, steps + 1):
        module = Module()
        trainer(tmp_path / "again").fit(
            module, ckpt_path=str(tmp_path / f"{step}.ckpt"), weights_only=False, **loaders(kind)
        )
        assert module.seen == whole.seen[step:]


class OwnBatches(OwnOrder):
    def __iter__(self):
        rows = list(super().__iter__())
        return iter([rows[start : start + 4] for start in range(0, len(rows), 4)])

    def __len__(self):
        return -(-super().__len__() // 4)


@pytest.mark.parametrize("batched", [False, True])
def test_a_sampler_that_learns_the_epoch_has_its_order_behind_a_checkpoint(batched, tmp_path):
    def own():
        rows = Rows()
        if batched:  # which Lightning tells nothing
            return DataLoader(rows, batch_sampler=OwnBatches(len(rows)))
        return DataLoader(rows, batch_size=4, sampler=OwnOrder(len(rows)))

    whole = Module()
    trainer(tmp_path).fit(whole, train_dataloaders=own())
    steps = len(own())
    assert sorted(map(str, whole.seen[:steps])) != sorted(map(str, whole.seen[steps:]))
    for step in (2, steps, steps + 1):
        module, checkpoint = Module(), str(tmp_path / f"{step}.ckpt")
        trainer(tmp_path / "again").fit(
            module, train_dataloaders=own(), ckpt_path=checkpoint, weights_only=False
        )
        assert module.seen == whole.seen[step:]


def test_the_other_splits(tmp_path):
    data = DataModule(compose(*SMALL, "data.split.test=0.2"))
    (counted,) = trainer(tmp_path).validate(Module(), datamodule=data, verbose=False)
    assert counted["rows"] > 0
    (counted,) = trainer(tmp_path).test(Module(), datamodule=data, verbose=False)
    assert counted["rows"] > 0


def test_fabric_moves_it_and_saves_where_it_stands(tmp_path):
    from lightning_fabric import Fabric

    loader = dropin()
    whole = [values(batch) for _ in range(3) for batch in loader]
    fabric = Fabric(accelerator="cpu", devices=1)
    loader = fabric.setup_dataloaders(dropin())
    seen = 0
    while seen < 8:
        for batch in loader:
            assert values(batch) == whole[seen]
            seen += 1
            if seen == 8:
                fabric.save(tmp_path / "state.ckpt", {"loader": loader})
                break
    loader = fabric.setup_dataloaders(DataLoader(Rows(), batch_size=4, shuffle=True, seed=3))
    fabric.load(tmp_path / "state.ckpt", {"loader": loader})
    rest = [values(batch) for _ in range(2) for batch in loader]
    assert rest == whole[8 : 8 + len(rest)]
