"""Which samples an address holds, and which random numbers they get.

`samplers` has orders and batch strategies, `plan` deals them out as requests, `streams` does so for
data that can only be read forwards. `randomness` turns (seed, epoch, position) into numbers.
"""
