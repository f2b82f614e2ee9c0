"""From a command line to checked, typed values, and from those to objects.

`composition` lets Hydra compose, `preflight` finds everything that is wrong, `allow_list` says what
may be called, `schema` is the typed configuration, `instantiate` calls what a `_target_` names.
"""
