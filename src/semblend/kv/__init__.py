"""K/V itself: rotary maths, copying between caches, and tiers that hold segments."""
