"""Prints megabytes without a newline."""

import sys

MEGABYTES = 4

for _ in range(MEGABYTES):
    sys.stdout.write("#" * (1 << 20))
sys.stdout.flush()
