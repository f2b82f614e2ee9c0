"""Stores at addresses: listing their files, reading them, and keeping them on this machine."""
