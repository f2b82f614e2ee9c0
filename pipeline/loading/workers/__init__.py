"""Who works on requests: this process, threads, or processes that are replaced."""
