"""A checked configuration becomes objects.

`data` builds datasets, plans and loaders from it, `training` the model, objective and optimizer;
`samples` those datasets, samplers and collate functions that were written for torch.
"""
