"""Python's own name for what each process imports first, those that tests start included."""

import os

if os.environ.get("SUITES_SWAPPED"):
    import swapping

    swapping.install(
        os.environ["SUITES_SWAPPED"].split(os.pathsep), os.environ["SUITES_CLASSES"].split()
    )
