"""From a request to a batch, and from one batch to the next.

`fetch` makes a batch, `workers` decide which process or thread does, `loader` goes through epochs,
`dataloader` is all of it behind torch's arguments.
"""
