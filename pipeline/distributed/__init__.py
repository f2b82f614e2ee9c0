"""The processes of a run: who takes part, how they talk, how they start and stop.

`world` is this process's rank and device, `launch` starts all ranks, `group` runs collectives,
`parallel` spreads a model over ranks, `stop` turns signals into requests to stop.
"""
