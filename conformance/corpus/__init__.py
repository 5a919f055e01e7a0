"""What frameworks are tried on: steps, configurations, logs, and strategies that generate steps.

In comes a user's case file, if one is given. Out come named cases, each with the mistake that it
catches and the source of the rule. Nothing here knows how a case is run or judged.
"""
