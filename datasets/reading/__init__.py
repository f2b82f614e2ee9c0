"""Building blocks of datasets: readers for one file of a kind, splits, fingerprints, folders."""
