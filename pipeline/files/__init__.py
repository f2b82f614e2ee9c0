"""Files that others may have made, or that others may read.

`limits` says how much data may claim, `regular_file` opens files of data;
`disk` replaces files as a whole and locks them, `one_writer` lets others wait for what one process
makes; `plain_json` reads JSON from anywhere.
"""
