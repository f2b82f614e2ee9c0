"""Stores at addresses: what lies there, getting it, and keeping it on this machine."""
