"""What datasets are built of: one file of a kind to arrays, splits, fingerprints, folders."""
