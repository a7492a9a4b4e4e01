"""Quality: what is measured, how it is judged, and what comes of it."""
