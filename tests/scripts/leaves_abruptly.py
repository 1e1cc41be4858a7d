"""Ends without unwinding, with the exit code that it is given."""

import os
import sys

print("leaving abruptly", flush=True)
os._exit(int(sys.argv[1]))
