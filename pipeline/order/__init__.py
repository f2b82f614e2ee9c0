"""Which samples stand at an address, and the random numbers that belong to it.

`samplers` has orders and batch strategies, `plan` deals them out as requests, `streams` does so for
what can only be read forwards. `randomness` turns (seed, epoch, position) into numbers.
"""
