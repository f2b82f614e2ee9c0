"""The folder of a run (`run_folder`, `manifest`), its checkpoints (`checkpoint`), resuming it
(`resumption`), what data and code are known by (`identity`), the samples that it could not read
(`quarantine`), and reading its folder (`record`).
"""
