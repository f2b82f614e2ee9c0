"""Files that others may have made, or that others may read.

`limits` says how much data may claim, `data` reads files and JSON, `paths` tells addresses from
paths, and `disk` replaces files as a whole and locks them.
"""
