"""The bottleneck of a run (`profile`), and a learning rate (`lr_find`)."""
