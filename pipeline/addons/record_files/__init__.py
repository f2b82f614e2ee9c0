"""Files that hold many samples each: what datasets of tables, shards and tokens share.

`shard_files` finds the files of a split, `rows` divides their rows, `open_files` keeps some open,
and `expansion` bounds what comes out of compressed ones.
"""
