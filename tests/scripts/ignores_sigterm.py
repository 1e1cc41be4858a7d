"""Will not be asked to end."""

import signal
import time

signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ignoring", flush=True)
time.sleep(3600)
