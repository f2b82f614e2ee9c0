"""The bottleneck of a run (`profile`), the fastest loader (`tune`), a learning rate (`lr_find`)."""
