"""A toy of slime: the modules and signatures that the adapter uses."""
