"""What adapters read from the model an engine has loaded."""
