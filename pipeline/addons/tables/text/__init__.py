"""Delimited text: records, where they begin, and their columns."""
