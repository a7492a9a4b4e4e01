"""Where to send a request: compare what waiting, computing and moving K/V would take."""
