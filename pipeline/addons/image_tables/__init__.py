"""Images named by a table, whose columns say what is known of them."""
