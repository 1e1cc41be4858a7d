"""Programs to start from; a test runs each of them."""
