"""Transforms of samples and of batches.

`image`, `pixels` and `text` transform samples; `image_decoding` decodes only the wanted
crop. `batch_geometry`, `batch_colors` and `mixing` transform whole batches, which `batch` composes.
"""
