"""Reading and writing files that others may have made, or that others may read.

`limits` says how much data may claim, `regular_file` and `own_files` which files are opened at all,
`disk` how a file appears whole or not at all, and who holds a folder.
"""
