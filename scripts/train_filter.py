"""`parallelbench train_filter` of this clone: `python scripts/train_filter.py KEY=VALUE ...`."""

import sys

from parallelbench.__main__ import main

sys.argv.insert(1, "train_filter")
main()
