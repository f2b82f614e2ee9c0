"""`penstock init FOLDER`: makes a small project to start from."""
