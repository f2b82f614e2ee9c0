"""Which samples an address holds, and which random numbers they get.

`samplers` has orders and batch strategies; `plan` deals them out as requests, also for data that
can only be read forwards. `keys` turns (seed, epoch, position) into numbers.
"""
