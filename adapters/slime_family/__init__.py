"""Code that slime and miles share, on Megatron-Core and on every other engine."""
