"""Turn credit: from episodes to one advantage per sampled token.

    base      what a method is given (turns, context) and gives back (components, credit)
    sources/  reward sources: what a turn earned (the environment's reward, information gain, ...)
    group/    group-relative advantages: returns, baseline groups, scales, combination
    critics/  advantages from a learned critic: GAE, ArCHer, best of n
    custom    functions and classes of the user's own

A published method is a choice of these parts, written down as a preset.
"""
