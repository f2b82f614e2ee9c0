"""The folder of a run (`run_folder`, `manifest`), its checkpoints (`checkpoint`), resuming it
(`resumption`), bad samples (`quarantine`), metrics sent elsewhere (`trackers`) and `pictures`; of a
sweep, its jobs (`stored_sweep`, `job_result`) and its trials (`study`).
"""
