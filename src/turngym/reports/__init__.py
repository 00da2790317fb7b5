"""Reports: what finished runs say, as tables, plots and a viewer.

``runs`` reads training runs, ``statistics`` knows intervals and areas, ``comparison`` puts the runs
of one environment side by side, ``tables`` writes Markdown, CSV and JSON, ``plots`` makes images.
``evaluations`` reads evaluations back and compares them, with ``evaluation_tables`` and
``evaluation_plots`` beside it. ``viewer`` shows episodes in a browser.
"""
