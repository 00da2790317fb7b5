"""Reports: what finished runs say about algorithms, as tables and plots.

``runs`` reads run folders, ``statistics`` knows intervals and areas, ``comparison`` puts the runs
of one environment side by side, ``tables`` writes Markdown, CSV and JSON, ``plots`` draws.
"""
