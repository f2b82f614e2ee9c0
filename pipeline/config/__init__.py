"""From a command line to checked, typed values.

`composition` lets Hydra compose, `preflight` finds everything that is wrong, `targets` says what
may be called and calls it, `rules` which options exclude each other, `schema` is the typed
configuration.
"""
