"""Pictures before and while they become tensors: files, headers, crops, maps of pixels."""
