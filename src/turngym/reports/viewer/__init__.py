"""The viewer: look at the episodes, curves and timeline of a run in a browser, without network.

``library`` finds the episodes of a run and knows each one's line, ``page`` gives token ids their
text and answers a browser on this machine, or writes one self-contained file. What is shown is
hand-written HTML, CSS and JavaScript in ``assets/``; it puts what models said on the page as text
only, and its content security policy lets nothing else in.
"""
