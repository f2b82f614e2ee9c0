"""Penstock's entry: `python run.py --help` says what can be run and changed."""

import sys
from pathlib import Path

# Before any other package named `penstock`, wherever this is started from.
sys.path.insert(0, str(Path(__file__).resolve().parent))

from penstock.console import main

if __name__ == "__main__":
    main()
