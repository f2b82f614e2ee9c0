"""After the training: the test split, predictions for new files, and weights for elsewhere."""

from penstock.installed import AddOn, Task

ADDON = AddOn(
    observers="penstock.addons.predicting.learned:observers",
    tasks={
        "test": Task("penstock.addons.predicting.test:run", "testing {measured}", ranks=True),
        "predict": Task(
            "penstock.addons.predicting.predict:run", "predicting with {measured}", ranks=True
        ),
        "export": Task("penstock.addons.predicting.export:run", "exporting {measured}"),
    },
    options={
        "out": "penstock.addons.predicting.options:OUT",
        "format": "penstock.addons.predicting.options:FORMAT",
    },
)
