"""What is done to samples and batches: pictures, sound, text, whole batches."""
