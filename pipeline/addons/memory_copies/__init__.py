"""Copies of the training state in the memory of ranks."""

from penstock.installed import AddOn

ADDON = AddOn(
    copies="penstock.addons.memory_copies.memory",
    options={
        "trainer.checkpoint.memory_every_steps": (
            "penstock.addons.memory_copies.options:every_steps"
        ),
    },
)
