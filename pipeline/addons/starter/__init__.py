"""`penstock init FOLDER`: a small project of a person's own, to begin with."""

from penstock.installed import AddOn

ADDON = AddOn(commands={"init": "penstock.addons.starter.init:run"})
