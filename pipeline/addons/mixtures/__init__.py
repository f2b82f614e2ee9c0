"""Several sources in one order, with weights."""
