"""The core's tasks: one module each, with `run(config) -> float | None`.

A module is imported when its task runs, so that no task pays for another's imports.
"""
