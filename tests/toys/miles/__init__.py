"""A toy of miles: its modules and signatures as far as the adapters touch them."""
