"""How do our loaders stay what they are in the loops of other frameworks?"""

from penstock.installed import AddOn

ADDON = AddOn(iterated="penstock.addons.frameworks.unprepared:heard")
