"""Files that rows are read from, on this machine or in a store, and what is read of them ahead."""
