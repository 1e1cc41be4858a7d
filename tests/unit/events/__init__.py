"""Tests of ``elastic_runtime.events``."""
