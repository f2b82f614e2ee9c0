"""Folders of Hugging Face's `datasets`."""
