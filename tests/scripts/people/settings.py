GREETING = "settings read"
