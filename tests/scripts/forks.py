"""Forks: one child that it waits for, and one that is still there when it ends."""

import os
import time

child = os.fork()
if child == 0:
    print("child speaks", flush=True)
    os._exit(0)
_, status = os.waitpid(child, 0)
print(f"child ended with {os.waitstatus_to_exitcode(status)}", flush=True)

if os.fork() == 0:
    os.setsid()
    time.sleep(3600)
print("parent ends")
