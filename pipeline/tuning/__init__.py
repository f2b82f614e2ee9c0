"""The bottleneck of a run (`verdict`), the fastest loader (`search`), and pictures of a run's time
(`timeline`).
"""
