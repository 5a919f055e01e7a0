"""A framework that changed after its adapter was written, and that adapter."""
