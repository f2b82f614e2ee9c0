"""Rows that are left out, and what rows cost."""
