"""Many runs of one command: grids, stored sweeps, Optuna."""

from penstock.protocols import AddOn

ADDON = AddOn(
    observers="penstock.addons.sweeps.pruning:observers",
    options={
        "sweep": "penstock.addons.sweeps.options:SweepSection",
    },
)
