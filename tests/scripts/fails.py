"""Has a bug that it meets before its first step."""


def load(path: str) -> None:
    raise FileNotFoundError(f"no data at {path}")


load("/nowhere/at/all")
