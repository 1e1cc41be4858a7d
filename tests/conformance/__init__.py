"""Checks that several implementations of one protocol share."""

import os

# Each connection to a TCPStore asks for the peer's name; where a resolver drops a query, that takes
# 5 s by default.
RESOLVER = {"RES_OPTIONS": "timeout:1 attempts:1"}

for _name, _value in RESOLVER.items():
    os.environ.setdefault(_name, _value)
