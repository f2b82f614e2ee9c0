"""`penstock init FOLDER`: a small project of a person's own, to begin with."""
