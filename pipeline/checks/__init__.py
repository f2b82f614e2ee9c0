"""Everything that is looked at in a configuration before anything is built."""
