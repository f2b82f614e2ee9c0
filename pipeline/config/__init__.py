"""From a command line to checked, typed values.

`compose` makes one checked configuration, `hydra` says what Hydra's own section may hold,
`targets` what may be called and calls it, `rules` which options exclude each other, `schema` is the
typed configuration.
"""
