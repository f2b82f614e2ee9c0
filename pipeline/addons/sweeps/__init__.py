"""Many runs of one command: grids, stored sweeps, Optuna."""

from penstock.installed import AddOn, Sweeps

ADDON = AddOn(
    only_with=(),
    sweeps=Sweeps(
        check="penstock.addons.sweeps.sweep_check:check",
        plugins="penstock.addons.sweeps.plugins:problems",
        resumed="penstock.addons.sweeps.stored_sweep:resumed",
        running="penstock.addons.sweeps.launching:running",
        job="penstock.addons.sweeps.sweep_job:run",
    ),
)
