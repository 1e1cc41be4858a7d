"""What an ElasticJob asks for, read from the object as users write it: pure."""

from __future__ import annotations
