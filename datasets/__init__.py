"""Datasets: what a sample is, one dataset a file.

`synthetic_faces` and `synthetic_sequences` make their own data; `face_landmarks`, `image_folder`,
`sequences` and `arrays` read a person's. Each has `len`, `dataset[index] -> dict`, `metadata` (a
table with a row per sample, made without reading one), `facts` (what a model must know) and
`fingerprint`. The other files are what several of them stand on.
"""
