"""The folder of a run (`folder`), its checkpoints (`checkpoint`), resuming it (`resume`), what data
and code are known by (`identity`), the samples that it could not read (`quarantine`), the view of
it all (`run`), and parts that only show something (`only_shown`).
"""
