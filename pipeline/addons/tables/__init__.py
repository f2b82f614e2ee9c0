"""CSV, JSON lines, Parquet, Arrow, folders that Hugging Face saved, and plain text."""

import os

# Read by pyarrow's allocator when it is loaded. A huge page is zeroed whole: 0.1 to 0.2 s of the
# 0.4 s that 46 MB of CSV take.
os.environ.setdefault("MIMALLOC_ALLOW_THP", "0")
