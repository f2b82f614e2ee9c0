"""Files that others may have made, or that others may read.

`limits` says how much data may claim, `regular_file` opens files of data and maps arrays, `disk`
replaces files as a whole and locks them, and `plain_json` reads JSON from anywhere.
"""
