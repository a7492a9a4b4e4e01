"""What the fuzzes of real engines share: traffic, driving, judging and the report."""
