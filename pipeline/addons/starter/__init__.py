"""`penstock init FOLDER`: a small project of a person's own, to begin with."""

from penstock.protocols import AddOn

ADDON = AddOn(commands={"init": "penstock.addons.starter.init:run"})
