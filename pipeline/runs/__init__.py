"""What a run leaves behind, and how it is resumed.

`run_folder` is the folder, `checkpoint` saves and keeps checkpoints, `manifest` checks what a run
folder claims, `resumption` says which run is resumed, `quarantine` lists bad samples, `tracker`
sends metrics elsewhere, `pictures` draws.
"""
