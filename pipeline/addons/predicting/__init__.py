"""After the training: the test split, predictions for new files, and weights for elsewhere."""

from penstock.installed import AddOn, Task

ADDON = AddOn(
    tasks={
        "test": Task("penstock.addons.predicting.test:run", "testing {measured}", ranks=True),
        "predict": Task(
            "penstock.addons.predicting.predict:run", "predicting with {measured}", ranks=True
        ),
    },
    options={"out": "penstock.addons.predicting.options:OUT"},
)
