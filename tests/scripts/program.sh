#!/bin/sh
# No Python at all: run with --no-python.
echo "rank $RANK of $WORLD_SIZE with $# arguments: $*"
