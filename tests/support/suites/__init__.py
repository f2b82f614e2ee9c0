"""Other projects' tests of their loaders, run with our class: `python -m tests.support.suites`."""
