"""A toy of slime: its modules and signatures as far as the adapter touches them."""
