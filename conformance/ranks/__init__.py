"""Worker processes: how they start, how they run jobs, and their messages.

The input is jobs; the output is observations, refusals or crashes. `pool` is the controlling
process's side, `worker` the rank's; `processes` starts ranks on this machine and `torchrun` on
several. The framework is imported here and nowhere else.
"""
