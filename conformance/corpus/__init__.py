"""The cases that frameworks are tested on: steps, configurations, logs, and hypothesis strategies.

A user may add a case file. Each case has a name, the mistake that it catches and the source of the
rule. Nothing here knows how a case is run or judged.
"""
