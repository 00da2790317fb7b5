"""Turn credit: from episodes to one advantage per drawn token.

    channels   what a turn earned: the environment's reward, a penalty, information gained, ...
    returns    what a turn is held responsible for: the outcome, the rewards to go, ...
    pools      with whom it is compared, and on which scale
    combine     how several comparisons become one number
    tokens     a turn's number is copied to the tokens that were drawn in it

A published method is a choice of these parts, written down as a preset. Methods that learn
something of their own (a critic, a progress estimator) add it behind the same ``CreditMethod``.
"""
