"""What a run leaves behind: its folder, checkpoints, manifest, pictures, and how to go on."""
