"""A checked configuration becomes objects.

`parts.Parts` makes each part of a run when it is first asked for, `samples` those of the data:
dataset, order, names of fields, collate function.
"""
