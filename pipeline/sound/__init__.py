"""What transforms of audio are computed with."""
