"""From a command line to checked, typed values.

`composition` lets Hydra compose, `preflight` finds everything that is wrong, `allow_list` says what
may be called, `rules` which options exclude each other, `schema` is the typed
configuration, `instantiate` calls what a `_target_` names.
"""
