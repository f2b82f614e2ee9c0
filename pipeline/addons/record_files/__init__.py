"""Files that hold many samples each: what datasets of tables, shards and tokens share.

`shard_files` finds the files of a split, keeps some open and reads compressed ones, and
`remote_bytes` reads parts of files at addresses.
"""
