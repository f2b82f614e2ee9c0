"""A checked configuration becomes objects.

`data` builds datasets, plans and loaders from it, `training` the model, objective and optimizer.
"""
