"""What tests of rules need of their machine."""

import pytest


@pytest.fixture
def alone(monkeypatch):
    """One process on a machine of four cores without an accelerator, which trusts our tests."""
    from penstock.distributed import world

    monkeypatch.setenv("PENSTOCK_TRUST", "tests")
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "SLURM_NTASKS", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(world, "has_accelerator", lambda: False)
    monkeypatch.setattr(world, "usable_cpus", lambda: 4)
