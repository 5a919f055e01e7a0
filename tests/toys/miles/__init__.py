"""A toy of miles: the modules and signatures that the adapters use."""
