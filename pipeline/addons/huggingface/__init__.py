"""Folders of Hugging Face's datasets, read without its library."""
