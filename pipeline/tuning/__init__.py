"""What bounds a run, and which loader would be faster."""
