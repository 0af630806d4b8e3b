"""`parallelbench train` of this clone: `python scripts/train.py KEY=VALUE ...`."""

import sys

from parallelbench.__main__ import main

sys.argv.insert(1, "train")
main()
