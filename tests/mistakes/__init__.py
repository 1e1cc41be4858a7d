"""The mistakes of users as tables: what is typed, and what they are told."""
