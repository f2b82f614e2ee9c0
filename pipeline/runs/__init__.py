"""The folder of a run (`run_folder`, `manifest`), its checkpoints (`checkpoint`), resuming it
(`resumption`), and the samples that it could not read (`quarantine`).
"""
