"""For those who watch: logs, metrics, the audit stream and the pages."""
