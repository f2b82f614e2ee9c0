"""What a loader's time goes into, and which loader would be faster."""
