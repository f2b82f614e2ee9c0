"""Files that others may have made, or that others may read.

`limits` says how much data may claim, `regular_file` and `own_files` which files are opened at all;
`disk` replaces files as a whole and locks them, `one_writer` lets others wait for what one process
makes; `plain_json` reads JSON from anywhere.
"""
