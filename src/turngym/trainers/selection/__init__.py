"""Which tasks are played, how often, what of it is trained on, and what of the past is added.

config        the settings, five independent choices
difficulty    how hard each task is for the policy as it is now
samplers      which tasks                                   (hook ``propose``)
budgets       how many attempts at each                     (hook ``allocate``)
filters       which groups are trained on                   (hook ``admit``)
past          successes of the past in new batches          (hook ``replay``)
prefixes      beginning where a success has led             (hook ``allocate``)
policy        all of them as one ``Selection``
batches       from what was chosen to training samples
"""
