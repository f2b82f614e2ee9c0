"""Several labels a sample: an objective."""
