"""What results say beside one another: pairs, merges, noise and savings."""
