"""Worker processes: what starts them, what they run, and what comes back.

In come jobs, out come observations, refusals or crashes. `pool` is the controlling process's side,
`worker` the rank's; `processes` starts ranks on this machine and `torchrun` on several. The
framework is imported here and nowhere else.
"""
