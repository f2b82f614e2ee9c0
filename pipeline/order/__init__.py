"""Which samples stand at an address, and which random numbers belong to them.

`samplers` has orders and batch strategies, `plan` deals them out as requests, `streams` does so for
data that can only be read forwards. `randomness` turns (seed, epoch, position) into numbers.
"""
