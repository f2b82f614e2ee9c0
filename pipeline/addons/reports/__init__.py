"""What did runs see, do and reach, on one page? Made from the files of run folders only."""

from penstock.installed import AddOn, Task

ADDON = AddOn(
    pictures="penstock.addons.reports.predictions:draw_batch",
    observers="penstock.addons.reports.observing:observers",
    sweep_pages=("penstock.addons.reports.report:of_sweep",),
    tasks={
        "report": Task(
            "penstock.addons.reports.report:run", "making the report of {runs}", reads=True
        ),
        "runs": Task(
            "penstock.addons.reports.runs:run", "listing the runs below {below}", reads=True
        ),
        "show": Task(
            "penstock.addons.reports.show:run", "the head of the report of {run}", reads=True
        ),
    },
    options={
        "find": "penstock.addons.reports.options:FindSection",
    },
)
