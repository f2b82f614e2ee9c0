"""What did runs see, do and reach, on one page? Made from the files of run folders only."""

from penstock.installed import AddOn

ADDON = AddOn(
    sweep_pages=("penstock.addons.reports.report:of_sweep",),
)
